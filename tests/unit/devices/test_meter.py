"""The contract of every meter; on CUDA it runs under the marker `gpu`."""

import ctypes

import pytest
import torch

from brim.devices import make_meter
from brim.findings import Verdict
from brim.probing.verdicts import classify

MIB = 2**20


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def meter(request):
    made = make_meter(request.param)
    yield made
    made.lift()


def allocate(meter, num_bytes):
    return torch.ones(num_bytes // 4, device=meter.device_name)


def runtime_library():
    """Return the CUDA runtime that torch has loaded."""
    return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")


def test_a_peak_is_seen_after_the_memory_is_gone(meter):
    meter.reset()
    before = meter.peaks()["peak_bytes"]
    tensor = allocate(meter, 200 * MIB)
    del tensor
    grown = meter.peaks()["peak_bytes"] - before
    assert 195 * MIB <= grown <= 230 * MIB


def test_a_reset_forgets_an_earlier_peak(meter):
    tensor = allocate(meter, 300 * MIB)
    del tensor
    meter.reset()
    before = meter.peaks()["peak_bytes"]
    tensor = allocate(meter, 100 * MIB)
    del tensor
    assert meter.peaks()["peak_bytes"] - before <= 140 * MIB


def test_above_the_limit_an_allocation_really_fails(meter):
    meter.limit(meter.peaks()["peak_bytes"] + 100 * MIB)
    kept = allocate(meter, 40 * MIB)
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate(meter, 400 * MIB)
    assert classify(caught.value, nearly_full=False) is Verdict.OOM
    assert kept.numel() == 10 * MIB


def test_a_process_that_is_above_its_limit_from_the_start_is_out_of_memory(meter):
    with pytest.raises(MemoryError, match="before the workload is built, above the limit of"):
        meter.limit(meter.baseline_bytes // 2)


def test_lifting_the_limit_gives_the_memory_back(meter):
    meter.limit(meter.peaks()["peak_bytes"] + 50 * MIB)
    meter.lift()
    assert allocate(meter, 200 * MIB).numel() == 50 * MIB


def test_it_is_nearly_full_only_near_the_limit(meter):
    meter.limit(meter.peaks()["peak_bytes"] * 4)
    assert not meter.is_nearly_full
    meter.lift()
    meter.limit(int(meter.peaks()["peak_bytes"] * 1.1))
    assert meter.is_nearly_full


def test_the_baseline_is_what_the_process_holds_without_a_workload(meter):
    assert 0 < meter.baseline_bytes <= meter.peaks()["peak_bytes"]
    meter.synchronize()


@pytest.mark.gpu
def test_the_context_counts_also_where_the_process_has_used_the_device_before():
    first = make_meter("cuda:0")
    kept = allocate(first, 64 * MIB)
    second = make_meter("cuda:0")
    assert second.baseline_bytes == first.baseline_bytes >= 64 * MIB
    assert second.peaks()["peak_bytes"] >= second.baseline_bytes + kept.nbytes


@pytest.mark.gpu
def test_what_a_library_takes_beside_torch_s_allocator_counts_against_the_limit():
    meter = make_meter("cuda:0")
    meter.limit(meter.peaks()["peak_bytes"] + 600 * MIB)
    runtime, address = runtime_library(), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(300 * MIB)) == 0
    try:
        meter.synchronize()
        assert meter.peaks()["peak_bytes"] >= meter.baseline_bytes + 300 * MIB
        with pytest.raises(torch.cuda.OutOfMemoryError):
            allocate(meter, 400 * MIB)
    finally:
        meter.lift()
        assert runtime.cudaFree(address) == 0


@pytest.mark.gpu
def test_a_share_that_the_user_set_holds_and_stays():
    torch.cuda.set_per_process_memory_fraction(0.125)
    try:
        meter = make_meter("cuda:0")
        meter.limit(torch.cuda.get_device_properties(0).total_memory)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(torch.cuda.get_device_properties(0).total_memory // 4, dtype=torch.uint8, device="cuda")
        meter.lift()
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.125)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
