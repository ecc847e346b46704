"""Accelerate's `find_executable_batch_size`, in the same form: it goes up as well as down, and remembers.

    from brim.integrations.accelerate import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=128)
    def train(batch_size, model): ...

    train(model)

Accelerate itself need not be installed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from brim.devices import resolve
from brim.errors import IdleStepError, InputError, NothingFitsError, WorkloadError
from brim.finding.in_job import JobSearch, Ranks
from brim.finding.observer import LogObserver
from brim.findings import Finding, Verdict
from brim.integrations.telling import identity, job_logger
from brim.probing.in_process import release_memory
from brim.probing.loop import LoopProber
from brim.probing.verdicts import classify
from brim.searching import Bounds

# How far above the first size is looked for more, where no cap is given: beyond that a dataset may well end.
GROWTH = 8
# What is left of a size that ran out of memory in the middle of the run. Source: Accelerate.
SHRINK = 0.9


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    cap: int | None = None,
    kind: str = "train",
    steps: int = 3,
    device: str = "auto",
    memory: str | int | None = None,
    fill: float = 0.9,
    cache: bool = True,
) -> Callable[..., Any]:
    """Call a function with the largest batch size that fits, as its first argument.

    Before the run, the function is called with some sizes and ended each time after a few steps; models, optimizers and
    random generators are put back as they were. Then it runs once, from start to end. Should it run out of memory after
    all, it starts again with a smaller size. All ranks use the same sizes. What the function raises besides is raised
    as it is. One that comes to its end without a step starts with the first size, as with Accelerate.

    Args:
        function: What to run; None when the decorator is given settings.
        starting_batch_size: The first size to try.
        reduce_batch_size_fn: Returns the next size after the run itself was out of memory; None for 90% of the last.
        cap: The largest size to try; None for 8 times the first.
        kind: `train`, or `eval` for a function that takes no optimizer steps.
        steps: Steps in each probe: the optimizer's, or forward passes for the kind `eval`.
        device: `auto`, `cpu` or `cuda:N`.
        memory: What the process may have in all, e.g. `"8GiB"`; None for what is free on the device.
        fill: The share of `memory` that the peak may use.
        cache: Whether to use and extend the history of findings. A hit costs one confirming probe.

    Returns:
        The function without its first argument.

    Raises:
        NothingFitsError: Not even a batch size of 1 fits.
    """
    settings = {name: value for name, value in locals().items() if name != "function"}
    if function is None:
        return functools.partial(find_executable_batch_size, **settings)
    if kind not in ("train", "eval"):
        raise InputError(f"kind is {kind!r}. Use train or eval.")
    bounds = Bounds(cap=GROWTH * starting_batch_size if cap is None else cap, start=starting_batch_size)
    decorated = _Decorated(function, starting_batch_size, reduce_batch_size_fn)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function, args)
        found_device = resolve(device, memory=memory, fill=fill, in_process=True)
        prober = LoopProber(lambda size: function(size, *args, **kwargs), found_device, kind=kind)
        label, sources = identity(function)
        ranks = Ranks()
        search = JobSearch(
            prober=prober, label=label, device=found_device, bounds=bounds, steps=steps, sources=sources, cache=cache,
            observer=LogObserver(job_logger(ranks.rank)), ranks=ranks,
        )  # fmt: skip
        return decorated.run(search, args, kwargs)

    return run


class _Decorated:
    """A function and the batch size that it runs with, once that is known."""

    def __init__(self, function: Callable[..., Any], start: int, reduce: Callable[[], int] | None) -> None:
        self._function = function
        self._start = start
        self._reduce = reduce
        self._size: int | None = None

    def run(self, search: JobSearch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Find the size, unless a call before found it, and run the function with it, smaller if need be."""
        name = _name(self._function)
        logger = job_logger(search.ranks.rank)
        finding: Finding | None = None
        if self._size is None:
            logger.info("%s: looking for the largest batch size from %d on", name, self._start)
            finding = _find(search, name)
            self._size = self._start if finding is None else finding.microbatch or 0
        first = self._size
        while self._size:
            logger.info("%s: running with batch size %d", name, self._size)
            is_done, result = _attempt(self._function, self._size, args, kwargs, search.ranks)
            if is_done:
                if finding is not None and self._size != first:
                    search.correct(finding, failed=first, fitted=self._size)
                return result
            smaller = self._reduce() if self._reduce else int(self._size * SHRINK)
            logger.warning(
                "%s: batch size %d ran out of memory in the run itself; starting it again with %d. What it had trained "
                "of models from outside of it stays.", name, self._size, smaller,
            )  # fmt: skip
            self._size = smaller
        self._size = None
        tried = min((probe.microbatch for probe in finding.probes), default=1) if finding else 1
        raise NothingFitsError(
            f"{name}: no batch size fits, the smallest tried was {tried}. Free memory on the device, raise fill or "
            "memory, or make the model or its input smaller; `brim plan --ladder` shows what saves how much."
        )


def _find(search: JobSearch, name: str) -> Finding | None:
    """Return what the search found; None where the function ended without a step, so that nothing could be measured."""
    try:
        return search.run()
    except IdleStepError:
        job_logger(search.ranks.rank).warning(
            "%s: it ended without a step of kind %r, so nothing could be measured. No search: it starts with the first "
            "size. A function that only evaluates takes kind='eval'.", name, search.prober.kind,
        )  # fmt: skip
        return None
    except WorkloadError as error:
        failure = error.__cause__
        if failure is None:  # another rank's
            raise
    # Outside of the handler, so that the user's exception keeps its own cause and context.
    raise failure


def _attempt(
    function: Callable[..., Any], size: int, args: tuple[Any, ...], kwargs: dict[str, Any], ranks: Ranks
) -> tuple[bool, Any]:
    """Run the function; return whether it came to its end on all ranks, and what it returned here."""
    error: BaseException | None = None
    result = None
    try:
        result = function(size, *args, **kwargs)
        verdict = Verdict.FITS
    except Exception as caught:  # noqa: BLE001  raised again below, unless it means memory
        verdict, error = classify(caught, nearly_full=False), caught
    verdicts = ranks.gather(verdict)
    if Verdict.ERROR in verdicts:
        if error is not None:
            raise error
        raise RuntimeError(f"Rank {verdicts.index(Verdict.ERROR)} failed; its own output says why.")
    error = None
    release_memory()
    return Verdict.OOM not in verdicts, result


def _check_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(args) + 1:
        raise TypeError(
            f"{_name(function)} was called with {len(args)} arguments. Leave out the batch size: brim passes it first."
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the function")
