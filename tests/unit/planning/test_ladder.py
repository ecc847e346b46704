import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.devices.catalog import Gpu, find_gpu
from brim.planning.answer import Wanted, answer_sizing
from brim.planning.footprint import METHODS, OPTIMIZERS, PRECISIONS, TASKS, Training, footprint
from brim.planning.ladder import climb, offload_cost
from brim.planning.rungs import (
    AUTOCAST,
    AUTOCAST_FLOAT16,
    CHECKPOINTING,
    CHUNKED,
    EIGHT_BIT,
    FUSED,
    OFFLOAD,
    ZERO_1,
    ZERO_2,
    ZERO_3,
)
from brim.planning.shapes import find_model, sizes
from brim.planning.sizing import a_larger_gpu, size_up, what_it_takes
from brim.planning.thumb import GIGABYTES_PER_SAMPLE, rule_of_thumb

GB = 10**9
A100 = find_gpu("a100-80gb")


def rungs_of(size="8b", limit=76 * GB, ranks=1, capability=(8, 0), **training):
    shape, how = find_model(size), Training(seq_len=2048, **training)
    return climb(
        footprint(shape, how), shape=shape, training=how, limit_bytes=limit, ranks=ranks, capability=capability
    )


def test_the_rungs_come_in_the_order_of_cost():
    rungs = rungs_of(ranks=8, precision="fp32")
    keys = [rung.kind.key for rung in rungs]
    zero = ["zero_1", "zero_2", "zero_3"]
    assert keys == ["fused", "autocast", "chunked", "checkpointing", "eight_bit", *zero, "offload"]
    assert all(rung.kind.source and rung.lines for rung in rungs)


def test_what_two_rungs_save_together_is_not_lost_because_neither_saves_alone():
    # The optimizer's step needs as much as the activations, so the peak falls only when both are gone.
    found = {rung.kind.key: rung for rung in rungs_of()}
    assert found["fused"].saved_bytes == 0
    assert found["fused"].skipped is None
    assert found["checkpointing"].saved_bytes > 10 * GB
    assert found["checkpointing"].largest > 0


def test_a_rung_that_saves_next_to_nothing_is_left_out_with_the_reason():
    found = {rung.kind.key: rung for rung in rungs_of(size="1b", method="lora", optimizer="adamw")}
    assert found["eight_bit"].skipped is not None or found["eight_bit"].saved_bytes >= 0.001 * 76 * GB
    found = {rung.kind.key: rung for rung in rungs_of(size="1b", method="qlora", optimizer="sgd")}
    assert "eight_bit" not in found
    assert found["fused"].skipped == "saves nothing here"


def test_a_gpu_before_ampere_gets_float16():
    (autocast,) = [r for r in rungs_of(precision="fp32", capability=(7, 5)) if r.kind.key == "autocast"]
    assert autocast.kind is AUTOCAST_FLOAT16
    assert "GradScaler" in autocast.lines


@settings(deadline=None)
@given(
    size=st.sampled_from(list(sizes())),
    limit=st.integers(1, 500 * GB),
    ranks=st.integers(1, 64),
    precision=st.sampled_from(list(PRECISIONS)),
    method=st.sampled_from(METHODS),
    task=st.sampled_from(TASKS),
    optimizer=st.sampled_from(OPTIMIZERS),
)
def test_no_rung_lowers_what_fits(size, limit, ranks, precision, method, task, optimizer):
    found = rungs_of(size, limit, ranks=ranks, precision=precision, method=method, task=task, optimizer=optimizer)
    largest = footprint(
        find_model(size), Training(seq_len=2048, precision=precision, method=method, task=task, optimizer=optimizer)
    ).largest(limit)
    for rung in found:
        assert rung.largest >= largest
        largest = rung.largest
        if rung.skipped is not None:
            assert rung.saved_bytes == 0


def test_what_offloading_moves_is_told_for_the_job():
    assert offload_cost(8_030_261_248).startswith("32.1 GB over PCIe")
    assert "32.1 GB" in rungs_of()[-1].cost


def test_a_rung_is_plain_data_for_json():
    data = rungs_of()[0].to_dict()
    assert set(data) == {
        "key",
        "title",
        "slowdown",
        "cost",
        "source",
        "lines",
        "saved_bytes",
        "largest",
        "basis",
        "skipped",
    }


def test_nothing_that_fits_is_answered_with_what_it_would_take():
    sizing = size_up(find_model("70b"), Training(seq_len=2048), gpu=A100)
    assert sizing.largest == 0
    takes = what_it_takes(sizing)
    assert any("--ranks" in line and "ZeRO-3" in line for line in takes)
    assert any("more than any in the catalog" in line for line in takes)
    assert any(line.startswith("--method qlora") for line in what_it_takes(size_up(
        find_model("8b"), Training(seq_len=2048), gpu=find_gpu("rtx-3090")
    )))  # fmt: skip


def test_no_gpu_of_a_laptop_and_none_that_shares_its_memory_is_proposed():
    def proposed(name):
        return a_larger_gpu(find_gpu(name).memory_bytes, fill=1.0).rpartition(" such as ")[2]

    assert proposed("rtx-5090-laptop") == "a30"
    assert proposed("gb10") == "h200-nvl"
    assert proposed("a30") == "a30"


def test_what_it_would_take_really_fits():
    sizing = size_up(find_model("8b"), Training(seq_len=2048), gpu=A100, ranks=8)
    (line,) = [line for line in what_it_takes(sizing) if "ranks" in line]
    # 64.2 GB of state over 8 ranks and four samples of 16.3 GB fit into 0.9 of the card.
    assert line == "ZeRO-3 / FSDP over --ranks 8: then microbatch 4 fits on each"
    held = footprint(find_model("8b"), Training(seq_len=2048))
    assert held.state_bytes / 8 + 4 * held.sample_bytes <= sizing.limit_bytes
    assert held.state_bytes / 8 + 5 * held.sample_bytes > sizing.limit_bytes


def test_what_it_would_take_climbs_the_ladder_too():
    takes = what_it_takes(size_up(find_model("70b"), Training(seq_len=2048), gpu=A100))
    (qlora,) = [line for line in takes if line.startswith("--method qlora")]
    alone = size_up(find_model("70b"), Training(seq_len=2048, method="qlora"), gpu=A100)
    assert alone.largest == 0
    fitting = next(rung for rung in alone.ladder if rung.largest)
    assert qlora.endswith(f"then microbatch {fitting.largest:,} fits")


def test_accumulation_is_told_for_32_and_64_and_the_target():
    sizing = size_up(find_model("7b"), Training(seq_len=2048, method="lora"), gpu=A100, ranks=2)
    found = answer_sizing(Wanted(effective=100, ranks=2), sizing)
    assert set(found.accumulations) == {32, 64, 100}
    assert found.accumulations[100] == found.plan.accumulation
    assert (found.accumulations[64] - 1) * sizing.largest * 2 < 64 <= found.accumulations[64] * sizing.largest * 2
    nothing = size_up(find_model("70b"), Training(seq_len=2048), gpu=A100)
    assert answer_sizing(Wanted(effective=100), nothing).accumulations == {}


@pytest.mark.parametrize(("billions", "gigabytes"), GIGABYTES_PER_SAMPLE.items())
def test_the_rule_of_thumb_is_the_old_one(billions, gigabytes):
    for task, factor in {"classification": 1.0, "qa": 1.2, "generation": 1.5}.items():
        found = rule_of_thumb(billions * GB, memory_bytes=80 * GB, task=task)
        assert found.sample_bytes == pytest.approx(gigabytes * factor * GB)
        assert found.largest <= 0.8 * 80 / (gigabytes * factor) < 2 * found.largest


def test_the_rule_of_thumb_says_what_it_leaves_out():
    found = rule_of_thumb(7 * GB, memory_bytes=24 * GB, state_bytes=54 * GB)
    assert found.largest == 32
    assert "54.0 GB" in found.leaves_out


def test_a_gpu_that_nobody_has_is_not_proposed():
    sizing = size_up(find_model("8b"), Training(seq_len=512), gpu=Gpu(name="own", memory_bytes=8 * GB))
    assert any("a GPU with" in line for line in what_it_takes(sizing))


def test_the_lines_to_add_are_python_or_json():
    from transformers import TrainingArguments

    for kind in (FUSED, AUTOCAST, AUTOCAST_FLOAT16, CHUNKED, CHECKPOINTING, EIGHT_BIT, ZERO_1, ZERO_3):
        compile(kind.lines, kind.key, "exec")
    for kind in (ZERO_2, OFFLOAD):
        fields = json.loads("{" + kind.lines.partition("  #")[0] + "}")
        assert fields["zero_optimization"]["stage"] == 2
    assert "use_liger_kernel" in {field.name for field in dataclasses.fields(TrainingArguments)}
