from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.cases import Case
from brim.errors import InputError
from brim.findings import Finding, Findings
from brim.planning.length_budget import make_budget


@dataclass(frozen=True)
class Predicted:
    """As much of a prediction as a budget looks at."""

    case: Case
    interval: tuple[int, int]
    largest: int = 0


def findings(sizes, name="seq_len"):
    found = tuple(
        Finding(case=Case({name: length}), microbatch=size, stopped_by="memory", confirmed=True, probes=())
        for length, size in sizes.items()
    )
    return Findings(
        workload="x", kind="train", device_name="cpu", memory_bytes=1, fill=0.9, strategy="guided", findings=found
    )


def measured(largest, **options):
    return make_budget(largest=largest, max_tokens=None, **{"margin": 0, **options})


# Bytes of a step: fixed + fixed per token + samples × (each + linear × length + quadratic × length²).
costs = st.tuples(*[st.integers(0, 1000)] * 2, st.integers(0, 500), st.integers(1, 50), st.integers(0, 3))


@given(
    cost=costs,
    memory=st.integers(1_000, 10_000_000),
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=6, unique=True),
    interpolate=st.booleans(),
)
def test_a_batch_of_any_length_fits_where_the_measured_ones_do(cost, memory, lengths, interpolate):
    fixed, per_position, each, linear, quadratic = cost

    def largest(length):
        free = memory - fixed - per_position * length
        return max(0, free // (each + linear * length + quadratic * length**2))

    assume(largest(min(lengths)) > 0)
    budget = measured({length: largest(length) for length in lengths}, interpolate=interpolate)
    for length in range(1, budget.longest + 1):
        assert 1 <= budget.largest_at(length) <= largest(length)


@given(
    sizes=st.dictionaries(st.integers(1, 300), st.integers(1, 1000), min_size=1, max_size=6),
    interpolate=st.booleans(),
)
def test_longer_samples_never_get_larger_batches(sizes, interpolate):
    budget = measured(sizes, interpolate=interpolate)
    found = [budget.largest_at(length) for length in range(1, budget.longest + 1)]
    assert found == sorted(found, reverse=True)
    assert all(budget.largest_at(length) <= size for length, size in sizes.items())


def test_interpolating_gives_larger_batches_between_the_measured_lengths_and_the_same_at_them():
    stepped, interpolated = measured({256: 60, 512: 20}), measured({256: 60, 512: 20}, interpolate=True)
    assert stepped.largest_at(384) == 20
    assert interpolated.largest_at(384) == 30
    assert interpolated.largest_at(256) == stepped.largest_at(256) == 60
    assert interpolated.largest_at(512) == stepped.largest_at(512) == 20


def test_findings_are_taken_by_the_only_name_of_their_cases():
    budget = measured(findings({256: 60, 512: 20}))
    assert [budget.largest_at(length) for length in (256, 512)] == [60, 20]


def test_a_length_of_which_nothing_fits_ends_the_budget():
    assert measured(findings({256: 60, 512: None})).longest == 256
    assert measured({256: 60, 512: 0, 1024: 3}).longest == 256


def test_of_predictions_the_lower_bound_is_taken():
    predictions = [Predicted(Case({"seq_len": n}), interval=(64 * 256 // n, 70 * 256 // n)) for n in (256, 512)]
    budget = measured(predictions)
    assert [budget.largest_at(length) for length in (256, 512)] == [64, 32]


def test_a_tenth_is_left_unused_unless_told_otherwise_but_never_the_last_sample():
    budget = make_budget(largest={256: 60, 512: 1}, max_tokens=None)
    assert [budget.largest_at(length) for length in (256, 512)] == [54, 1]


def test_tokens_are_counted_with_their_padding():
    budget = make_budget(largest=None, max_tokens=4096)
    assert [budget.largest_at(length) for length in (1, 1000, 4096)] == [4096, 4, 1]
    assert budget.longest == 4096
    assert make_budget(largest=None, max_tokens=4096, max_samples=100).largest_at(1) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `largest`"),
        ({"largest": {8: 1}, "max_tokens": 4}, "either `largest`"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -3}, "max_tokens is -3"),
        ({"max_tokens": 8.5}, r"max_tokens is 8\.5"),
        ({"max_tokens": 8, "max_samples": 0}, "max_samples is 0"),
        ({"max_tokens": 8, "interpolate": True}, "interpolate and margin are for `largest`"),
        ({"max_tokens": 8, "margin": 0.0}, "interpolate and margin are for `largest`"),
        ({"largest": {8: 4}, "margin": 1}, "margin is 1"),
        ({"largest": {8: 4}, "margin": -0.1}, r"margin is -0\.1"),
        ({"largest": {}}, "no length of which even one sample fits"),
        ({"largest": {8: 0}}, "no length of which even one sample fits"),
        ({"largest": {8: -1}}, r"largest\[8\] is -1"),
        ({"largest": {0: 4}}, "A length in `largest` is 0"),
        ({"largest": {"256": 4}}, "A length in `largest` is '256'"),
        ({"largest": 32}, "`largest` is 32"),
        ({"largest": [32]}, "neither a finding nor a prediction"),
        ({"largest": findings({"long": 4})}, "The case's seq_len is 'long'"),
        (
            {"largest": [Predicted(Case({"seq_len": 8, "px": 224}), (1, 2))]},
            "Which name of the case 'seq_len=8 px=224'",
        ),
    ],
)
def test_bad_budgets_are_refused_with_what_would_do(options, message):
    with pytest.raises(InputError, match=message):
        make_budget(**{"largest": None, "max_tokens": None, **options})
