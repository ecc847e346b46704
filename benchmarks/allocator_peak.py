"""The CPU allocator's real peak of a job, with what kernels take for themselves told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from brim.cases import Case
from brim.workload import Workload, prepare

_NUM_STEPS = 2
# Operators that are one to a trace and several to the profiler, with what they hand from one to the next.
_WHOLE = (
    "aten::convolution",
    "aten::convolution_backward",
    "aten::mkldnn_rnn_layer",
    "aten::mkldnn_rnn_layer_backward",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeak:
    """The most that was allocated at once.

    Attributes:
        peak_bytes: By everything.
        tensor_bytes: Without scratch: blocks that were allocated and freed inside one and the same operator, of which a
            convolution and a layer of an LSTM are one with all that they call.
    """

    peak_bytes: int
    tensor_bytes: int


def measure(workload_class: type[Workload], case: Case, microbatch: int) -> AllocatorPeak:
    """Build the workload, run two steps and read the allocator's own events."""
    workload = prepare(workload_class, case, torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        workload.build()
        batch = workload.batch(microbatch)
        for _ in range(_NUM_STEPS):
            workload.step(batch)
    return _peaks(_allocations(recorded.profiler.kineto_results.experimental_event_tree()))


def _allocations(roots: list[Any]) -> list[tuple[int, int, int, int]]:
    """Return (time, address, bytes, operator) of every allocation and free, in order."""
    found: list[tuple[int, int, int, int]] = []
    pending = [(root, 0, False) for root in roots]
    while pending:
        event, operator, is_whole = pending.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size, operator))
        if event.tag == torch._C._profiler._EventType.TorchOp and not is_whole:
            operator, is_whole = event.id, event.name in _WHOLE
        pending.extend((child, operator, is_whole) for child in event.children)
    return sorted(found)


def _peaks(events: list[tuple[int, int, int, int]]) -> AllocatorPeak:
    born: dict[int, tuple[int, int]] = {}
    scratch: set[int] = set()
    for index, (_, address, num_bytes, operator) in enumerate(events):
        if num_bytes > 0:
            born[address] = (index, operator)
        elif address in born:
            birth, maker = born.pop(address)
            if maker == operator != 0:
                scratch.update((birth, index))
    live = peak = live_tensors = peak_tensors = 0
    for index, (_, _, num_bytes, _) in enumerate(events):
        live += num_bytes
        peak = max(peak, live)
        if index not in scratch:
            live_tensors += num_bytes
            peak_tensors = max(peak_tensors, live_tensors)
    return AllocatorPeak(peak_bytes=peak, tensor_bytes=peak_tensors)
