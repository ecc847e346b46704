from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.planning.measurement import PROFILES, Measured, extrapolate, step_down

GB = 10**9
POINT = Measured.parse("512:0.1GB")


def test_the_known_answers():
    found = extrapolate(POINT, target_bytes=35 * GB, memory_bytes=80 * GB)
    assert (found.linear, found.chosen.safe, found.chosen.batch) == (179_200, 8_960, 8_192)
    assert step_down(found.chosen.batch) == (8192, 4096, 2048, 1024)


def test_every_profile_tells_the_fill_to_expect():
    found = extrapolate(POINT, target_bytes=35 * GB, memory_bytes=80 * GB)
    assert [profile.name for profile in found.profiles] == ["conservative", "balanced", "aggressive"]
    batches = [profile.batch for profile in found.profiles]
    assert batches == sorted(batches)
    conservative = found.profiles[0]
    assert conservative.line_bytes == 16 * POINT.used_bytes
    assert conservative.worst_bytes == 20 * conservative.line_bytes
    assert conservative.worst_bytes <= 35 * GB


def test_above_eight_times_it_warns_and_offers_to_probe():
    far = extrapolate(POINT, target_bytes=35 * GB)
    assert far.factor == 16
    assert "brim find WORKLOAD --start 8192" in far.warnings[0]
    near = extrapolate(POINT, target_bytes=1 * GB, safety=1.25)
    assert near.factor == 8
    assert near.warnings == ()


def test_a_batch_that_was_measured_to_fit_is_never_undercut():
    found = extrapolate(Measured.parse("64:10GB"), target_bytes=35 * GB)
    assert found.linear == 224
    assert found.chosen.batch == 64


def test_what_was_measured_grows_no_faster_than_it_did():
    found = extrapolate(Measured.parse("16:440MB"), target_bytes=900 * 10**6, memory_bytes=GB)
    assert [profile.worst_bytes for profile in found.profiles] == [440 * 10**6] * 3


def test_a_measurement_above_the_memory_or_without_a_unit_is_refused():
    with pytest.raises(InputError, match=r"Batch 512 is said to have used 100 GB of 80\.0 GB"):
        extrapolate(Measured.parse("512:100GB"), target_bytes=72 * GB, memory_bytes=80 * GB)
    with pytest.raises(InputError, match=r"has no unit. Write for example --measured 512:0\.1GB"):
        Measured.parse("512:0.1")


def test_two_points_know_what_is_held_anyway():
    points = [Measured.parse("8:6GB"), Measured.parse("16:8GB")]
    found = extrapolate(points, target_bytes=36 * GB, safety=1)
    assert found.fixed_bytes == 4 * GB
    assert found.linear == 128


def test_one_point_above_the_target_asks_for_a_second():
    found = extrapolate(Measured.parse("512:70GB"), target_bytes=35 * GB, safety=1)
    assert found.chosen.batch == 256
    assert "Measure a second" in found.warnings[0]


@given(
    batch=st.integers(1, 10_000),
    used=st.integers(1, 100 * GB),
    target=st.integers(GB, 100 * GB),
    profile=st.sampled_from(list(PROFILES)),
)
def test_the_line_of_the_answer_never_passes_the_target_unless_it_was_measured(batch, used, target, profile):
    measured = Measured(batch=batch, used_bytes=used)
    try:
        found = extrapolate(measured, target_bytes=target, profile=profile)
    except InputError:
        assert used / batch > target
        return
    assert found.chosen.batch & (found.chosen.batch - 1) == 0
    assert found.chosen.line_bytes <= target + 1
    sizes = step_down(found.chosen.batch)
    assert all(before // 2 == after for before, after in pairwise(sizes))


@pytest.mark.parametrize("text", ["512", "512:", ":1GB", "0:1GB", "-4:1GB", "512:0GB", "many:1GB", "512:1parsec"])
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(InputError):
        Measured.parse(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_bytes": 90 * GB, "memory_bytes": 80 * GB}, "above the memory of 80.0 GB"),
        ({"target_bytes": 35 * GB, "profile": "reckless"}, "conservative, balanced, aggressive"),
        ({"target_bytes": 35 * GB, "safety": 0.5}, "safety is 0.5"),
        ({"target_bytes": 1000}, "not one fits"),
    ],
)
def test_what_cannot_be_extrapolated_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        extrapolate(Measured.parse("512:0.1GB"), **arguments)


def test_points_that_make_no_line_are_refused():
    with pytest.raises(InputError, match="does not grow"):
        extrapolate([Measured.parse("8:6GB"), Measured.parse("16:6GB")], target_bytes=GB)
    with pytest.raises(InputError, match="twice"):
        extrapolate([Measured.parse("8:6GB"), Measured.parse("8:7GB")], target_bytes=GB)
