"""lm-eval with a batch for every group of requests of similar length, found by running that group's longest ones.

    lm = LengthGroupedHFLM(pretrained="gpt2")
    lm_eval.simple_evaluate(model=lm, tasks=["hellaswag"])

For another class of lm-eval's, such as one for vision and language: `class Mine(LengthGrouped, HFMultimodalLM): ...`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from brim.devices import resolve
from brim.errors import NothingFitsError
from brim.extras import needed, require
from brim.finding.in_job import JobSearch, Ranks
from brim.finding.observer import LogObserver
from brim.integrations.telling import job_logger
from brim.probing.loop import LoopProber
from brim.searching import Bounds

AT_LEAST = "0.4"
with needed("lm-eval", AT_LEAST):
    from lm_eval.models.huggingface import HFLM
# The batch to try first for the longest requests; each group starts from what the one before it got.
FIRST = 8


# A mixin: what it asks of itself and of the class above is lm-eval's, which mypy cannot know here. Hence the ignores.
class LengthGrouped:
    """Answers requests in groups of similar length, each with the largest batch that fits.

    Attributes:
        brim_memory: What the process may have in all, e.g. `"8GiB"`; None for what is free on the device.
        brim_fill: The share of it that the peak may use.
        batch_sizes: The batch of each group, by the kind of request and the group's longest request in tokens.
    """

    brim_memory: str | int | None = None
    brim_fill: float = 0.9
    batch_sizes: dict[tuple[str, int], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require("lm-eval", AT_LEAST)
        super().__init__(*args, **kwargs)
        self.batch_sizes = {}

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Score continuations."""
        return self._by_length("loglikelihood", super().loglikelihood, requests)  # type: ignore[misc]  # of the class it is mixed into

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Score whole texts."""
        return self._by_length("loglikelihood_rolling", super().loglikelihood_rolling, requests)  # type: ignore[misc]  # of the class it is mixed into

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Generate; the batch is found by generating."""
        return self._by_length("generate_until", super().generate_until, requests)  # type: ignore[misc]  # of the class it is mixed into

    def _by_length(self, name: str, answer: Callable[..., list[Any]], requests: list[Any]) -> list[Any]:
        lengths = [self._length(request) for request in requests]
        answers: list[Any] = [None] * len(requests)
        size = FIRST
        for group in group_by_length(lengths):
            chosen = [requests[index] for index in group]
            size = self._find(name, answer, chosen, lengths[group[0]], start=size)
            self.batch_size_per_gpu = size
            for index, value in zip(group, answer(chosen, disable_tqdm=True), strict=True):
                answers[index] = value
        return answers

    def _length(self, request: Any) -> int:
        encode: Callable[[str], list[int]] = self.tok_encode  # type: ignore[attr-defined]
        return sum(len(encode(part)) for part in request.args if isinstance(part, str))

    def _find(self, name: str, answer: Callable[..., list[Any]], group: list[Any], longest: int, *, start: int) -> int:
        """Return the largest batch for a group, whose longest requests come first."""

        def loop(size: int) -> None:
            self.batch_size_per_gpu = size
            answer(group[:size], disable_tqdm=True)

        name_of_device = str(self.device)  # type: ignore[attr-defined]
        device = resolve(name_of_device, memory=self.brim_memory, fill=self.brim_fill, in_process=True)
        logger = job_logger(self.rank)  # type: ignore[attr-defined]
        logger.info("%s: %d requests of up to %d tokens", name, len(group), longest)
        kind = "generate" if name == "generate_until" else "eval"
        search = JobSearch(
            prober=LoopProber(loop, device, kind=kind, ends_itself=True, changes_models=False),
            label=f"lm-eval {name}",
            device=device,
            bounds=Bounds(cap=len(group), start=min(start, len(group))),
            observer=LogObserver(logger),
            cache=False,  # a group of requests is hardly ever met again
            ranks=Ranks(alone=True),  # every rank has requests of its own
        )
        found = search.run().microbatch
        if found is None:
            raise NothingFitsError(f"{name}: not even one request of {longest} tokens fits. Lower max_length.")
        self.batch_sizes[name, longest] = found
        return found


class LengthGroupedHFLM(LengthGrouped, HFLM):  # type: ignore[misc]
    """lm-eval's model for transformers, in groups of similar length."""


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return positions in groups whose lengths differ by at most a factor of two, longest first.

    >>> group_by_length([4, 100, 60, 7, 50])
    [[1, 2, 4], [3, 0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if groups and lengths[groups[-1][0]] <= 2 * lengths[index]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
