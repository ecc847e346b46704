"""`brim.recover`: a function of a batch that survives an out-of-memory, for evaluation and generation."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from brim.errors import InputError, OutOfMemoryError
from brim.planning.batch_plan import check_count
from brim.planning.step_down import StepDown
from brim.probing.in_process import release_memory
from brim.training.failures import Failure
from brim.training.rewinding import Rewind
from brim.training.splitting import count_samples, leaves, merge, split
from brim.training.telling import log_line, tell_at_exit


class Recovering:
    """A function of a batch, run on parts of it that fit.

    Attributes:
        advice: What to set next time; None where nothing failed.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        microbatch: int | None,
        step_down: Sequence[int] | None,
        combine: Callable[[list[Any]], Any] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        if not callable(function):
            raise InputError(f"brim.recover was given a {type(function).__name__}. Put it on a function of a batch.")
        if microbatch is not None:
            check_count("microbatch", microbatch)
        self._function = function
        self._combine = combine
        self._start = Rewind()
        self._way = StepDown(sizes=None if step_down is None else tuple(step_down), limit=microbatch)
        self._name = getattr(function, "__name__", type(function).__name__)

    @property
    def microbatch(self) -> int | None:
        """The samples that a part of a batch may have; None as long as whole batches fit."""
        return self._way.limit

    @property
    def advice(self) -> str | None:
        """What to set next time; None where nothing failed."""
        return f"{self._name}: next time begin with microbatch={self.microbatch}." if self._way.num_steps else None

    def __call__(self, batch: Any, /, *args: Any, **settings: Any) -> Any:
        """Run the function on the batch, in parts where it does not fit, and put the results together."""
        parts, results = deque(self._cut(batch)), []
        while parts:
            part = parts.popleft()
            self._start.mark()
            try:
                result = self._function(part, *args, **settings)
            except Exception as error:  # noqa: BLE001  the user's code may raise anything; what is not memory goes on
                failure = Failure.of(error, _device_name(part))
            else:
                results.append(self._checked(result, part))
                continue
            if not failure.is_oom:
                raise failure.error
            self._step_down(count_samples(part), failure)
            # What is left is cut as well: parts of the size that failed would fail again.
            parts = deque(smaller for each in (part, *parts) for smaller in self._cut(each))
        return self._put_together(results)

    def _cut(self, batch: Any) -> list[Any]:
        return split(batch, self._way.num_parts(count_samples(batch)))

    def _step_down(self, num_samples: int, failure: Failure) -> None:
        failure.let_go()
        self._start.restore()
        release_memory()
        reason = f"{self._name}: out of memory with a batch of {num_samples}"
        following = self._way.after(num_samples)
        if following is None:
            raise OutOfMemoryError(
                f"{reason}, and that is the end of the way down. Use a smaller model or shorter samples.",
                microbatch=num_samples,
            ) from failure.error
        if not self._way.num_steps:
            tell_at_exit(self)
        self._way = following
        log_line(f"{reason}; going on with {following.limit}.")

    def _checked(self, result: Any, part: Any) -> Any:
        """Refuse a result that could not be put together, also where this once it need not be."""
        if self._combine is not None or result is None:
            return result
        num_samples = count_samples(part)
        if {len(leaf) for leaf in leaves(result)} != {num_samples}:
            raise InputError(
                f"{self._name} returned no value for each of {num_samples} samples, so that the parts of a batch "
                "cannot be put together. Return tensors with the sample as first dimension, or say how to combine "
                "results: brim.recover(combine=sum)."
            )
        return result

    def _put_together(self, results: list[Any]) -> Any:
        if self._combine is not None:
            return self._combine(results)
        return results[0] if len(results) == 1 or results[0] is None else merge(results)


@overload
def recover(function: Callable[..., Any], /) -> Recovering: ...


@overload
def recover(
    *,
    microbatch: int | None = None,
    step_down: Sequence[int] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
) -> Callable[[Callable[..., Any]], Recovering]: ...


def recover(
    function: Callable[..., Any] | None = None,
    /,
    *,
    microbatch: int | None = None,
    step_down: Sequence[int] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Let a function of a batch survive an out-of-memory, for evaluation and generation.

    The part of the batch that did not fit runs again in smaller parts, from the random numbers that it began with, and
    the results are put together in order. The size is the function's own: training is not touched by it. Over ranks
    each goes down alone, so keep collectives out of the function: pass it `model.module`, not the model in DDP.

    Args:
        function: Takes a batch, and whatever else; returns a value for each sample, in tensors, tuples or mappings.
        microbatch: The samples to begin with; None for whole batches.
        step_down: The sizes to go down by, as a plan lists them; None to halve down to 1.
        combine: How to make one result of those of the parts, e.g. `sum`, where they are not values of samples.

    >>> @recover(microbatch=2)
    ... def largest(batch):
    ...     return batch.amax(1)
    >>> largest(torch.arange(6).reshape(3, 2))
    tensor([1, 3, 5])
    """
    if function is None:
        return functools.partial(_make, microbatch=microbatch, step_down=step_down, combine=combine)
    return _make(function, microbatch=microbatch, step_down=step_down, combine=combine)


def _make(function: Callable[..., Any], **settings: Any) -> Recovering:
    return Recovering(function, **settings)


def _device_name(batch: Any) -> str:
    """Return where the batch is, or where it will be: the device that runs out of memory."""
    devices = [str(leaf.device) for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    is_cuda = torch.cuda.is_initialized() and not any(device.startswith("cuda") for device in devices)
    return f"cuda:{torch.cuda.current_device()}" if is_cuda else next(iter(devices), "cpu")
