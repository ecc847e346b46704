"""Powers of two up to the cap, then bisection if asked."""

from __future__ import annotations

from dataclasses import dataclass

from brim.searching.known import Known


@dataclass(frozen=True, slots=True)
class Doubling:
    """Double while it fits; halve while nothing has fitted; bisect what is left if `refine`."""

    refine: bool = False
    name: str = "doubling"

    def propose(self, known: Known) -> int | None:
        """Return the next power of two, or a size between the last that fitted and the first that did not."""
        bounds, low = known.bounds, known.largest_fit
        if not known.trials:
            return bounds.smallest
        if known.smallest_oom is not None:
            return known.middle if self.refine or low is None else None
        assert low is not None
        if low == bounds.largest:
            return None
        doubled = low * 2
        # The cap itself is only worth a probe when the answer is wanted exactly.
        return bounds.clamp(doubled) if doubled <= bounds.largest or self.refine else None
