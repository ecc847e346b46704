"""CUDA's allocator over traced sizes: what each needs on a GPU, which fits, and the largest that does."""

from __future__ import annotations

from brim.devices.catalog import Gpu
from brim.searching.curve import curve_through
from brim.tracing.allocator import AllocatorFullError, AllocatorPeaks, replay
from brim.tracing.bracket import Bracket, close_in, halve
from brim.tracing.overheads import workspaces
from brim.tracing.scratch import processors_of
from brim.tracing.ways import Traced

# How many sizes just below an answer must fit as well.
_NEIGHBOURS = 4
# What a size that does not fit is given to see what it takes, as ratios to the least it can take.
_ROOMS = (1.0, 1.005, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)
# How many sizes above an answer are tried, and what they are a multiple of where there is room: what people choose.
_NUM_ABOVE = 8
_ROUND_SIZE = 8
# How far below the answer another size must lie, as a ratio, for the slope between them to be no accident.
_APART = 1.05
# From when on a bracket counts as open, as a ratio of its ends.
_OPEN = 1.01


class Replays:
    """What the allocator makes of the traced sizes of one case.

    Args:
        traced: The sizes.
        gpu: The GPU, whose libraries take workspaces as well.
        expandable: Whether the allocator's segments expand.
        cap: The largest size to look for.
    """

    def __init__(self, traced: Traced, *, gpu: Gpu, expandable: bool, cap: int) -> None:
        self._traced = traced
        self._expandable = expandable
        self._cap = cap
        self._processors = processors_of(gpu)
        self._gpu = gpu
        # What the line says of a size holds until that is traced, or the line dropped.
        self._peaks: dict[tuple[int, bool, int | None], AllocatorPeaks | None] = {}
        # Of sizes with room enough: where nothing was given back, any capacity that holds it leads to the same.
        self._unreleased: dict[tuple[int, bool], AllocatorPeaks] = {}

    def peaks(self, microbatch: int, capacity_bytes: int | None) -> AllocatorPeaks | None:
        """Return the allocator's peaks at a microbatch; None where that does not fit."""
        size = (microbatch, self._traced.is_on_line(microbatch))
        key = (*size, capacity_bytes)
        if key not in self._peaks:
            peaks = self._unreleased.get(size)
            if peaks is None or (capacity_bytes is not None and peaks.reserved_bytes > capacity_bytes):
                peaks = self._replay(microbatch, capacity_bytes)
            if peaks is not None and not peaks.num_releases:
                self._unreleased[size] = peaks
            self._peaks[key] = peaks
        return self._peaks[key]

    def _replay(self, microbatch: int, capacity_bytes: int | None) -> AllocatorPeaks | None:
        try:
            return replay(
                self._traced.events(microbatch, self._processors),
                workspaces=workspaces(self._traced.blas_starts(microbatch), self._gpu),
                repetition=self._traced.repetition(microbatch),
                cache_drops=self._traced.cache_drops(microbatch),
                capacity_bytes=capacity_bytes,
                expandable=self._expandable,
            )
        except AllocatorFullError:
            return None

    def fits(self, microbatch: int, capacity_bytes: int) -> bool:
        """Return whether a microbatch fits."""
        return self.peaks(microbatch, capacity_bytes) is not None

    def with_room(self, microbatch: int, capacity_bytes: int) -> AllocatorPeaks:
        """Return the peaks of a microbatch that does not fit, with the least of a few larger capacities that do."""
        least_bytes = max(self._without_limit(microbatch).allocated_bytes, capacity_bytes + 1)
        tried = (self.peaks(microbatch, int(least_bytes * room)) for room in _ROOMS)
        return next((peaks for peaks in tried if peaks is not None), self._without_limit(microbatch))

    def filled_at(self, above: int, capacity_bytes: int) -> int:
        """Return the size from `above` on at which tensors alone fill the capacity, on a line through two sizes."""
        held = [self._without_limit(size).allocated_bytes for size in (above, 2 * above)]
        per_sample = (held[1] - held[0]) / above
        more = (capacity_bytes - held[0]) / per_sample if per_sample > 0 else 0
        return min(self._cap, above + max(0, int(more)))

    def needed_bytes(self, microbatch: int, capacity_bytes: int) -> int:
        """Return what a microbatch reserves, or, where cached memory has to be given back, what its tensors take.

        It is more than the capacity just where the microbatch does not fit.
        """
        without_limit = self._without_limit(microbatch)
        if not self.fits(microbatch, capacity_bytes):
            return max(without_limit.allocated_bytes, capacity_bytes + 1)
        is_tight = without_limit.reserved_bytes > capacity_bytes
        return without_limit.allocated_bytes if is_tight else without_limit.reserved_bytes

    def search(self, capacity_bytes: int, *, start: int | None = None) -> Bracket:
        """Return where sizes stop to fit into the capacity, off the line beginning with `start`."""
        if not self._traced.is_exact:
            return close_in(
                lambda size: self.needed_bytes(size, capacity_bytes),
                known=self._known(capacity_bytes),
                capacity_bytes=capacity_bytes,
                cap=lambda: min(self._cap, self._traced.most_affordable),
                start=start,
            )
        found = self._halve(capacity_bytes, cap=self._cap)
        # The allocator may serve one size by luck and not those just below it: an answer has neighbours that fit.
        while unsteady := self._unsteady(found.largest, capacity_bytes):
            found = self._halve(capacity_bytes, cap=unsteady - 1)
            found = Bracket(largest=found.largest, above=found.above or unsteady)
        return found

    def _halve(self, capacity_bytes: int, *, cap: int) -> Bracket:
        return halve(
            lambda size: self.fits(size, capacity_bytes),
            cap=cap,
            cannot=lambda size: self._traced.peak_bytes(size, self._processors) > capacity_bytes,
        )

    def bounds(self, found: Bracket, capacity_bytes: int, doubt_bytes: int) -> tuple[int, int]:
        """Return the largest sizes for less and for more capacity, given what was found for just as much.

        On the line both are searched. Off it a bound is where tensors hold as much less, or more, than at the largest
        size, on straight lines between the sizes that were traced: bounds are not worth a trace each. Where one side of
        the bracket stays as it is, memory jumps there, and the bound is the answer itself.
        """
        largest, above = found.largest, found.above
        capacities = capacity_bytes - doubt_bytes, capacity_bytes + doubt_bytes
        if self._traced.is_exact or not largest:
            least, most = (self.search(each).largest for each in capacities)
            return least, most
        held = {size: self._without_limit(size).allocated_bytes for size in self._traced.sizes}
        # The slope beyond the sizes is no accident of two that lie close together.
        apart = {size: each for size, each in held.items() if size <= largest / _APART or size == largest}
        least, most = (
            curve_through(apart).size_at(held[largest] * each / capacity_bytes, cap=self._cap) for each in capacities
        )
        if self.fits(largest, capacities[0]):
            least = largest
        if above is None or not self.fits(above, capacities[1]):
            most = largest
        # Where the bracket stayed open, the largest may be anywhere in it.
        return least, most if above is None or above <= largest * _OPEN else max(most, above - 1)

    def fits_above(self, above: int, most: int, capacity_bytes: int) -> int | None:
        """Return the largest of a few sizes above one that does not fit, and up to `most`, that does; None without."""
        stride = max(1, (most - above) // _NUM_ABOVE)
        stride = stride // _ROUND_SIZE * _ROUND_SIZE or stride
        sizes = range(most // stride * stride, above, -stride)
        return next((size for size in sizes if self.fits(size, capacity_bytes)), None)

    def unfit_below(self, largest: int, least: int, capacity_bytes: int) -> int | None:
        """Return the largest of a few sizes from `least` up to one that fits which does not; None without."""
        stride = max(1, (largest - least) // _NUM_ABOVE)
        sizes = range(largest - stride, max(least, 1) - 1, -stride)
        return next((size for size in sizes if not self.fits(size, capacity_bytes)), None)

    def _without_limit(self, microbatch: int) -> AllocatorPeaks:
        peaks = self.peaks(microbatch, None)
        assert peaks is not None
        return peaks

    def _known(self, capacity_bytes: int) -> dict[int, int]:
        sizes = [size for size in self._traced.sizes if size <= self._cap]
        return {size: self.needed_bytes(size, capacity_bytes) for size in sizes}

    def _unsteady(self, largest: int, capacity_bytes: int) -> int | None:
        near = range(max(1, largest - _NEIGHBOURS), largest)
        return next((size for size in near if not self.fits(size, capacity_bytes)), None)
