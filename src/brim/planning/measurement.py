"""From one measured point to a batch: a line, a safety, a power of two, and the way down should it not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brim.errors import InputError
from brim.planning.batch_plan import check_count
from brim.units import format_gigabytes, parse_bytes

# What the line's batch is divided by, because memory seldom grows as slowly as one small point makes it look: most of
# a small measurement is what the job holds anyway, and kernels change with the size.
# Source: 20 is the rule this started from (512 samples in 0.1 GB became 8,192); the others are choices between it and
# trusting the line up to a fifth.
PROFILES = {"conservative": 20.0, "balanced": 5.0, "aggressive": 1.25}
# From this many times the measured batch on, a measurement says little.
FAR = 8
# After an out-of-memory the batch is halved this often before memory is bought with time.
NUM_HALVINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A batch and the memory it used.

    >>> Measured.parse("512:0.1GB")
    Measured(batch=512, used_bytes=100000000)
    """

    batch: int
    used_bytes: int

    def __post_init__(self) -> None:
        check_count("A measured batch", self.batch)
        check_count("The memory of a measured batch, in bytes,", self.used_bytes)

    @classmethod
    def parse(cls, text: str) -> Measured:
        """Read `BATCH:MEMORY`."""
        batch, _, memory = text.partition(":")
        if not batch.strip().isdecimal() or not memory.strip():
            raise InputError(f"{text!r} is no measurement. Write BATCH:MEMORY, e.g. --measured 512:0.1GB.")
        try:
            used_bytes = parse_bytes(memory.strip())
        except InputError as error:
            if memory.strip().replace(".", "", 1).isdecimal():
                raise InputError(f"{text!r} has no unit. Write for example --measured {batch}:{memory}GB.") from None
            raise error
        return cls(batch=int(batch), used_bytes=used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How far to trust the line.

    Attributes:
        safety: What the line's batch is divided by.
        safe: The batch after that; never below one that was measured to fit.
        batch: The power of two at or below it.
        line_bytes: What the batch uses where memory grows as the line says.
        worst_bytes: What it uses where memory grows `safety` times as fast.
    """

    name: str
    safety: float
    safe: int
    batch: int
    line_bytes: int
    worst_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """A batch for a target, from what was measured.

    Attributes:
        target_bytes: What the job may use.
        memory_bytes: What the device has.
        linear: The batch at which the line meets the target.
        chosen: The profile that was asked for.
        profiles: All of them, and the chosen one.
        fixed_bytes: What the line holds at batch 0; 0 with a single point.
    """

    measured: tuple[Measured, ...]
    target_bytes: int
    memory_bytes: int
    linear: int
    fixed_bytes: int
    chosen: Profile
    profiles: tuple[Profile, ...]

    @property
    def factor(self) -> float:
        """How many times the largest measured batch the chosen one is."""
        return self.chosen.batch / self.measured[-1].batch

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why not to trust the answer before it was probed."""
        warnings = []
        if self.factor > FAR:
            warnings.append(
                f"{self.chosen.batch:,} is {self.factor:,.0f} times the batch that was measured, and above {FAR} times "
                f"a line is a guess. Probe it first: brim find WORKLOAD --start {self.chosen.batch}"
            )
        if len(self.measured) == 1 and self.linear < self.measured[0].batch:
            warnings.append(
                "One point cannot say what is held before the first sample, so a smaller batch may use more than the "
                f"line says. Measure a second: --measured {max(1, self.measured[0].batch // 2)}:MEMORY"
            )
        return tuple(warnings)


def extrapolate(
    measured: Measured | Sequence[Measured],
    *,
    target_bytes: int,
    memory_bytes: int | None = None,
    profile: str = "conservative",
    safety: float | None = None,
) -> Extrapolation:
    """Return the batch that should use `target_bytes`, made safe.

    Args:
        measured: One point, whose memory is taken to grow with the batch from nothing, or several to fit a line to.
        target_bytes: What the job may use.
        memory_bytes: What the device has; None where the target is all that is known.
        profile: `conservative`, `balanced` or `aggressive`.
        safety: Instead of the profile's: what the line's batch is divided by.

    >>> found = extrapolate(Measured.parse("512:0.1GB"), target_bytes=35 * 10**9, memory_bytes=80 * 10**9)
    >>> found.linear, found.chosen.safe, found.chosen.batch
    (179200, 8960, 8192)
    """
    points = tuple(sorted([measured] if isinstance(measured, Measured) else measured, key=lambda each: each.batch))
    if memory_bytes is not None:
        _check_used(points, memory_bytes)
    memory_bytes = memory_bytes or target_bytes
    _check(points, target_bytes, memory_bytes, profile, safety)
    fixed_bytes, bytes_per_sample = _line(points)
    linear = math.floor(round((target_bytes - fixed_bytes) / bytes_per_sample, 6))
    if linear < 1:
        raise InputError(
            f"The line holds {format_gigabytes(fixed_bytes)} before the first sample and each takes "
            f"{format_gigabytes(bytes_per_sample)}: not one fits into {format_gigabytes(target_bytes)}. "
            "Use a larger target, or see what would save memory: brim plan --workload."
        )
    known = max((each.batch for each in points if each.used_bytes <= target_bytes), default=1)

    def make(name: str, divisor: float) -> Profile:
        safe = max(known, math.floor(linear / divisor))
        batch = 2 ** int(math.log2(safe))
        grown = batch * bytes_per_sample
        return Profile(
            name=name,
            safety=divisor,
            safe=safe,
            batch=batch,
            line_bytes=round(fixed_bytes + grown),
            # What was measured does not grow any faster.
            worst_bytes=round(fixed_bytes + (grown if batch <= known else grown * divisor)),
        )

    profiles = tuple(make(name, divisor) for name, divisor in PROFILES.items())
    chosen = make("own", safety) if safety is not None else profiles[list(PROFILES).index(profile)]
    return Extrapolation(
        measured=points,
        target_bytes=target_bytes,
        memory_bytes=memory_bytes,
        linear=linear,
        fixed_bytes=round(fixed_bytes),
        chosen=chosen,
        profiles=profiles,
    )


def step_down(batch: int, *, num_halvings: int = NUM_HALVINGS) -> tuple[int, ...]:
    """Return the sizes to try in turn after an out-of-memory; after the last, switch checkpointing on.

    >>> step_down(8192)
    (8192, 4096, 2048, 1024)
    >>> step_down(3)
    (3, 1)
    """
    check_count("batch", batch)
    return tuple(batch >> shift for shift in range(num_halvings + 1) if batch >> shift)


def _line(points: Sequence[Measured]) -> tuple[float, float]:
    """Return the fixed bytes and the bytes per sample by least squares; through zero where one point is all."""
    mean_batch = sum(each.batch for each in points) / len(points)
    mean_bytes = sum(each.used_bytes for each in points) / len(points)
    if len(points) > 1:
        spread = sum((each.batch - mean_batch) ** 2 for each in points)
        slope = sum((each.batch - mean_batch) * (each.used_bytes - mean_bytes) for each in points) / spread
        if slope <= 0:
            raise InputError("Memory does not grow with the batch in these measurements. Measure sizes further apart.")
        if slope * mean_batch <= mean_bytes:
            return mean_bytes - slope * mean_batch, slope
    return 0.0, sum(each.batch * each.used_bytes for each in points) / sum(each.batch**2 for each in points)


def _check_used(points: Sequence[Measured], memory_bytes: int) -> None:
    for point in points:
        if point.used_bytes > memory_bytes:
            raise InputError(
                f"Batch {point.batch:,} is said to have used {format_gigabytes(point.used_bytes)} of "
                f"{format_gigabytes(memory_bytes)}. Check the two sizes."
            )


def _check(
    points: Sequence[Measured], target_bytes: int, memory_bytes: int, profile: str, safety: float | None
) -> None:
    if not points:
        raise InputError("There is no measurement. Give at least one, e.g. --measured 512:0.1GB.")
    if len({each.batch for each in points}) < len(points):
        raise InputError("A batch was measured twice. Give every batch once.")
    check_count("target, in bytes,", target_bytes)
    if target_bytes > memory_bytes:
        raise InputError(
            f"The target {format_gigabytes(target_bytes)} is above the memory of {format_gigabytes(memory_bytes)}. "
            "Use a target below it."
        )
    if profile not in PROFILES:
        raise InputError(f"There is no profile {profile!r}. Use one of: {', '.join(PROFILES)}.")
    if safety is not None and not (math.isfinite(safety) and safety >= 1):
        raise InputError(f"safety is {safety!r}. Use a number of at least 1, e.g. 20.")
