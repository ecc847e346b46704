from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.planning.batching import lay_out, lay_out_packed
from brim.planning.length_budget import TokenBudget, make_budget
from brim.planning.lengths import as_lengths, padding_efficiency

all_lengths = st.lists(st.integers(1, 64), min_size=1, max_size=200)
budgets = st.one_of(
    st.builds(TokenBudget, max_tokens=st.integers(64, 400)),
    st.builds(
        lambda sizes, interpolate: make_budget(largest=sizes, max_tokens=None, interpolate=interpolate, margin=0.0),
        st.dictionaries(st.integers(1, 63), st.integers(1, 40)).map(lambda sizes: {**sizes, 64: 3}),
        st.booleans(),
    ),
)
ranks = st.integers(1, 9)


def batches_of_all_ranks(layout, **options):
    epoch = layout.epoch(**{"number": 0, "seed": 0, "shuffle": True, **options})
    return [epoch.batch(step, rank) for step in range(layout.num_steps) for rank in range(layout.num_ranks)]


def check_every_index_once(batches, lengths, *, num_missing):
    times = Counter(index for batch in batches for index in batch)
    assert set(times) == set(range(len(lengths)))
    assert sum(times.values()) == len(lengths) + num_missing


def repeated_samples(layout, lengths):
    return len(layout.places) - len(lengths)


@given(
    lengths=all_lengths,
    budget=budgets,
    num_ranks=ranks,
    batches_per_bucket=st.integers(0, 5),
    number=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_every_index_comes_once_in_a_batch_that_the_budget_allows(
    lengths, budget, num_ranks, batches_per_bucket, number, shuffle
):
    layout = lay_out(
        as_lengths(lengths),
        budget,
        batches_per_bucket=batches_per_bucket,
        num_ranks=num_ranks,
        allow_repeats=True,
    )
    batches = batches_of_all_ranks(layout, number=number, shuffle=shuffle)
    check_every_index_once(batches, lengths, num_missing=repeated_samples(layout, lengths))
    assert len(batches) % num_ranks == 0
    for batch in batches:
        assert 1 <= len(batch) <= budget.largest_at(max(lengths[index] for index in batch))


@given(lengths=all_lengths, capacity=st.integers(64, 200), num_ranks=ranks, number=st.integers(0, 3))
def test_every_index_comes_once_in_a_row_of_the_capacity(lengths, capacity, num_ranks, number):
    layout = lay_out_packed(as_lengths(lengths), capacity, num_ranks=num_ranks, allow_repeats=True)
    batches = batches_of_all_ranks(layout, number=number)
    check_every_index_once(batches, lengths, num_missing=repeated_samples(layout, lengths))
    assert all(1 <= sum(lengths[index] for index in batch) <= capacity for batch in batches)


@given(lengths=all_lengths, num_ranks=ranks)
def test_nothing_repeats_while_batches_can_be_split(lengths, num_ranks):
    budget = TokenBudget(max_tokens=128)
    num_batches = len(lay_out(as_lengths(lengths), budget, batches_per_bucket=1).ends)
    possible = -(-num_batches // num_ranks) * num_ranks <= len(lengths)
    if possible:
        layout = lay_out(as_lengths(lengths), budget, batches_per_bucket=1, num_ranks=num_ranks)
        assert repeated_samples(layout, lengths) == 0
        assert layout.num_steps == -(-num_batches // num_ranks)
    else:
        with pytest.raises(InputError, match="cannot make the same number of steps"):
            lay_out(as_lengths(lengths), budget, batches_per_bucket=1, num_ranks=num_ranks)


def test_fewer_samples_than_ranks_are_refused_with_what_to_do():
    message = r"2 samples in 1 batches .* 3 ranks: the last step lacks 2.* allow_repeats=True to repeat 2"
    with pytest.raises(InputError, match=message):
        lay_out(as_lengths([3, 4]), TokenBudget(max_tokens=100), batches_per_bucket=1, num_ranks=3)


def test_repeats_fill_the_last_step():
    layout = lay_out(
        as_lengths([3, 4]), TokenBudget(max_tokens=4), batches_per_bucket=1, num_ranks=3, allow_repeats=True
    )
    assert Counter(map(tuple, batches_of_all_ranks(layout))) == {(1,): 1, (0,): 2}


def test_the_last_step_is_shared_evenly_by_its_ranks():
    layout = lay_out(as_lengths([1] * 40), TokenBudget(max_tokens=16), batches_per_bucket=1, num_ranks=2)
    assert [len(batch) for batch in batches_of_all_ranks(layout, shuffle=False)] == [16, 16, 4, 4]


def test_epochs_differ_in_their_batches_and_not_in_their_number():
    lengths = as_lengths(range(1, 201))
    layout = lay_out(lengths, TokenBudget(max_tokens=1000), batches_per_bucket=4)
    first, again, second = (batches_of_all_ranks(layout, number=number) for number in (0, 0, 1))
    assert first == again
    assert len(first) == len(second)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert batches_of_all_ranks(layout, seed=1) != first


def test_samples_of_one_length_meet_any_other():
    layout = lay_out(as_lengths([8] * 60), TokenBudget(max_tokens=24), batches_per_bucket=1)
    met = {
        index
        for number in range(200)
        for batch in batches_of_all_ranks(layout, number=number)
        if 0 in batch
        for index in batch
    }
    assert met == set(range(60))


def test_the_longest_samples_come_in_the_first_step_of_every_epoch():
    lengths = as_lengths([5] * 50 + [90])
    layout = lay_out(lengths, TokenBudget(max_tokens=100), batches_per_bucket=1, num_ranks=2)
    for number in range(20):
        epoch = layout.epoch(number, seed=0, shuffle=True)
        assert 50 in [*epoch.batch(0, 0), *epoch.batch(0, 1)]


def test_ranks_have_samples_of_like_lengths_in_a_step():
    lengths = as_lengths(range(1, 401))
    layout = lay_out(lengths, TokenBudget(max_tokens=800), batches_per_bucket=1, num_ranks=4)
    epoch = layout.epoch(3, seed=0, shuffle=True)
    for step in range(layout.num_steps):
        longest = [max(lengths[index] for index in epoch.batch(step, rank)) for rank in range(4)]
        assert max(longest) - min(longest) <= 100


def test_without_shuffling_samples_come_by_length():
    layout = lay_out(as_lengths([3, 9, 4, 8, 2]), TokenBudget(max_tokens=18), batches_per_bucket=0)
    assert batches_of_all_ranks(layout, shuffle=False) == [[1, 3], [2, 0, 4]]


def test_buckets_of_more_batches_mix_more_and_pad_more():
    lengths = as_lengths(range(1, 1001))
    budget = TokenBudget(max_tokens=8000)
    efficiencies = [
        padding_efficiency(lengths, batches_of_all_ranks(lay_out(lengths, budget, batches_per_bucket=number)))
        for number in (1, 8, 64)
    ]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiencies[0] > 0.95


def test_the_fingerprint_tells_layouts_apart():
    lengths = as_lengths([3, 9, 4, 8, 2])

    def fingerprint(lengths=lengths, max_tokens=18, num_ranks=1):
        budget = TokenBudget(max_tokens=max_tokens)
        return lay_out(lengths, budget, batches_per_bucket=1, num_ranks=num_ranks).fingerprint

    assert fingerprint() == fingerprint()
    others = [fingerprint(as_lengths([9, 3, 4, 8, 2])), fingerprint(max_tokens=9), fingerprint(num_ranks=3)]
    assert len({fingerprint(), *others}) == 4
