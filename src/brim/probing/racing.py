"""Sizes of one workload timed in turn, in the process of a probe that has run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from brim.findings import NUM_UNTIMED, Race, Verdict
from brim.probing.verdicts import classify
from brim.workload import Workload


def run_race(
    workload: Workload,
    batch: Any,
    microbatch: int,
    race: Race,
    *,
    synchronize: Callable[[], None],
    report: Callable[[], None],
) -> dict[int, list[float]]:
    """Return for each size the time of a step in every round.

    A round before the first is not timed: sizes that fail in it, as a batch of one does in a batch normalization, have
    no part in the race. Every other round goes the other way, so that a machine that slows down favours no size. The
    first step of a turn is not timed either: the size before it has left caches and allocator to itself, which would
    count once in each turn: against the only step of the largest size as much as against all those of a smaller one.

    Args:
        workload: Built, and has run.
        batch: A batch of `microbatch` samples, which is at hand.
        microbatch: The size of the probe.
        race: Which sizes, and how often; the same on all ranks, which take their steps together.
        synchronize: Waits until the device has done what it was given.
        report: Called before each step.
    """

    def time_step(size: int) -> float:
        given = batch if size == microbatch else workload.batch(size)
        seconds, num_steps = 0.0, race.steps_in_turn(size)
        for num_step in range(num_steps + NUM_UNTIMED):
            report()
            started = time.perf_counter()
            workload.step(given)
            synchronize()
            seconds += time.perf_counter() - started if num_step >= NUM_UNTIMED else 0.0
        return seconds / num_steps

    laps: dict[int, list[float]] = {}
    for size in race.sizes:
        try:
            time_step(size)
        except Exception as error:  # the user's code may raise anything
            if size == microbatch or classify(error, nearly_full=False) is Verdict.OOM:
                raise
        else:
            laps[size] = []
    for num_round in range(race.rounds):
        for size in sorted(laps, reverse=num_round % 2 == 1):
            laps[size].append(time_step(size))
    return laps
