"""What is said under a predicted answer: that it is no limit of memory, or not the last size that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brim.units import format_bytes


class Searched(Protocol):
    """How the search for the largest microbatch ended."""

    @property
    def largest(self) -> int:
        """The largest microbatch that fits."""
        ...

    @property
    def cap(self) -> int | None:
        """The largest microbatch to look for, if one was given."""
        ...

    @property
    def stopped_by(self) -> str:
        """What ended the search: `memory`, `cap` or `time`."""
        ...

    @property
    def fits_above(self) -> int | None:
        """A size above that fits although some in between do not."""
        ...

    @property
    def expandable_helps(self) -> bool:
        """Whether all sizes up to that one fit with expandable segments."""
        ...

    @property
    def selects_all(self) -> bool:
        """Whether what the step selects by values was counted whole."""
        ...

    @property
    def has_recurrence(self) -> bool:
        """Whether a recurrent layer runs, of which cuDNN keeps what is not counted."""
        ...

    @property
    def keeps_batch(self) -> bool:
        """Whether every step keeps its batch."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether random numbers decide what runs."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether an optimizer was not seen to step twice."""
        ...

    @property
    def token_stride(self) -> int:
        """Of how many tokens of a long generation one is replayed."""
        ...

    @property
    def is_unplaced(self) -> bool:
        """Whether nothing was put on the GPU, and so all was counted."""
        ...

    @property
    def other_kind(self) -> str | None:
        """What the workload does although it says otherwise."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """The names of the case that the workload never asks for."""
        ...

    @property
    def missed(self) -> tuple[str, ...]:
        """The names that it asks for and that the case does not have."""
        ...

    @property
    def kept_bytes(self) -> int:
        """The little that every step keeps more than the one before."""
        ...


def remarks(prediction: Searched, *, is_searched: bool = True) -> list[str]:
    """Return what to add to the answer, a sentence or two each; of one size alone, nothing was searched for."""
    told = _end_of_search(prediction) if is_searched else []
    if prediction.selects_all:
        told.append(
            "What the step selects by values (masks, nonzero) was counted whole: with less selected, more fits."
        )
    if prediction.has_recurrence:
        told.append(
            "A recurrent layer runs: what cuDNN keeps for it is estimated by what it kept in 2017, so the bounds may "
            "be too close. Measure with brim find."
        )
    if prediction.keeps_batch:
        told.append(
            "The step keeps its batch: with a new batch each time, as in training, every step would hold one more. "
            "Keep no inputs, or copies on the host."
        )
    if prediction.is_random:
        told.append(
            "Random numbers decide what batch or step makes: the answer is for the largest of a few draws. Make both "
            "the worst case."
        )
    if prediction.is_waiting:
        told.append(
            "The workload has an optimizer that was not seen to step twice, so what it keeps may be missing. Let every "
            "step run it."
        )
    if prediction.token_stride > 1:
        told.append(
            f"A long generation: one token in {prediction.token_stride} was replayed, so the answer may be up to a "
            "tenth too high. Measure with brim find."
        )
    if prediction.is_unplaced:
        told.append(
            "Nothing in this workload is put on self.device, so with a GPU it would still run on the CPU. It was "
            "counted as if it were on the GPU: make tensors with device=self.device, move models with .to(self.device)."
        )
    if prediction.other_kind is not None:
        runs = "no backward pass" if prediction.other_kind == "eval" else "a backward pass"
        told.append(f'The step runs {runs}: say kind = "{prediction.other_kind}" in the workload.')
    if prediction.unread:
        asked = f", which asks for {_listed(prediction.missed)}" if prediction.missed else ""
        told.append(f"{_listed(prediction.unread)} in the case changes nothing in the workload{asked}.")
    if prediction.kept_bytes:
        told.append(
            f"Every step keeps {format_bytes(prediction.kept_bytes)} more than the one before, such as a loss in a "
            "list. Keep loss.item() instead: over many steps it adds up."
        )
    return told


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _end_of_search(prediction: Searched) -> list[str]:
    largest, above = prediction.largest, prediction.fits_above
    if prediction.stopped_by == "cap" and prediction.cap is None:
        return [f"The search stopped at {largest:,}, beyond which brim does not look: the memory has room for more."]
    if prediction.stopped_by == "cap":
        return [f"The search stopped at the cap of {largest:,}, not at the end of the memory."]
    if prediction.stopped_by == "time":
        return [
            f"The search stopped at {largest:,}, not at the end of the memory: a larger microbatch runs so many "
            "operations that tracing it takes too long."
        ]
    if above is None:
        return []
    cause = "by the accident of how the allocator cuts its segments"
    remedy = "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids that" if prediction.expandable_helps else ""
    return [f"Some sizes above {largest:,} fit too, up to {above:,}, {cause}{remedy}."]
