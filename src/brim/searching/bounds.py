"""The bounds that hold for every strategy."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import InputError

# Where a search without a cap ends, in samples. Memory that has not run out by then does not depend on the batch.
LARGEST_MICROBATCH = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which microbatches may be tried, and how many of them.

    Attributes:
        cap: The largest microbatch that may be tried.
        start: The first microbatch to try, or None to let the strategy choose.
        multiple_of: Every microbatch tried is a multiple of this.
        tries: How many microbatches may be tried, the confirmation aside; None for no limit.
        seconds: How long the search may take; None for no limit.
    """

    cap: int = LARGEST_MICROBATCH
    start: int | None = None
    multiple_of: int = 1
    tries: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("cap", "start", "multiple_of", "tries"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(f"{name} is {value!r}. Use a whole number of at least 1.")
        if self.multiple_of > self.cap:
            raise InputError(
                f"multiple_of {self.multiple_of} is above the cap {self.cap}: no microbatch is left. "
                f"Use a cap of at least {self.multiple_of}."
            )
        if self.start is not None and self.start > self.cap:
            raise InputError(f"start {self.start} is above the cap {self.cap}. Use a start of at most {self.cap}.")
        if self.seconds is not None and self.seconds <= 0:
            raise InputError(f"The time limit is {self.seconds} s. Use a time above zero.")

    @property
    def smallest(self) -> int:
        """The smallest microbatch that may be tried."""
        return self.multiple_of

    @property
    def largest(self) -> int:
        """The largest microbatch that may be tried."""
        return self.cap // self.multiple_of * self.multiple_of

    def clamp(self, size: float) -> int:
        """Return the nearest allowed microbatch that is not above `size`, but at least the smallest.

        >>> Bounds(cap=64, multiple_of=8).clamp(30.5), Bounds(cap=64).clamp(100)
        (24, 64)
        """
        within = min(int(size), self.cap) if size < self.cap else self.cap
        return max(self.smallest, within // self.multiple_of * self.multiple_of)
