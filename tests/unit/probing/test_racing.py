"""Races: sizes that take turns in one process, each for about as many samples."""

import pytest

from brim.findings import Probe, Race, Verdict
from brim.probing.racing import run_race


class Counting:
    """A workload without work that notes the sizes it was given; some of them fail."""

    def __init__(self, failing=None):
        self.failing = failing or {}
        self.steps = []

    def batch(self, size):
        return size

    def step(self, batch):
        self.steps.append(batch)
        if batch in self.failing:
            raise self.failing[batch]


def race(workload, sizes=(2, 4, 8), rounds=2):
    return run_race(workload, 8, 8, Race(sizes, rounds), synchronize=lambda: None, report=lambda: None)


def test_every_turn_has_as_many_samples_and_every_other_round_goes_the_other_way():
    workload = Counting()
    laps = race(workload)
    turn = {size: [size] * (1 + 8 // size) for size in (2, 4, 8)}
    up, down = [*turn[2], *turn[4], *turn[8]], [*turn[8], *turn[4], *turn[2]]
    assert workload.steps == [*up, *up, *down]
    assert {size: len(seconds) for size, seconds in laps.items()} == {2: 2, 4: 2, 8: 2}


def test_the_first_step_of_a_turn_is_not_timed(monkeypatch):
    workload, clock = Counting(), [0.0]

    def step(batch):
        is_first = not workload.steps or workload.steps[-1] != batch
        workload.steps.append(batch)
        clock[0] += 100.0 if is_first else batch

    monkeypatch.setattr(workload, "step", step)
    monkeypatch.setattr("brim.probing.racing.time.perf_counter", lambda: clock[0])
    laps = race(workload, rounds=1)
    assert laps == {2: [2.0], 4: [4.0], 8: [8.0]}


def test_a_smaller_size_that_fails_has_no_part_in_it():
    workload = Counting({2: ValueError("Expected more than 1 value per channel when training")})
    assert set(race(workload)) == {4, 8}


@pytest.mark.parametrize("failing", [{8: ValueError("no")}, {2: MemoryError()}])
def test_the_probes_own_size_and_memory_are_no_matter_of_taste(failing):
    with pytest.raises(type(next(iter(failing.values())))):
        race(Counting(failing))


def test_laps_survive_being_written_down():
    probe = Probe(microbatch=8, verdict=Verdict.FITS, laps={4: (0.1, 0.2), 8: (0.2, 0.3)})
    assert Probe.from_dict(probe.to_dict()) == probe
    assert Race.from_dict(Race((2, 4), 3).to_dict()) == Race((2, 4), 3)
