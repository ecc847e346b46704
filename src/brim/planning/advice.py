"""When a plan is not what helps, and what would."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import InputError
from brim.planning.batch_plan import BatchPlan, check_count, describe, gives, plan

SYMPTOMS = ("oom", "unstable", "slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to know about a plan.

    Attributes:
        topic: `accumulation`, `gradients`, `dataset`, `memory`, `oom`, `unstable` or `slow`.
        text: What to do and why, in one line.
        plan: The settings that would follow it; None where nothing changes.
    """

    topic: str
    text: str
    plan: BatchPlan | None = None


def advise(
    planned: BatchPlan,
    *,
    largest: int | None = None,
    dataset_size: int | None = None,
    symptom: str | None = None,
    gradients_counted: bool = True,
) -> tuple[Advice, ...]:
    """Return what speaks against a plan, or for another.

    Args:
        planned: The plan.
        largest: The largest microbatch that fits, where it is known.
        dataset_size: Samples in the dataset, where it is known.
        symptom: What is wrong with the training: `oom`, `unstable` or `slow`.
        gradients_counted: Whether `largest` leaves room for gradients that are held between microbatches.

    >>> [advice.topic for advice in advise(gives(4, accumulation=8), largest=32)]
    ['accumulation', 'slow']
    """
    if symptom is not None and symptom not in SYMPTOMS:
        raise InputError(f"There is no symptom {symptom!r}. Use one of: {', '.join(SYMPTOMS)}.")
    found = [
        _dataset(planned, dataset_size),
        _accumulation(planned),
        None if gradients_counted else _gradients(planned, largest),
        _memory(planned, largest, is_slow=symptom == "slow"),
        _unstable(planned) if symptom == "unstable" else None,
        _out_of_memory(planned, largest) if symptom == "oom" else None,
    ]
    return tuple(advice for advice in found if advice is not None)


def _accumulation(planned: BatchPlan) -> Advice | None:
    if planned.ranks > 1 or planned.accumulation == 1:
        return None
    without = gives(planned.microbatch)
    return Advice(
        topic="accumulation",
        text=(
            f"On one device accumulation buys no speed: {planned.accumulation:,} microbatches take as long as "
            f"{planned.accumulation:,} updates of {planned.microbatch:,}. Unless a recipe asks for "
            f"{planned.effective:,}, use effective batch {without.effective:,} with the rate scaled down to it "
            "(Marek et al., 2025)."
        ),
        plan=without,
    )


def _gradients(planned: BatchPlan, largest: int | None) -> Advice | None:
    if largest is None or planned.accumulation == 1:
        return None
    return Advice(
        topic="gradients",
        text=(
            f"Accumulation holds the gradients while the next microbatch runs: {largest:,} must have been found with "
            "them held, e.g. with zero_grad(set_to_none=False) in the step that was probed."
        ),
    )


def _dataset(planned: BatchPlan, dataset_size: int | None) -> Advice | None:
    if dataset_size is None:
        return None
    check_count("The dataset's size", dataset_size)
    num_steps, left_over = divmod(dataset_size, planned.effective)
    if num_steps == 0:
        return Advice(
            topic="dataset",
            text=(
                f"Effective batch {planned.effective:,} is beyond the dataset of {dataset_size:,} samples: not one "
                f"whole step an epoch. Use at most {dataset_size:,}."
            ),
        )
    return Advice(
        topic="dataset",
        text=f"{dataset_size:,} samples make {num_steps:,} steps an epoch; {left_over:,} are left for a shorter one.",
    )


def _memory(planned: BatchPlan, largest: int | None, *, is_slow: bool) -> Advice | None:
    """Tell of a microbatch that does not fit, or leaves memory to spare; where training is slow, of any."""
    if largest is None:
        text = "Whether there is memory to spare is not known. Pass --largest, what brim find answers."
        return Advice(topic="slow", text=text) if is_slow else None
    better = plan(planned.effective, largest=largest, ranks=planned.ranks)
    if planned.microbatch > largest:
        return Advice(
            topic="memory",
            text=(
                f"Microbatch {planned.microbatch:,} does not fit, {largest:,} does. The same effective batch: "
                f"{describe(better.microbatches)} on each rank."
            ),
            plan=better,
        )
    if better.accumulation < planned.accumulation:
        return Advice(
            topic="slow",
            text=(
                f"There is memory to spare: {largest:,} fit, {planned.microbatch:,} are used. Raise the microbatch and "
                f"lower the accumulation from {planned.accumulation:,} to {better.accumulation:,}: "
                f"{describe(better.microbatches)} on each rank, the same effective batch."
            ),
            plan=better,
        )
    if not is_slow:
        return None
    if planned.accumulation == 1:
        return Advice(
            topic="slow",
            text=(
                f"One microbatch a step already, and {largest:,} fit: accumulation is not what makes it slow. Perhaps "
                "the GPU waits for data: give the loader more workers (--dataloader_num_workers). A larger effective "
                "batch would use the memory to spare, with the learning rate scaled to it (--lr)."
            ),
        )
    return Advice(
        topic="slow",
        text=(
            f"{planned.accumulation:,} microbatches are the fewest that fit: to be faster, make room for larger ones "
            "(the ladder), or use more ranks."
        ),
    )


def _out_of_memory(planned: BatchPlan, largest: int | None) -> Advice | None:
    if largest is not None and planned.microbatch > largest:
        return None  # said already, with what fits
    if planned.microbatch == 1:
        text = "One sample does not fit: less has to be held. brim plan --model or --workload shows what saves memory."
        return Advice(topic="oom", text=text)
    halved = plan(planned.effective, largest=planned.microbatch // 2, ranks=planned.ranks)
    return Advice(
        topic="oom",
        text=(
            f"Half of the microbatch holds about half of the activations: {describe(halved.microbatches)} on each "
            "rank, the same effective batch. brim find says what fits."
        ),
        plan=halved,
    )


def _unstable(planned: BatchPlan) -> Advice:
    doubled = BatchPlan(effective=2 * planned.effective, accumulation=2 * planned.accumulation, ranks=planned.ranks)
    return Advice(
        topic="unstable",
        text=(
            f"Noisy gradients call for a larger effective batch, which accumulation gives without more memory: "
            f"{doubled.accumulation:,} microbatches a step make {doubled.effective:,}."
        ),
        plan=doubled,
    )
