import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.findings import Probe, Verdict
from brim.planning.step_time import StepTime, fit_step_time
from brim.planning.throughput import Throughput, measure_throughput


@given(fixed=st.floats(1e-4, 1.0), sample=st.floats(1e-5, 0.1))
def test_half_of_the_peak_rate_is_at_n_half_and_90_percent_at_nine_times_that(fixed, sample):
    line = StepTime(fixed_seconds=fixed, sample_seconds=sample)
    assert line.half_rate_microbatch == pytest.approx(fixed / sample)
    microbatch = line.microbatch_for(0.9)
    assert microbatch == pytest.approx(9 * fixed / sample, abs=1)
    assert line.rate(microbatch) >= 0.9 * line.peak_rate * (1 - 1e-6)


@given(
    fixed=st.floats(1e-3, 1.0),
    sample=st.floats(1e-3, 0.1),
    sizes=st.sets(st.integers(1, 512), min_size=2, max_size=8),
)
def test_the_fit_finds_the_line_it_was_given(fixed, sample, sizes):
    line = fit_step_time({size: fixed + sample * size for size in sizes})
    assert line.sample_seconds == pytest.approx(sample, rel=1e-4)
    assert line.fixed_seconds == pytest.approx(fixed, rel=1e-3, abs=1e-6)


def test_timings_that_make_no_line_are_refused():
    with pytest.raises(InputError, match="at least two"):
        fit_step_time({8: 0.1})
    with pytest.raises(InputError, match="take no longer"):
        fit_step_time({8: 0.1, 16: 0.1})
    with pytest.raises(InputError, match=r"share is 1\.0"):
        StepTime(fixed_seconds=1, sample_seconds=1).microbatch_for(1.0)


def test_probes_give_rates_with_their_spread_and_say_where_larger_is_slower():
    probes = [
        Probe(microbatch=8, verdict=Verdict.FITS, timings=(0.1, 0.1, 0.1)),
        Probe(microbatch=32, verdict=Verdict.FITS, timings=(0.5, 0.6, 0.7)),
        Probe(microbatch=64, verdict=Verdict.OOM),
        Probe(microbatch=8, verdict=Verdict.FITS, timings=(0.1,)),
    ]
    curve = measure_throughput(probes)
    assert [(rate.microbatch, rate.num_timings) for rate in curve.rates] == [(8, 4), (32, 3)]
    assert curve.rates[0].spread == 0
    assert curve.rates[1].spread == pytest.approx(0.1 / 0.6)
    assert curve.best.microbatch == 8
    assert curve.best.samples_per_second == pytest.approx(80), "of the median step"
    assert "larger is slower here: 32 by 33%" in curve.describe()
    assert curve.to_dict()["larger_is_slower"]
    assert measure_throughput(probes[:1]) is None


def test_steps_that_differ_widely_and_a_line_without_a_knee_are_told():
    def probe(size, timings):
        return Probe(microbatch=size, verdict=Verdict.FITS, timings=timings)

    steady = measure_throughput([probe(8, (0.08,) * 9), probe(32, (0.32,) * 9)])
    assert "no knee" in steady.describe()
    assert "ask again" not in steady.describe()
    disturbed = measure_throughput([probe(8, (0.02, 0.05, 0.07, 0.4)), probe(32, (0.32,) * 9)])
    assert "ask again while nothing else runs" in disturbed.describe()


def test_one_step_has_no_spread_and_a_rate_is_of_the_median_step():
    probes = [
        Probe(microbatch=8, verdict=Verdict.FITS, step_seconds=0.1),
        Probe(microbatch=32, verdict=Verdict.FITS, timings=(0.1, 0.2, 0.9)),
    ]
    curve = measure_throughput(probes)
    assert [rate["spread"] is None for rate in curve.to_dict()["rates"]] == [True, False]
    assert curve.rates[1].samples_per_second == pytest.approx(160)
    assert "(median step of 3, ±200%)" in curve.describe()
    only = measure_throughput([probes[0], Probe(microbatch=32, verdict=Verdict.FITS, step_seconds=0.1)])
    assert "(median step of 1, nothing to compare it with)" in only.describe()


def curve_of(**seconds):
    return measure_throughput(
        Probe(microbatch=int(size[1:]), verdict=Verdict.FITS, timings=(time,) * 3) for size, time in seconds.items()
    )


def test_a_knee_beyond_what_was_timed_is_not_given():
    curve = curve_of(b8=0.08, b32=0.2, b64=0.36)
    assert curve.line.knee == 72
    assert curve.knee is None
    assert curve.to_dict()["knee"] is None
    assert "its knee lies beyond 64, the largest size that was timed" in curve.describe()
    assert "90% of its peak rate from 72 on" in curve_of(b8=0.08, b32=0.2, b128=0.68).describe()


def test_times_that_are_no_line_are_said_to_be_none():
    curve = curve_of(b1=0.01, b8=0.012, b32=0.3, b64=0.31)
    assert curve.line_misses_by > 0.15
    assert "the step times are no line: the nearest misses a rate by" in curve.describe()
    assert "knee" not in curve.describe()
    assert curve.to_dict()["knee"] is None


def test_rates_are_never_written_as_powers_of_ten():
    assert "best rate 23,030/s at 2,303" in curve_of(b1=0.05, b2303=0.1).describe()


def test_of_races_only_the_rounds_are_compared():
    def probe(size, slow, *sizes):
        turns = (1.0, 3.0, 1.0)
        laps = {each: tuple(slow * turn * (0.01 + 0.01 * each) for turn in turns) for each in sizes}
        return Probe(microbatch=size, verdict=Verdict.FITS, timings=(0.5,), laps=laps)

    curve = measure_throughput([probe(8, 1.0, 2, 4, 8), probe(32, 1.5, 4, 8, 16, 32)])
    assert [rate.microbatch for rate in curve.rates] == [2, 4, 8, 16, 32]
    assert [rate.num_timings for rate in curve.rates] == [3, 6, 6, 3, 3]
    assert all(rate.spread == pytest.approx(0) for rate in curve.rates), "all sizes were slow in the same round"
    shares = [rate.samples_per_second / curve.best.samples_per_second for rate in curve.rates]
    assert shares == pytest.approx([size / (1 + size) * 33 / 32 for size in (2, 4, 8, 16, 32)])
    assert "median turn of 3" in curve.describe()
    assert Throughput.from_dict(curve.to_dict()) == curve
