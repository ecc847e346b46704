"""One outcome for a probe that several nodes shared."""

import pytest

from brim.findings import Probe, Verdict
from brim.probing.merging import merge_nodes
from brim.probing.outcome import Outcome


def outcome(verdict, detail=None, **measured):
    return Outcome(probe=Probe(microbatch=4, verdict=Verdict(verdict), detail=detail, **measured), log_tail="a line")


@pytest.mark.parametrize(
    ("verdicts", "order", "decides"),
    [
        (["fits", "unclear", "oom"], [0, 0, 1], 2),
        (["oom", "error", "unclear"], [0, 2, 1], 1),
        (["unclear", "unclear", "fits"], [1, 0, 0], 1),
        (["oom", "fits", "oom"], [1, 0, 0], 2),
    ],
)
def test_the_real_cause_decides_and_of_several_the_first(verdicts, order, decides):
    outcomes = [outcome(verdict, detail=f"node {node}") for node, verdict in enumerate(verdicts)]
    assert merge_nodes(outcomes, order=order) == outcomes[decides]


def test_what_fits_on_all_nodes_is_as_full_as_the_fullest_and_as_slow_as_the_slowest():
    outcomes = [
        outcome("fits", peak_bytes=7, step_seconds=0.5, samples=8, timings=(0.4, 0.5, 0.6)),
        outcome("fits", peak_bytes=9, step_seconds=0.2, samples=6),
    ]
    probe = merge_nodes(outcomes, order=[0, 0]).probe
    assert (probe.peak_bytes, probe.step_seconds, probe.samples) == (9, 0.5, 6)
    assert probe.timings == (0.4, 0.5, 0.6)


def test_an_outcome_travels_as_plain_data():
    sent = outcome("oom", detail="rank 1: no memory", timings=(0.5, 0.25), calls={"forward": 2})
    assert Outcome.from_dict(sent.to_dict()) == sent
