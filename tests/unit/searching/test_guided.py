import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from brim.searching import Bounds, Guided, Search
from brim.searching.curve import MemoryCurve, curve_through, next_to_trace
from brim.searching.guided import expected_curve

LIMIT = 1_500_000_000
BASELINE = 300_000_000


def search_with(strategy, peak, cap=2**20):
    search = Search(strategy, Bounds(cap=cap))
    asks, num_ooms = [], 0
    while (ask := search.ask()) is not None:
        fits = peak(ask.microbatch) <= LIMIT
        asks.append(ask.microbatch)
        num_ooms += not fits
        search.tell(ask.microbatch, fits=fits, peak_bytes=peak(ask.microbatch) if fits else None)
    return search, asks, num_ooms


def largest(peak, cap=2**20):
    low, high = 0, cap + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= LIMIT else (low, middle)
    return low


@given(
    slope=st.floats(1_000, 100_000_000),
    fixed=st.integers(1_000_000, 400_000_000),
    overhead=st.floats(1.0, 1.18),
)
@settings(max_examples=300)
def test_with_a_curve_it_needs_few_probes_and_at_most_one_oom(slope, fixed, overhead):
    def traced(size):
        return int(max(3 * fixed // 2, fixed + slope * size))

    def peak(size):
        return int(BASELINE + overhead * traced(size))

    truth = largest(peak)
    assume(truth >= 1)
    points = {}
    while sizes := next_to_trace(points, target_bytes=(LIMIT - BASELINE) / 1.2, cap=2**20):
        points |= {size: traced(size) for size in sizes}
    guided = Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=curve_through(points))
    search, asks, num_ooms = search_with(guided, peak)
    # Four, and a fifth where the curve was traced on either side of its bend.
    assert len(asks) <= 5
    assert num_ooms <= 1
    # Within one percent of the limit, or the largest there is.
    assert search.answer == truth or peak(search.answer) >= 0.985 * LIMIT


@given(
    slope=st.floats(1_000, 10_000_000),
    waste=st.floats(0.0, 0.3),
    expected_more=st.floats(0.02, 0.25),
    luck=st.lists(st.floats(-0.01, 0.01), min_size=4, max_size=4),
)
@settings(max_examples=300)
def test_where_equal_runs_differ_it_leaves_as_much_free_and_meets_no_oom(slope, waste, expected_more, luck):
    def expected_peak(size):
        return BASELINE + (1 + waste) * slope * size

    drawn = iter(luck)
    curve = MemoryCurve(((1, int(slope)), (1000, int(1000 * slope))))
    guided = Guided(
        limit_bytes=LIMIT,
        baseline_bytes=BASELINE,
        curve=curve,
        noise=0.025,
        first_slope=(1 + waste) * (1 + expected_more),
    )
    search = Search(guided, Bounds(cap=2**24))
    asks = []
    while (ask := search.ask()) is not None:
        peak = int(expected_peak(ask.microbatch) * (1 + next(drawn)))
        assert peak <= LIMIT
        asks.append(ask.microbatch)
        search.tell(ask.microbatch, fits=True, peak_bytes=peak)
    assert search.confirmed
    # Within 12.5% of the limit, or as much as the heap wastes and a quarter of it.
    wasted = waste * slope * search.answer
    assert 1.02 * expected_peak(search.answer + 1) + max(0.125 * LIMIT, 1.25 * wasted) >= LIMIT


@given(slope=st.floats(1_000, 100_000_000), fixed=st.integers(0, 1_000_000_000))
@settings(max_examples=300)
def test_without_a_curve_it_still_gets_within_three_percent_of_the_limit(slope, fixed):
    def peak(size):
        return int(BASELINE + fixed + slope * size)

    truth = largest(peak)
    assume(truth >= 1)
    search, asks, _ = search_with(Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE), peak)
    assert search.answer >= 0.97 * truth - 1 or peak(search.answer) >= 0.98 * LIMIT
    assert len(asks) <= 25


@given(
    slope=st.floats(100_000, 10_000_000),
    bend=st.floats(1.0, 3.0),
    start=st.sampled_from([None, 16, 1024]),
)
@settings(max_examples=300)
def test_without_a_curve_it_does_not_creep_down_after_an_oom(slope, bend, start):
    def peak(size):
        return int(BASELINE + max(slope * size, bend * (slope * size - 300_000_000)))

    search = Search(Guided(limit_bytes=LIMIT), Bounds(start=start))
    fitted, failed = [], []
    while (ask := search.ask()) is not None:
        fits = peak(ask.microbatch) <= LIMIT
        (fitted if fits else failed).append(ask.microbatch)
        search.tell(ask.microbatch, fits=fits, peak_bytes=peak(ask.microbatch) if fits else None)
    assert len(failed) <= 6
    assert len(fitted) + len(failed) <= 16
    assert search.answer >= 0.95 * largest(peak) - 1


def test_memory_that_does_not_grow_ends_at_the_cap():
    search, _, _ = search_with(Guided(limit_bytes=LIMIT), lambda size: 1000, cap=512)
    assert (search.answer, search.stopped_by) == (512, "cap")


def test_when_even_one_does_not_fit_it_says_so():
    guided = Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=MemoryCurve(((8, 2 * LIMIT), (16, 3 * LIMIT))))
    search, asks, _ = search_with(guided, lambda size: 2 * LIMIT)
    assert search.answer is None
    assert asks[-1] == 1


@pytest.mark.parametrize("noise", [0.0, 0.025])
@given(slope=st.floats(1_000, 10_000_000), fixed=st.integers(1_000_000, 200_000_000), share=st.floats(0.05, 0.85))
def test_where_a_trace_counts_what_does_not_run_it_follows_what_was_measured(noise, slope, fixed, share):
    def traced(size):
        return int(fixed + slope * size)

    def peak(size):
        return int(BASELINE + fixed + share * slope * size)

    truth = largest(peak)
    assume(truth >= 1)
    curve = curve_through({size: traced(size) for size in (8, 64, 512)})
    guided = Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=curve, first_slope=1.0, noise=noise)
    search, asks, num_ooms = search_with(guided, peak)
    assert len(asks) <= 6
    assert num_ooms == 0
    assert search.answer == truth or peak(search.answer) >= (0.985 if noise == 0 else 0.87) * LIMIT


@pytest.mark.parametrize("has_curve", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.025])
def test_where_weights_fill_most_of_the_limit_it_goes_on_to_what_is_left(noise, has_curve):
    weights, each = int(0.9 * LIMIT) - BASELINE, 30_000

    def peak(size):
        return BASELINE + weights + each * size

    curve = curve_through({size: weights + each * size for size in (8, 64, 512)}) if has_curve else None
    guided = Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=curve, first_slope=1.0, noise=noise)
    search, asks, _ = search_with(guided, peak)
    assert search.answer > 0.5 * largest(peak)
    assert len(asks) <= (8 if has_curve else 20)


def test_a_wrong_prediction_costs_probes_but_not_the_answer():
    guided = Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=MemoryCurve(((8, 8000), (16, 16000))))
    search, _, _ = search_with(guided, lambda size: BASELINE + size * 10_000_000, cap=4096)
    assert 0.97 * 120 <= search.answer <= 120


def test_the_curve_is_exact_between_and_beyond_its_points():
    curve = MemoryCurve(((8, 800), (16, 1600)))
    assert [curve.bytes_at(size) for size in (4, 12, 32)] == [400, 1200, 3200]
    assert curve.size_at(1200, cap=100) == 12
    assert curve.size_at(10**9, cap=100) == 100


def test_tracing_stops_when_the_target_lies_near_a_traced_size():
    points = {8: 800, 16: 1600}
    assert next_to_trace(points, target_bytes=1600, cap=100) == ()
    assert next_to_trace(points, target_bytes=1700, cap=100) == ()
    assert next_to_trace(points, target_bytes=1200, cap=100) == (12,)
    assert next_to_trace(points, target_bytes=9600, cap=1000) == (96,)
    assert next_to_trace(points, target_bytes=400, cap=1000) == (4,)


def test_a_third_size_on_the_line_ends_tracing_and_one_beside_it_does_not():
    assert next_to_trace({8: 800, 16: 1600, 96: 9600}, target_bytes=9600, cap=1000) == ()
    assert next_to_trace({8: 800, 16: 1600, 96: 12_000}, target_bytes=12_000, cap=1000) == (72,)


def test_tracing_goes_up_in_strides_while_memory_does_not_rise():
    assert next_to_trace({8: 800, 32: 800}, target_bytes=9600, cap=10**6) == (256, 2048)


def test_tracing_starts_with_two_sizes_within_the_cap():
    assert next_to_trace({}, target_bytes=100, cap=999) == (8, 32)
    assert next_to_trace({}, target_bytes=100, cap=20) == (8, 20)
    assert next_to_trace({}, target_bytes=100, cap=3) == (3,)
    assert next_to_trace({3: 10}, target_bytes=100, cap=3) == (2,)
    assert next_to_trace({1: 10}, target_bytes=100, cap=1) == ()


@given(
    fixed=st.integers(0, 10**9),
    slope=st.floats(0, 10**8),
    target=st.floats(0, 10**10),
    cap=st.integers(1, 2**20),
)
def test_tracing_ends_and_never_repeats_a_size(fixed, slope, target, cap):
    points = {}
    while sizes := next_to_trace(points, target_bytes=target, cap=cap):
        assert not set(sizes) & set(points)
        assert all(1 <= size <= cap for size in sizes)
        points |= {size: int(max(fixed, slope * size)) for size in sizes}
        assert len(points) <= 20


def test_waste_is_expected_as_it_was_seen_and_what_grows_beyond_as_on_average():
    curve = expected_curve({8: 1000, 96: 12_000}, waste={8: 100, 96: 3_000}, unasked=1.5)
    assert curve.bytes_at(8) == 1000 + 100
    assert curve.bytes_at(96) == 12_000 + 3_000
    assert curve.bytes_at(52) == (curve.bytes_at(8) + curve.bytes_at(96)) / 2
    assert curve.bytes_at(192) - curve.bytes_at(96) == pytest.approx(1.5 * 12_000)


def test_a_larger_size_is_never_expected_to_need_less():
    curve = expected_curve({8: 1000, 16: 1800}, waste={8: 900, 16: 0}, unasked=1.2)
    assert curve.bytes_at(16) == curve.bytes_at(8) == (1000 + 900 + 1800) / 2
    assert curve.bytes_at(32) > curve.bytes_at(16)


def test_what_a_process_takes_once_is_no_waste_of_a_small_job():
    curve = expected_curve({16: 60_000}, waste={16: 64 * 2**20}, unasked=1.5)
    assert curve.bytes_at(16) < 3 * 60_000


def test_after_a_confirmation_that_failed_no_size_is_tried_that_would_not_be_believed():
    curve = MemoryCurve(((3900, 100_000_000), (4000, 1_150_000_000)))  # so steep that steps down are small
    search = Search(Guided(limit_bytes=LIMIT, baseline_bytes=BASELINE, curve=curve, first_slope=1.01), Bounds())
    asks = []
    while (ask := search.ask()) is not None:
        asks.append(ask.microbatch)
        fails = ask.confirms and len(asks) == 2
        search.tell(ask.microbatch, fits=not fails, peak_bytes=None if fails else LIMIT - 1_000_000)
    first, again, lower, confirmed = asks
    assert first == again
    assert lower == confirmed <= 0.99 * first
