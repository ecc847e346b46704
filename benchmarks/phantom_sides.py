"""Both sides of the referee of traces: torch's own peaks on a phantom, and a trace's."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from brim.cases import Case
from brim.workload import prepare
from phantom_workloads import JOBS, NEW_TOKENS
from phantom_zoo import NETS

# How many steps run on a phantom: as many as it takes for the peaks to stay as they are for two.
FEWEST_STEPS, MOST_STEPS, STEADY_STEPS = 3, 8, 2
Peaks = tuple[int, int]


def case_of(net: str, job: str) -> Case:
    """Return the case of a job with a net."""
    return Case({"net": net, **JOBS[job][1]})


def on_phantom(net: str, job: str) -> dict[int, Peaks]:
    """Return the peaks, allocated and reserved, of each microbatch on the phantom that this process runs on."""
    with without_values(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {size: _measured(net, job, size) for size in NETS[net].sizes}


def _measured(net: str, job: str, size: int) -> Peaks:
    clean()
    workload_class, _ = JOBS[job]
    workload = prepare(workload_class, case_of(net, job), torch.device("cuda"))
    workload.build()
    batch = workload.batch(size)
    peaks: list[Peaks] = []
    while len(peaks) < MOST_STEPS:
        workload.step(batch)
        peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        if len(peaks) >= FEWEST_STEPS and len(set(peaks[-STEADY_STEPS:])) == 1:
            break
    return peaks[-1]


def clean() -> None:
    """Give back all that the row before has left, as in a process that has just started."""
    gc.collect()
    torch.clear_autocast_cache()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() == 0, f"{torch.cuda.memory_allocated():,} bytes are left of the row before"
    torch.manual_seed(0)


@contextmanager
def without_values() -> Iterator[None]:
    """Let what a value ends that no kernel computes on a phantom end as on a card: texts at their longest."""
    from transformers import GenerationMixin
    from transformers.generation.stopping_criteria import StoppingCriteriaList

    rounds = 0

    def stop(self: Any, tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        nonlocal rounds
        rounds += 1
        return torch.full((tokens.shape[0],), rounds >= NEW_TOKENS, device=tokens.device, dtype=torch.bool)

    def goes_on(self: Any, *_: Any, **__: Any) -> bool:
        nonlocal rounds
        if rounds < NEW_TOKENS:
            return True
        rounds = 0
        return False

    with (
        mock.patch.object(StoppingCriteriaList, "__call__", stop),
        mock.patch.object(GenerationMixin, "_has_unfinished_sequences", goes_on),
    ):
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Be in place of what cuDNN takes; a mock would keep every tensor that it is called with."""


def by_trace(net: str, job: str, cards: Sequence[str]) -> Mapping[str, dict[int, Peaks]]:
    """Return the peaks of each microbatch on every card as traces have them, without what cuDNN takes for a moment."""
    from brim.tracing import recorder
    from brim.tracing.prediction import predict_all
    from brim.tracing.runtime import runtime_here

    workload_class, _ = JOBS[job]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(recorder, "workspace_of", _nothing))
        found = predict_all(workload_class, gpus=cards, cases=[case_of(net, job)], runtime=runtime_here(cuda="13.0"))
        peaks: dict[str, dict[int, Peaks]] = {}
        for card, prediction in zip(cards, found, strict=True):
            peaks[card] = {}
            for size in NETS[net].sizes:
                peak = prediction.peak(size)
                peaks[card][size] = (peak.allocated_bytes, peak.reserved_bytes)
        return peaks
