"""What is said under a predicted answer: that it is no limit of memory, or not the last size that fits."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Protocol

from brim.units import format_bytes

if TYPE_CHECKING:  # which needs torch
    from brim.tracing.observed import Observed


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
    def unfit_below(self) -> int | None:
        """A size below that does not fit although the largest does."""
        ...

    @property
    def expandable_helps(self) -> bool:
        """Whether all sizes up to that one fit with expandable segments."""
        ...

    @property
    def observed(self) -> Observed:
        """What traces show beside memory."""
        ...


def remarks(prediction: Searched, *, is_searched: bool = True, read: Container[str] = ()) -> list[str]:
    """Return what to add to the answer, a sentence or two each.

    Args:
        prediction: The answer.
        is_searched: Whether the largest was searched for, and not one size alone looked at.
        read: Names that other cases were asked for, and so are no mistake in this one.
    """
    told = _end_of_search(prediction) if is_searched else []
    seen = prediction.observed
    if seen.single_failure is not None:
        told.append(f"A microbatch of 1 does not run: {seen.single_failure}")
    if seen.selects_all:
        told.append(
            "What the step selects by values (masks, nonzero) was counted whole: with less selected, more fits; the "
            "upper bound is for next to nothing."
        )
    if seen.records_graph:
        told.append(
            "The step holds activations for a backward pass that never comes: run it under torch.no_grad() or "
            "torch.inference_mode(), and more fits."
        )
    if seen.has_recurrence:
        told.append(
            "A recurrent layer runs: what cuDNN keeps for it is estimated by what it kept in 2017, so the bounds may "
            "be too close. Measure with brim find."
        )
    if seen.keeps_batch:
        told.append(
            "The step keeps its batch: with a new batch each time, as in training, every step would hold one more. "
            "Keep no inputs, or copies on the host."
        )
    if seen.is_random:
        told.append(
            "Random numbers decide what batch or step makes: the answer is for the largest of a few draws. Make both "
            "the worst case."
        )
    if seen.branches:
        told.append(
            f"{_listed(seen.branches)} may go either way by a tensor's value: the answer is for the worst of each way "
            "and of one after the other. Another mixture may need more: leave the worst case alone in the workload."
        )
    if seen.is_waiting:
        told.append(
            "The workload has an optimizer that was not seen to step twice, so what it keeps may be missing. Let every "
            "step run it."
        )
    if seen.token_stride > 1:
        told.append(
            f"A long generation: one token in {seen.token_stride} was replayed, so the answer may be up to a "
            "tenth too high. Measure with brim find."
        )
    if seen.is_unplaced:
        told.append(
            "Nothing in this workload is put on self.device, so with a GPU it would still run on the CPU. It was "
            "counted as if it were on the GPU: make tensors with device=self.device, move models with .to(self.device)."
        )
    if seen.other_kind is not None:
        runs = "no backward pass" if seen.other_kind == "eval" else "a backward pass"
        told.append(f'The step runs {runs}: say kind = "{seen.other_kind}" in the workload.')
    if unread := [name for name in seen.unread if name not in read]:
        asked = f", which asks for {_listed(seen.missed)}" if seen.missed else ""
        told.append(f"{_listed(unread)} in the case changes nothing in the workload{asked}.")
    if seen.kept_bytes:
        told.append(
            f"Every step keeps {format_bytes(seen.kept_bytes)} more than the one before, such as a loss in a "
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
    cause = "by the accident of how the allocator cuts its segments"
    told = []
    if prediction.unfit_below is not None:
        told.append(
            f"Some sizes below {largest:,} do not fit, such as {prediction.unfit_below:,}, {cause}: check any other "
            "with --microbatch."
        )
    if above is not None:
        remedy = "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids that" if prediction.expandable_helps else ""
        told.append(f"Some sizes above {largest:,} fit too, up to {above:,}, {cause}{remedy}.")
    return told
