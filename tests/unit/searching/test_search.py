"""The laws of every search, for every strategy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import InputError
from brim.searching import Bounds, Doubling, Estimate, Guided, MemoryCurve, Search

LIMIT = 10_000


def run(search, fits, peak=None):
    """Answer every ask; return what was asked."""
    asks = []
    while (ask := search.ask()) is not None:
        asks.append(ask)
        ok = fits(ask.microbatch)
        search.tell(ask.microbatch, fits=ok, peak_bytes=peak(ask.microbatch) if ok and peak else None)
        assert len(asks) < 200
    return asks


@st.composite
def problems(draw):
    """A strategy, bounds, and a monotone memory."""
    cap = draw(st.integers(1, 3000))
    multiple = draw(st.integers(1, min(cap, 16)))
    bounds = Bounds(
        cap=cap,
        multiple_of=multiple,
        start=draw(st.none() | st.integers(1, cap)),
        tries=draw(st.none() | st.integers(1, 12)),
    )
    fixed, slope = draw(st.integers(0, LIMIT)), draw(st.floats(0, 3000))
    traced_slope = slope * draw(st.floats(0.5, 1.5))
    points = tuple((size, int(fixed + traced_slope * size)) for size in (1, 8, 64))
    strategy = draw(
        st.sampled_from(
            [
                Doubling(),
                Doubling(refine=True),
                Estimate(scale=draw(st.floats(0.01, 1))),
                Guided(limit_bytes=LIMIT, curve=MemoryCurve(points)),
                Guided(limit_bytes=LIMIT),
            ]
        )
    )
    return strategy, bounds, lambda size: int(fixed + slope * size)


@given(problems())
@settings(max_examples=400)
def test_the_answer_was_run_and_fitted_and_ran_once_more(problem):
    strategy, bounds, peak = problem
    search = Search(strategy, bounds)
    asks = run(search, lambda size: peak(size) <= LIMIT, peak)
    if search.answer is None:
        assert not any(peak(ask.microbatch) <= LIMIT for ask in asks)
        return
    assert peak(search.answer) <= LIMIT
    assert search.confirmed
    assert asks[-1].confirms
    assert asks[-1].microbatch == search.answer
    assert [ask.microbatch for ask in asks].count(search.answer) == 2


@given(problems())
@settings(max_examples=400)
def test_every_size_tried_keeps_the_bounds_and_none_is_tried_twice(problem):
    strategy, bounds, peak = problem
    asks = run(Search(strategy, bounds), lambda size: peak(size) <= LIMIT, peak)
    sizes = [ask.microbatch for ask in asks if not ask.confirms]
    assert all(size <= bounds.cap and size % bounds.multiple_of == 0 for size in sizes)
    assert len(sizes) == len(set(sizes))
    if bounds.tries is not None:
        assert len(sizes) <= bounds.tries


@given(problems())
@settings(max_examples=400)
def test_nothing_fits_is_only_said_after_the_smallest_failed_or_the_tries_ran_out(problem):
    strategy, bounds, peak = problem
    search = Search(strategy, bounds)
    asks = run(search, lambda size: peak(size) <= LIMIT, peak)
    if search.answer is None and search.stopped_by != "tries":
        assert min(ask.microbatch for ask in asks) == bounds.smallest


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_refined_doubling_is_exact(truth, cap):
    search = Search(Doubling(refine=True), Bounds(cap=cap))
    run(search, lambda size: size <= truth)
    assert search.answer == min(truth, cap)
    assert search.stopped_by == ("cap" if cap <= truth else "memory")


def test_doubling_tries_powers_of_two_and_stops_at_the_first_oom():
    asks = run(Search(Doubling(), Bounds(cap=100), confirm=False), lambda size: size <= 23)
    assert [ask.microbatch for ask in asks] == [1, 2, 4, 8, 16, 32]


def test_an_answer_that_fails_its_confirmation_is_never_given():
    search = Search(Doubling(refine=True), Bounds(cap=64))
    seen = set()

    def flaky(size):
        first_time = size not in seen
        seen.add(size)
        return size <= 20 or (size <= 23 and first_time)

    run(search, flaky)
    assert search.answer == 20
    assert search.confirmed


def test_time_stops_the_search_with_what_has_fitted():
    search = Search(Doubling(), Bounds(cap=64, seconds=10))
    for _ in range(3):
        search.tell(search.ask(elapsed_seconds=1).microbatch, fits=True)
    confirming = search.ask(elapsed_seconds=11)
    assert (confirming.microbatch, confirming.confirms) == (4, True)
    search.tell(4, fits=True)
    assert search.ask(elapsed_seconds=12) is None
    assert (search.answer, search.stopped_by, search.confirmed) == (4, "time", True)


def test_doubling_that_never_ran_out_was_stopped_by_the_cap():
    search = Search(Doubling(), Bounds(cap=100))
    run(search, lambda size: True)
    assert (search.answer, search.stopped_by) == (64, "cap")


@pytest.mark.parametrize("name", ["cap", "start", "multiple_of", "tries"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bounds_must_be_whole_numbers_of_at_least_one(name, value):
    with pytest.raises(InputError, match=rf"{name} is {value}. Use a whole number"):
        Bounds(**{name: value})


def test_a_multiple_above_the_cap_leaves_nothing():
    with pytest.raises(InputError, match="no microbatch is left"):
        Bounds(cap=4, multiple_of=8)


def test_a_start_above_the_cap_is_refused():
    with pytest.raises(InputError, match="start 9 is above the cap 8"):
        Bounds(cap=8, start=9)


@pytest.mark.parametrize("strategy", [Doubling(refine=True), Guided(limit_bytes=1000)])
@pytest.mark.parametrize(("fits_in_another", "share"), [(147, 0.5), (900, 0.9), (991, 0.97)])
def test_where_another_process_needs_more_few_confirmations_fail(strategy, fits_in_another, share):
    """Sizes up to 1,000 fit where they are searched, and fewer where they are confirmed, as between two heaps."""
    search, num_failed = Search(strategy, Bounds(cap=4096)), 0
    while (ask := search.ask()) is not None:
        fits = ask.microbatch <= (fits_in_another if ask.confirms else 1000)
        num_failed += ask.confirms and not fits
        search.tell(ask.microbatch, fits=fits, peak_bytes=ask.microbatch if fits else None)
    assert num_failed <= 9
    assert share * fits_in_another <= search.answer <= fits_in_another
