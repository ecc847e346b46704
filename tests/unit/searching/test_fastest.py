"""The goal `fastest` on made-up devices: few probes, an answer that ran, close to the best rate there is."""

from hypothesis import given
from hypothesis import strategies as st

from brim.findings import Race
from brim.searching import Bounds, Fastest, Search, fastest_fit

LIMIT_BYTES = 1000


def search(seconds, *, largest=10**6, cap=1024, races=False, multiple_of=1):
    """Run a search where a step of `size` takes `seconds(size)` and sizes up to `largest` fit."""
    strategy = Fastest(limit_bytes=LIMIT_BYTES, races=races)
    found = Search(strategy, Bounds(cap=cap, multiple_of=multiple_of), choose=fastest_fit)
    num_probes = 0
    while (ask := found.ask()) is not None:
        race = strategy.race(found.known, ask.microbatch) if races and not ask.confirms else Race((), 0)
        fits = ask.microbatch <= largest
        peak_bytes = int(LIMIT_BYTES * ask.microbatch / largest)
        found.tell(
            ask.microbatch,
            fits=fits,
            peak_bytes=peak_bytes if fits else None,
            step_seconds=seconds(ask.microbatch) if fits else None,
            laps={size: (seconds(size),) * race.rounds for size in race.sizes} if fits else None,
        )
        assert not race.sizes or ask.microbatch in race.sizes
        assert all(size <= largest for size in race.sizes if fits)
        num_probes += 1
    return found, num_probes


def test_an_answer_at_the_cap_was_stopped_by_it_and_another_by_the_rate():
    rising, _ = search(lambda size: 100 + size, cap=24)
    assert (rising.answer, rising.stopped_by) == (24, "cap")
    flat, _ = search(lambda size: 0.01 + size, cap=24)
    assert flat.answer < 24
    assert flat.stopped_by == "rate"


@given(knee=st.floats(0.01, 10), largest=st.integers(1, 2048), races=st.booleans())
def test_on_a_line_the_answer_is_within_5_percent_of_the_best_in_at_most_six_probes(knee, largest, races):
    found, num_probes = search(lambda size: knee + size, largest=largest, races=races)
    top = min(largest, 1024)
    assert found.confirmed
    assert found.answer <= top
    assert num_probes <= 6
    assert found.answer / (knee + found.answer) >= 0.95 * top / (knee + top)


@given(knee=st.floats(0.01, 12), races=st.booleans())
def test_where_memory_is_no_matter_the_answer_is_within_5_percent(knee, races):
    found, num_probes = search(lambda size: knee + size, races=races)
    assert num_probes <= 6
    assert found.answer / (knee + found.answer) >= 0.95 * 1024 / (knee + 1024)


@given(turn=st.integers(4, 64), slower=st.floats(1.5, 4), races=st.booleans())
def test_where_larger_is_slower_the_answer_is_not_a_large_one(turn, slower, races):
    def seconds(size):
        return 0.5 + (size if size <= turn else turn + slower * (size - turn))

    found, num_probes = search(seconds, races=races)
    rates = {size: size / seconds(size) for size in found.known.rates}
    assert num_probes <= 6
    assert rates[found.answer] >= 0.97 * max(rates.values())
    assert found.answer <= 4 * turn


def test_a_confirmation_that_fails_gives_another_answer_that_ran():
    found = Search(Fastest(limit_bytes=LIMIT_BYTES), Bounds(cap=64), choose=fastest_fit)
    failed = None
    while (ask := found.ask()) is not None:
        fits = not (ask.confirms and failed in (None, ask.microbatch))
        failed = failed or (ask.microbatch if not fits else None)
        found.tell(ask.microbatch, fits=fits, peak_bytes=1 if fits else None, step_seconds=4 + ask.microbatch)
    assert failed is not None
    assert found.answer != failed
    assert found.confirmed


def test_a_size_with_luck_is_not_taken_for_one_that_is_fast():
    found, _ = search(lambda size: (4 + size) * (0.72 if size == 8 else 1.0), cap=64)
    rates = found.known.rates
    assert rates[8] >= 0.97 * max(rates.values())
    assert found.answer > 8


def test_what_slows_the_machine_in_one_race_does_not_move_the_answer():
    slowness = iter([1.0, 1.4, 0.8, 1.2, 1.0])

    def laps(race):
        return {size: (next_slowness * (1 + size),) * race.rounds for size in race.sizes}

    strategy = Fastest(limit_bytes=LIMIT_BYTES, races=True)
    steady, _ = search(lambda size: 1 + size, races=True, cap=64)
    found = Search(strategy, Bounds(cap=64), choose=fastest_fit)
    while (ask := found.ask()) is not None:
        next_slowness = next(slowness)
        race = Race((), 0) if ask.confirms else strategy.race(found.known, ask.microbatch)
        found.tell(ask.microbatch, fits=True, peak_bytes=1, step_seconds=next_slowness, laps=laps(race))
    assert found.answer == steady.answer


@given(multiple_of=st.integers(1, 16), cap=st.integers(16, 100))
def test_a_race_has_only_sizes_that_may_be_asked_for(multiple_of, cap):
    found, _ = search(lambda size: 3 + size, races=True, cap=cap, multiple_of=multiple_of)
    assert all(size % multiple_of == 0 and size <= cap for size in found.known.rates)
    assert found.answer in found.known.rates


def test_it_goes_down_where_the_first_size_does_not_fit():
    found, _ = search(lambda size: 1 + size, largest=3)
    assert found.answer == 3
    assert found.stopped_by == "rate"
