import csv
from importlib import resources

import pytest

import brim
from brim.devices.catalog import Gpu, find_gpu, gpus
from brim.errors import InputError

GIB = 2**30


def rows():
    with resources.files("brim.devices").joinpath("gpus.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_catalog_spans_pascal_to_blackwell_and_amd():
    architectures = {gpu.architecture for gpu in gpus().values()}
    assert {"Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA 3", "RDNA 3"} <= architectures


def test_every_gpu_has_plausible_figures():
    for gpu in gpus().values():
        assert 2.9 * GIB <= gpu.memory_bytes <= 300 * GIB
        assert 5 <= gpu.capability[0] <= 12
        assert 100e9 <= gpu.bandwidth_bytes_per_second <= 10e12
        assert 1e12 <= gpu.fp32_flops <= 300e12
        assert gpu.fp16_flops is None or gpu.fp16_flops >= gpu.fp32_flops


def test_a_size_in_a_name_is_a_little_more_than_the_memory():
    for gpu in gpus().values():
        size = gpu.name.rpartition("-")[2]
        if size.endswith("gb"):
            assert 0.9 <= gpu.memory_bytes / (int(size.removesuffix("gb")) * GIB) < 1, gpu.name


def test_every_row_is_there_once_and_every_way_to_write_it_finds_it():
    names = [row["name"] for row in rows()]
    assert len(set(names)) == len(names)
    for row in rows():
        for written in [row["name"], row["title"], *filter(None, row["aliases"].split("|"))]:
            assert find_gpu(written).name == row["name"], written


def test_rates_of_geforce_cards_are_those_of_tensor_cores_that_add_up_in_float32():
    geforce = [gpu for gpu in gpus().values() if gpu.title.startswith("GeForce RTX")]
    assert {"Turing", "Ampere", "Ada", "Blackwell"} == {gpu.architecture for gpu in geforce}
    for gpu in geforce:
        times = 4 if gpu.architecture == "Turing" else 2
        assert gpu.fp16_flops == pytest.approx(times * gpu.fp32_flops, rel=0.03), gpu.name


def test_rates_of_other_cards_are_those_of_their_data_sheets():
    assert find_gpu("a10g").fp32_flops == 35e12
    assert find_gpu("a10g").fp16_flops == 70e12
    assert find_gpu("titan-rtx").fp16_flops == 131e12
    assert find_gpu("rtx-a6000").fp16_flops == 155e12
    assert find_gpu("a100-80gb").fp16_flops == 312e12


def test_every_card_of_amd_runs_rocm():
    amd = {name for name, gpu in gpus().items() if gpu.is_amd}
    assert amd == {name for name in gpus() if name.startswith(("mi", "rx-", "w7"))}


@pytest.mark.parametrize(
    "name", ["rtx-3090", "RTX 3090", "NVIDIA GeForce RTX 3090", "GeForce RTX 3090", "rtx_3090", "rtx3090", " 3090 "]
)
def test_a_gpu_is_found_however_it_is_written(name):
    assert find_gpu(name).name == "rtx-3090"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A800-SXM4-80GB", "a800-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB10", "gb10"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-16gb"),
        ("Tesla V100S-PCIE-32GB", "v100s-32gb"),
        ("Tesla P100-PCIE-16GB", "p100-16gb"),
        ("Tesla P100-PCIE-12GB", "p100-12gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A2", "a2"),
        ("NVIDIA TITAN RTX", "titan-rtx"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX A2000 12GB", "rtx-a2000-12gb"),
        ("NVIDIA GeForce GTX 1060 6GB", "gtx-1060-6gb"),
        ("NVIDIA GeForce RTX 2070 SUPER", "rtx-2070-super"),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", "rtx-3070-laptop"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", "rtx-3080-ti-laptop"),
        ("NVIDIA GeForce RTX 5060", "rtx-5060"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("Radeon RX 7900 XT", "rx-7900-xt"),
        ("AMD Radeon PRO W7900", "w7900"),
    ],
)
def test_what_torch_calls_a_gpu_is_understood(name, meant):
    assert find_gpu(name).name == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("4090", "rtx-4090"),
        ("1080 ti", "gtx-1080-ti"),
        ("7900xtx", "rx-7900-xtx"),
        ("A6000", "rtx-a6000"),
        ("RTX 4070Ti", "rtx-4070-ti"),
        ("a10080gb", "a100-80gb"),
    ],
)
def test_a_name_without_its_family_or_its_separators_is_understood(name, meant):
    assert find_gpu(name).name == meant


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("a100", "a100-40gb or a100-80gb"),
        ("NVIDIA A100-SXM4", "a100-40gb or a100-80gb"),
        ("h100", "h100-pcie, h100-sxm or h100-nvl"),
        ("H100-80GB", "h100-pcie or h100-sxm"),
        ("v100", "v100-16gb or v100-32gb"),
        ("Tesla P100", "p100-12gb or p100-16gb"),
        ("gh200", "gh200-96gb or gh200-144gb"),
        ("RTX 4060 Ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti-8gb or rtx-5060-ti-16gb"),
        ("RTX 3080", "rtx-3080-10gb or rtx-3080-12gb"),
        ("3080", "rtx-3080-10gb or rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "rtx-3080-laptop-8gb or rtx-3080-laptop-16gb"),
        ("GTX 1060", "gtx-1060-3gb or gtx-1060-6gb"),
        ("RTX A2000", "rtx-a2000-6gb or rtx-a2000-12gb"),
        ("RX 7900", "rx-7900-xt or rx-7900-xtx"),
    ],
)
def test_a_name_that_may_mean_several_is_refused_with_all_of_them(name, variants):
    with pytest.raises(InputError, match=rf"There is no GPU '{name}' in the catalog: {variants}\? `brim gpus`"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rtx-3900", "rtx-3090, "),
        ("mi3", "mi300x, "),
        ("mi300", "mi300x."),
        ("80gb", "a800-80gb, "),
        ("NVIDIA H100 64GB HBM2", "h100-pcie, h100-sxm, h100-nvl."),
        ("NVIDIA A100-SXM-64GB", "a100-40gb, a100-80gb."),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-40gb, a100-80gb."),
        ("NVIDIA GeForce RTX 4090 X", "rtx-4090, rtx-4090-d, rtx-4090-laptop."),
        ("GeForce RTX 2080 with Max-Q Design", "rtx-2080, "),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "rtx-3050."),
        ("RTX 3090 24GB", "rtx-3090, rtx-3090-ti."),
        ("RTX 6000", "quadro-rtx-6000, rtx-a6000, rtx-6000-ada, rtx-pro-6000."),
        ("90", ""),
        ("rtx", ""),
    ],
)
def test_a_name_that_is_not_certain_is_refused_with_the_nearest_that_share_its_number(name, nearest):
    with pytest.raises(InputError) as refused:
        find_gpu(name)
    assert f"There is no GPU {name!r} in the catalog. Nearest: {nearest}" in str(refused.value)


@pytest.mark.parametrize("name", ["", "NVIDIA", "toaster oven!"])
def test_a_name_that_resembles_none_is_refused_with_what_to_do_on_the_command_line_and_in_python(name):
    with pytest.raises(InputError) as refused:
        find_gpu(name)
    assert "Nearest" not in str(refused.value)
    for remedy in ("`brim gpus` lists all", "--memory 23.7GiB", "brim.Gpu(name=..., memory_bytes=...)"):
        assert remedy in str(refused.value)


def test_a_card_is_described_by_its_memory():
    assert brim.Gpu is Gpu
    assert brim.Gpu(name="mine", memory_bytes=int(23.7 * GIB)).memory_bytes == int(23.7 * GIB)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory_bytes": 24e9}, r"memory_bytes is 24000000000.0. Use a whole number"),
        ({"memory_bytes": "24GiB"}, "memory_bytes is '24GiB'. Use a whole number"),
        ({"memory_bytes": 0}, "memory_bytes is 0. Use a whole number of bytes above 0"),
        ({"memory_bytes": True}, "memory_bytes is True. Use a whole number"),
        ({"memory_bytes": GIB, "capability": 8.6}, r"capability is 8.6. Use two whole numbers, e.g. \(8, 6\)"),
        ({"memory_bytes": GIB, "capability": (8,)}, r"capability is \(8,\). Use two whole numbers"),
    ],
)
def test_a_card_that_cannot_be_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        Gpu(name="mine", **given)
