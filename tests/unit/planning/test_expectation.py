import pytest

from brim.cases import Case
from brim.devices.catalog import find_gpu
from brim.planning.answer import TracedJob, Wanted, answer_largest, answer_measurement, answer_sizing, answer_traced
from brim.planning.expectation import DOUBT, expectation_of
from brim.planning.footprint import Training
from brim.planning.measurement import Measured, extrapolate
from brim.planning.shapes import find_model
from brim.planning.sizing import size_up

GIB = 2**30
GPU = find_gpu("a100-80gb")


def test_a_known_size_alone_says_nothing_of_memory():
    assert expectation_of(answer_largest(Wanted(effective=64), 16)) is None


def test_a_model_should_use_what_its_formula_says():
    sizing = size_up(find_model("7b"), Training(seq_len=2048, method="lora"), gpu=GPU)
    answer = answer_sizing(Wanted(effective=64), sizing)
    expected = expectation_of(answer)
    peak_bytes = sizing.held.peak_bytes(answer.plan.microbatch)
    assert expected.peak_low_bytes < peak_bytes < expected.peak_high_bytes <= expected.memory_bytes
    assert expected.gpu == "a100-80gb"


def test_a_measured_point_should_use_what_lies_between_its_line_and_the_worst():
    found = extrapolate(Measured.parse("512:1GB"), target_bytes=40 * 10**9, memory_bytes=80 * 10**9, profile="balanced")
    expected = expectation_of(answer_measurement(Wanted(), found))
    assert expected.peak_low_bytes < found.chosen.line_bytes <= found.chosen.worst_bytes == expected.peak_high_bytes
    assert expected.gpu is None
    # A microbatch that is not the measured line's own says nothing.
    assert expectation_of(answer_measurement(Wanted(effective=1000), found)) is None


@pytest.mark.parametrize(("effective", "peak_gib"), [(100, 60), (50, 35)])
def test_a_traced_job_should_use_less_at_a_smaller_microbatch(effective, peak_gib):
    job = TracedJob(
        workload="train.py:Finetune",
        case=Case(),
        gpu=GPU,
        fill=0.9,
        largest=100,
        interval=(90, 110),
        microbatch=100,
        device_bytes=60 * GIB,
        breakdown={"parameters": 5 * GIB, "activations": 40 * GIB, "inputs": 2 * GIB, "temporary": 8 * GIB},
        missing_bytes=0,
    )
    expected = expectation_of(answer_traced(Wanted(effective=effective), job))
    assert expected.peak_low_bytes == round(peak_gib * GIB * (1 - DOUBT))
    assert expected.peak_high_bytes == round(peak_gib * GIB * (1 + DOUBT))
