"""What traces say about one case at any microbatch: two are traced, the rest lie on the line through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import TraceError
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.tracing import cudnn
from brim.tracing.attention import has_flash_attention
from brim.tracing.branches import DeadEndError, Ways
from brim.tracing.chance import OTHER_SEEDS
from brim.tracing.leaks import check_leak, held_by_steps
from brim.tracing.line import RecordLine, line_through
from brim.tracing.observed import Observed
from brim.tracing.record import Phase, Record, most_live
from brim.tracing.repetition import Repetition, repetition_of
from brim.tracing.scratch import Processors
from brim.tracing.traces import Trace, trace
from brim.workload import Workload

# The sizes traced first: neither is 1, which code likes to treat apart, and both are cheap.
_FIRST_SIZES = (4, 6)
# Where to look again before memory is said not to grow: a batch may be padded to a multiple of many samples.
_SECOND_LOOK = (64, 1024)
# A guess beyond this many samples is not traced before this many are: a step may take its batch apart, piece by piece.
_FAR = 4096
# How many operations a trace may have where they grow with the microbatch; about 5,000 take a second.
_MOST_OPERATIONS = 50_000
# How many make a trace long, so that it is not run again with several draws of random numbers.
_LONG_OPERATIONS = 10_000
# From when on operations grow with the microbatch, as a ratio to those of the smallest.
_GROWN = 2
# How many steps are traced where an optimizer does not step in each: gradients of so many batches may be accumulated.
_ACCUMULATING_STEPS = (8, 64)
# Where something of the first step is held after it, the second needs room beside that.
_STEPS_WITH_STATE = 2


class TracedSizes:
    """The records of one case on one kind of GPU, where branches on values go in given ways.

    Raises:
        TraceError: The workload cannot run on fake tensors, ignores the size of its batch, or keeps memory.
    """

    def __init__(
        self,
        workload_class: type[Workload],
        case: Case,
        *,
        capability: tuple[int, int],
        has_fused_attention: bool = True,
        selects_least: bool = False,
        ways: Ways = (),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.workload_class = workload_class
        self.case = case
        self._capability = capability
        self._has_fused_attention = has_fused_attention
        self._selects_least = selects_least
        self._ways = ways
        self._tell = tell
        self._traces: dict[int, Trace] = {}
        self._repetitions: dict[int, Repetition | None] = {}
        self._peaks: dict[tuple[int, Processors | None], int] = {}
        self._steps: int | None = None
        self._single_failure: str | None = None
        low, high = _FIRST_SIZES
        self._seed = 0
        self._is_random = self._trace(low).draws and self._draw_again(low)
        self._see_updates(low)
        if len(self._trace(low).held_bytes) < _STEPS_WITH_STATE and held_by_steps(self._trace(low).record):
            self._steps = _STEPS_WITH_STATE
            self._traces.clear()
        first, second = self._trace(low), self._trace(high)
        self._line: RecordLine | None = None
        if _asked_bytes(first.record) < _asked_bytes(second.record):
            self._line = line_through(low, first.record, high, second.record)
        elif all(self._are_same(high, size) for size in _SECOND_LOOK):
            raise _no_growth(low, _SECOND_LOOK[-1], first.peak_bytes)
        self._kept_bytes = check_leak(workload_class, case, {low: first, high: second}, capability)

    @property
    def branches(self) -> tuple[str, ...]:
        """Where branches on values stand that could have gone another way."""
        return self._traces[self.sizes[0]].branches

    @property
    def first_events(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """What the allocator is asked for at the sizes traced first."""
        return tuple(self.events(size) for size in _FIRST_SIZES)

    @property
    def is_exact(self) -> bool:
        """Whether sizes between traces lie on a line."""
        return self._line is not None

    def is_on_line(self, microbatch: int) -> bool:
        """Return whether what is said of a microbatch is the line's, not its own trace's."""
        return self._line is not None and microbatch not in self._traces

    @property
    def num_operations(self) -> int:
        """How many operations the first trace saw."""
        return self._traces[_FIRST_SIZES[0]].num_operations

    @property
    def has_backward(self) -> bool:
        """Whether a step runs a backward pass."""
        storages = self._traces[self.sizes[0]].record.storages
        return any(storage.phase is Phase.BACKWARD for storage in storages)

    def observed(self) -> Observed:
        """Return what the traces so far show beside memory."""
        traces, smallest = self._traces.values(), self._traces[self.sizes[0]]
        done, is_training = "train" if self.has_backward else "eval", self.workload_class.kind == "train"
        return Observed(
            selects_all=any(traced.selects_all for traced in traces),
            records_graph=not is_training and not self.has_backward and smallest.records_graph,
            has_recurrence=any(traced.has_recurrence for traced in traces),
            token_stride=max(traced.token_stride for traced in traces),
            keeps_batch=any(traced.keeps_batch for traced in traces),
            is_random=self._is_random,
            is_waiting=self._is_waiting(),
            is_unplaced=any(traced.is_unplaced for traced in traces),
            other_kind=None if is_training == self.has_backward else done,
            unread=smallest.unread,
            missed=smallest.missed,
            single_failure=self._single_failure,
            kept_bytes=self._kept_bytes,
        )

    def with_least_selected(self) -> TracedSizes | None:
        """Return the same where steps select one value, and hardly less is possible; None if that fails."""
        try:
            return TracedSizes(
                self.workload_class,
                self.case,
                capability=self._capability,
                has_fused_attention=self._has_fused_attention,
                selects_least=True,
                ways=self._ways,
                tell=self._tell,
            )
        except TraceError:
            return None

    def holds_for(self, gpu: Gpu) -> bool:
        """Return whether another GPU would trace the same."""
        if gpu.has_fused_attention != self._has_fused_attention:
            return False
        if any(traced.asks_gpu for traced in self._traces.values()):
            return gpu.capability == self._capability
        return _kernels(gpu.capability) == _kernels(self._capability)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The microbatches that were traced."""
        return tuple(sorted(self._traces))

    @property
    def most_affordable(self) -> int:
        """The largest microbatch whose trace takes not much longer than others; operations may grow with it."""
        small, large = self._traces[self.sizes[0]], self._traces[self.sizes[-1]]
        if large.num_operations < _GROWN * small.num_operations:
            return LARGEST_MICROBATCH
        per_sample = (large.num_operations - small.num_operations) / (large.microbatch - small.microbatch)
        more = max(0, _MOST_OPERATIONS - large.num_operations) / per_sample
        return min(LARGEST_MICROBATCH, large.microbatch + int(more))

    def record(self, microbatch: int) -> Record:
        """Return every storage of a microbatch with its lifetime."""
        if self._line is None or not self.is_on_line(microbatch):
            return self._trace(microbatch).record
        return self._line.at(microbatch)

    def events(self, microbatch: int, processors: Processors | None = None) -> tuple[tuple[int, int], ...]:
        """Return what the allocator is asked for, without the rest of a record, which a search does not need."""
        if self._line is None or not self.is_on_line(microbatch):
            return self._trace(microbatch).record.events_on(processors)
        return self._line.events_at(microbatch, processors)

    def peak_bytes(self, microbatch: int, processors: Processors | None = None) -> int:
        """Return the most bytes that are live at once: the least that a microbatch takes."""
        key = microbatch, processors
        if key not in self._peaks:
            self._peaks[key] = most_live(self.events(microbatch, processors))
        return self._peaks[key]

    def cache_drops(self, microbatch: int) -> frozenset[int]:
        """Return which of those events are moments at which the cache is given back."""
        return self._trace(self._like(microbatch)).record.cache_drops

    def blas_starts(self, microbatch: int) -> tuple[int, ...]:
        """Return which of those events are moments at which a thread first uses cuBLAS."""
        return self._trace(self._like(microbatch)).record.blas_starts

    def repetition(self, microbatch: int) -> Repetition | None:
        """Return how the last step of those events is repeated."""
        like = self._like(microbatch)
        if like not in self._repetitions:
            self._repetitions[like] = repetition_of(self._trace(like).record)
        return self._repetitions[like]

    def confirm(self, microbatch: int) -> bool:
        """Trace a microbatch; where it does not lie on the line, return False and trust the line no longer.

        One that takes too long to trace, as where samples are loaded one by one, is trusted where the largest that does
        not is on the line.
        """
        if microbatch in self._traces:
            return True
        if self._line is None:
            self._trace(microbatch)
            return True
        if microbatch > _FAR and not self.confirm(_FAR):
            return False
        if microbatch > self.most_affordable:
            self._check_dataset(microbatch)
            microbatch = self.most_affordable
        if microbatch in self._traces:
            return True
        expected = self._line.events_at(microbatch)
        if self._trace(microbatch).record.events == expected:
            return True
        if microbatch > 1:  # one sample alone is often treated apart, which says nothing about more
            self._line = None
        return False

    def runs_alone(self) -> bool:
        """Return whether one sample alone runs, which code likes to treat apart, and remember why not."""
        try:
            self.confirm(1)
        except TraceError as error:
            self._single_failure = str(error)
        return self._single_failure is None

    def check_growth(self, largest: int) -> None:
        """Refuse a batch that stops growing: half of the largest asks for as much, or the step holds as much of it.

        One that ends with its dataset asks for as much, one whose samples are run one by one holds as much.
        """
        half = largest // 2
        if self.is_exact or half <= _FIRST_SIZES[-1]:
            return
        held_bytes, most_bytes = (_held_bytes(self._trace(size).record) for size in (half, largest))
        if self._are_same(half, largest) or held_bytes >= most_bytes:
            raise _no_growth(half, largest, self._trace(largest).peak_bytes)

    def _draw_again(self, microbatch: int) -> bool:
        """Trace with other random numbers, stay with those that take most, and return whether they matter."""
        drawn = {self._seed: self._trace(microbatch)}
        is_long = drawn[self._seed].num_operations > _LONG_OPERATIONS
        for self._seed in OTHER_SEEDS[:1] if is_long else OTHER_SEEDS:
            self._traces.clear()
            drawn[self._seed] = self._trace(microbatch)
        self._seed = max(drawn, key=lambda seed: _asked_bytes(drawn[seed].record))
        self._traces = {microbatch: drawn[self._seed]}
        return len({traced.record.events for traced in drawn.values()}) > 1

    def _see_updates(self, microbatch: int) -> None:
        """Trace as many steps as it takes to see every optimizer step twice: some step after several batches."""
        for steps in _ACCUMULATING_STEPS:
            traced = self._trace(microbatch)
            num_steps = len(traced.held_bytes)
            per_step = traced.num_operations // num_steps
            if not self._is_waiting() or per_step * steps > _MOST_OPERATIONS:
                return
            self._steps = steps
            self._traces.clear()

    def _is_waiting(self) -> bool:
        """Whether an optimizer of a training job was not seen to step twice."""
        traced = next(iter(self._traces.values()), None)
        if traced is None or traced.num_updates is None or self.workload_class.kind != "train":
            return False
        return traced.num_updates < _STEPS_WITH_STATE

    def _like(self, microbatch: int) -> int:
        """Return a microbatch that is traced and has the same storages, of whatever size."""
        return microbatch if self._line is None or not self.is_on_line(microbatch) else self._line.low

    def _are_same(self, small: int, large: int) -> bool:
        """Return whether two sizes ask for the same memory."""
        return _asked_bytes(self._trace(small).record) >= _asked_bytes(self._trace(large).record)

    def _trace(self, microbatch: int) -> Trace:
        if microbatch not in self._traces:
            self._traces[microbatch] = trace(
                self.workload_class,
                self.case,
                microbatch,
                steps=self._steps,
                seed=self._seed,
                ways=self._ways,
                capability=self._capability,
                has_fused_attention=self._has_fused_attention,
                selects_least=self._selects_least,
                tell=partial(self._tell_of, microbatch),
            )
            self._check_batch(microbatch)
        return self._traces[microbatch]

    def _check_batch(self, microbatch: int) -> None:
        """Refuse a batch of fewer samples than were asked for, where the first sizes show how many there should be."""
        low, high = _FIRST_SIZES
        if microbatch in _FIRST_SIZES or low not in self._traces or high not in self._traces:
            return
        rows = zip(*(self._traces[size].batch_rows for size in (low, high, microbatch)), strict=False)
        for at_low, at_high, here in rows:
            if at_low * high == at_high * low and here * low < at_low * microbatch:
                raise _ends(here * low // at_low, microbatch)

    def _check_dataset(self, microbatch: int) -> None:
        """Refuse more samples than the loader has that `batch` takes one batch from, if that is all it returns."""
        low, high = _FIRST_SIZES
        num_samples = self._traces[low].num_samples
        rows = zip(self._traces[low].batch_rows, self._traces[high].batch_rows, strict=False)
        is_whole = all(row == (low, high) for row in rows)
        if num_samples is not None and is_whole and microbatch > num_samples:
            raise _ends(num_samples, microbatch)

    def _tell_of(self, microbatch: int, num_operations: int) -> None:
        if self._tell is not None:
            self._tell(f"tracing {self.case} at {microbatch:,}: {num_operations:,} operations so far")


def _kernels(capability: tuple[int, int]) -> tuple[bool, bool]:
    """Return what differs between GPUs in a trace."""
    return has_flash_attention(capability), cudnn.is_known(capability)


def _asked_bytes(record: Record) -> int:
    return sum(size for _, size in record.events)


def _held_bytes(record: Record) -> int:
    """Return the most that batch and forward pass hold at once, whatever else hides it."""
    passing = (Phase.BATCH, Phase.FORWARD)
    return most_live(event for event in record.events if record.storages[event[0]].phase in passing)


def _ends(num_samples: int, microbatch: int) -> TraceError:
    return TraceError(
        f"`batch` returns {num_samples:,} samples where it is asked for {microbatch:,}, as at the end of a dataset. "
        f"Make it return as many as it is asked for, or search up to there with --cap {num_samples} "
        f"(cap={num_samples} in Python)."
    )


def _no_growth(small: int, large: int, peak_bytes: int) -> DeadEndError:
    return DeadEndError(
        f"Memory does not grow with the microbatch: {small:,} and {large:,} samples both need {peak_bytes:,} bytes. "
        "Make `batch` return as many samples as it is asked for, and `step` run them at once."
    )
