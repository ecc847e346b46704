"""What `torch.cuda` says in a trace: what it would on a GPU of the compute capability that is traced for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DataParallel

from brim.tracing.ledger import Ledger
from brim.tracing.unknown import UnknownNumber

# What does something to a GPU that nobody sees in memory.
_NOOPS = ("synchronize", "set_device", "reset_peak_memory_stats", "_exchange_device", "_maybe_exchange_device")
_NVTX_NOOPS = ("range_push", "range_pop", "range_start", "range_end", "mark")
# From this compute capability on bfloat16 is no emulation. Source: `torch.cuda.is_bf16_supported`.
_BFLOAT16_CAPABILITY = (8, 0)


class GpuAnswers:
    """Answers questions about a GPU.

    Attributes:
        is_asked: Whether something was asked that other GPUs would answer otherwise.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability
        self.is_asked = False

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        """Return the compute capability."""
        self.is_asked = True
        return self._capability

    def get_device_properties(self, *_: Any) -> Any:
        """Return what is known of every GPU of this capability."""
        return _Properties(*self.get_device_capability())

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Return whether bfloat16 works, emulated or not."""
        return including_emulation or self.get_device_capability() >= _BFLOAT16_CAPABILITY


class _Properties:
    """What is known of every GPU of a compute capability; its memory, for one, is not."""

    name = "GPU"

    def __init__(self, major: int, minor: int) -> None:
        self.major = major
        self.minor = minor

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"No CUDA GPUs are here to tell their {name}")


class _Event:
    """An event on a GPU, which takes no memory and an unknown time."""

    def __init__(self, *_: Any, **kwargs: Any) -> None:
        pass

    def record(self, *_: Any, **kwargs: Any) -> None:
        """Note nothing."""

    wait = synchronize = record

    def query(self) -> bool:
        """Return that it has happened."""
        return True

    def elapsed_time(self, end: _Event) -> float:
        """Return a number that may be printed or kept."""
        return UnknownNumber()


class _Stream:
    """The stream of a GPU on which all is run, and nothing captured."""

    def is_capturing(self) -> bool:
        """Return whether what is launched is kept for a graph."""
        return False


class _Generator(torch.Generator):
    """A source of random numbers on the host, whichever device it is asked for."""

    def __new__(cls, device: Any = None) -> _Generator:
        """Make one."""
        return super().__new__(cls)


@contextmanager
def memory_of(ledger: Ledger) -> Iterator[None]:
    """Let `torch.cuda` tell in the block what a ledger holds, and give what is cached back."""

    def memory_stats(*_: Any, **kwargs: Any) -> defaultdict[str, int]:
        # Of the allocator's own numbers no more is known than that it has what tensors had at most.
        told = {f"{name}_bytes.all.peak": ledger.peak_bytes for name in ("allocated", "active", "reserved")}
        told |= {f"{name}_bytes.all.current": ledger.live_bytes for name in ("allocated", "active")}
        told |= {"reserved_bytes.all.current": ledger.peak_bytes, "num_ooms": 0, "num_alloc_retries": 0}
        return defaultdict(int, told)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.cuda, "empty_cache", ledger.drop_cache))
        # Where the module itself asks: for `memory_allocated`, `max_memory_reserved`, `memory_summary` and the like.
        for module in (torch.cuda, torch.cuda.memory):
            stack.enter_context(mock.patch.object(module, "memory_stats", memory_stats))
        yield


@contextmanager
def gpu_that_answers(capability: tuple[int, int]) -> Iterator[GpuAnswers]:
    """Let `torch.cuda` answer in the block, whether there is a GPU or not."""
    gpu = GpuAnswers(capability)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda *_: "GPU",
        "get_device_capability": gpu.get_device_capability,
        "get_device_properties": gpu.get_device_properties,
        "is_bf16_supported": gpu.is_bf16_supported,
        "Event": _Event,
    }
    with ExitStack() as stack:
        for name in _NOOPS:
            stack.enter_context(mock.patch.object(torch.cuda, name))
        for name in _NVTX_NOOPS:
            stack.enter_context(mock.patch.object(torch.cuda.nvtx, name))
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        # Newer optimizers ask this in place of torch.cuda, and the CUDA build would look for a real GPU.
        if hasattr(torch, "accelerator"):
            stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", return_value=_Stream()))
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        # Scaled losses need no memory, and whether a step is skipped is a question about values.
        scaling = mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=True)
        stack.enter_context(scaling)
        # It would send its parts to every GPU; to one it hands on what it is given.
        parallel = DataParallel.__init__.__globals__
        stack.enter_context(mock.patch.dict(parallel, {"_get_available_device_type": lambda: None}))
        yield gpu
