import pytest
import torch

from brim.findings import Verdict
from brim.probing.verdicts import OOM_TEXTS, OOM_TEXTS_WHEN_FULL, classify


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("x"), torch.cuda.OutOfMemoryError("x")])
def test_some_types_always_mean_memory(error):
    assert classify(error, nearly_full=False) is Verdict.OOM


@pytest.mark.parametrize("text", [*OOM_TEXTS, "NCCL error: ncclUnhandledCudaError: out of memory"])
def test_some_texts_always_mean_memory(text):
    assert classify(RuntimeError(f"before {text} after"), nearly_full=False) is Verdict.OOM


@pytest.mark.parametrize("text", OOM_TEXTS_WHEN_FULL)
def test_vague_texts_mean_memory_only_when_it_is_nearly_full(text):
    assert classify(RuntimeError(text), nearly_full=True) is Verdict.OOM
    assert classify(RuntimeError(text), nearly_full=False) is Verdict.ERROR


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        ValueError("CUDA out of memory"),
        KeyError("out of memory"),
        RuntimeError("the buffer is out of memory slots"),
        SystemExit(1),
    ],
)
def test_everything_else_is_an_error(error):
    assert classify(error, nearly_full=True) is Verdict.ERROR


def raise_from_oom():
    try:
        raise MemoryError
    except MemoryError as cause:
        raise RuntimeError("step failed") from cause


def raise_while_handling_oom():
    try:
        raise MemoryError
    except MemoryError:
        raise KeyError("a bug in the clean-up")  # noqa: B904


def test_an_oom_behind_another_error_is_still_one():
    with pytest.raises(RuntimeError) as caught:
        raise_from_oom()
    assert classify(caught.value, nearly_full=False) is Verdict.OOM


def test_an_error_while_handling_an_oom_is_an_error():
    with pytest.raises(KeyError) as caught:
        raise_while_handling_oom()
    assert classify(caught.value, nearly_full=True) is Verdict.ERROR


def test_torchs_real_failure_on_the_cpu_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert classify(caught.value, nearly_full=False) is Verdict.OOM
