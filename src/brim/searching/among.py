"""Only some sizes are of use: another strategy proposes, the nearest of them is taken."""

from __future__ import annotations

from dataclasses import dataclass

from brim.searching.known import Known
from brim.searching.search import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Among:
    """Try only sizes of a list, such as those that divide an effective batch.

    Attributes:
        sizes: What may be tried, in rising order.
        inner: Proposes any size.

    >>> from brim.searching.bounds import Bounds
    >>> from brim.searching.doubling import Doubling
    >>> from brim.searching.search import Search
    >>> search = Search(Among(sizes=divisors(48), inner=Doubling(refine=True)), Bounds(cap=48), confirm=False)
    >>> while (ask := search.ask()) is not None:
    ...     search.tell(ask.microbatch, fits=ask.microbatch <= 20)
    >>> search.answer
    16
    """

    sizes: tuple[int, ...]
    inner: Strategy

    @property
    def name(self) -> str:
        """The name of the strategy that proposes."""
        return self.inner.name

    def propose(self, known: Known) -> int | None:
        """Return the largest useful size up to the proposal that could still be the answer."""
        low, high = known.largest_fit or 0, known.smallest_oom
        possible = [size for size in self.sizes if size > low and (high is None or size < high)]
        if not possible:
            return None
        proposed = self.inner.propose(known)
        if proposed is None:
            # The inner strategy is content with what is near the limit, but the next of these sizes is further away.
            return None if low else possible[0]
        return max((size for size in possible if size <= proposed), default=possible[0])


def divisors(number: int) -> tuple[int, ...]:
    """Return what divides a number, in rising order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))
