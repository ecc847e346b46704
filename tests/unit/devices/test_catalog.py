import pytest

from brim.devices.catalog import find_gpu, gpus
from brim.errors import InputError

GIB = 2**30


def test_the_catalog_spans_pascal_to_blackwell_and_amd():
    architectures = {gpu.architecture for gpu in gpus().values()}
    assert {"Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA 3", "RDNA 3"} <= architectures


def test_every_gpu_has_plausible_figures():
    for gpu in gpus().values():
        assert 4 * GIB <= gpu.memory_bytes <= 300 * GIB
        assert 5 <= gpu.capability[0] <= 12
        assert 100e9 <= gpu.bandwidth_bytes_per_second <= 10e12
        assert 1e12 <= gpu.fp32_flops <= 300e12
        assert gpu.fp16_flops is None or gpu.fp16_flops >= gpu.fp32_flops


@pytest.mark.parametrize("name", ["rtx-3090", "RTX 3090", "NVIDIA GeForce RTX 3090", "rtx_3090"])
def test_a_gpu_is_found_however_it_is_written(name):
    assert find_gpu(name).name == "rtx-3090"


def test_an_unknown_gpu_is_refused_with_the_nearest_names():
    with pytest.raises(InputError, match=r"no GPU 'rtx-3900'.*rtx-3090"):
        find_gpu("rtx-3900")
    with pytest.raises(InputError, match="brim gpus"):
        find_gpu("")


def test_a_family_is_answered_with_its_members():
    with pytest.raises(InputError, match="Nearest: a100-40gb, a100-80gb"):
        find_gpu("a100")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rtx3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("RTX 4070Ti", "rtx-4070-ti"),
        ("a10080gb", "a100-80gb"),
        ("mi300", "mi300x"),
    ],
)
def test_a_name_that_is_written_loosely_and_means_one_gpu_is_understood(name, meant):
    assert find_gpu(name).name == meant


@pytest.mark.parametrize("name", ["3080", "rtx", "90", "h100"])
def test_a_name_that_may_mean_several_is_refused(name):
    with pytest.raises(InputError, match="Nearest: "):
        find_gpu(name)
