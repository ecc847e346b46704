import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brim
from brim.errors import InputError
from brim.planning.batch_plan import BatchPlan, describe, gives, split
from brim.planning.choices import at_microbatch, nearest_even

COUNTS = st.integers(1, 5000)


@given(effective=COUNTS, largest=st.integers(1, 200), ranks=st.integers(1, 64))
def test_every_plan_is_exact_fits_and_uses_the_fewest_microbatches(effective, largest, ranks):
    try:
        planned = brim.plan(effective, largest=largest, ranks=ranks)
    except InputError as error:
        assert effective < ranks or "without a sample" in str(error)  # noqa: PT017
        return
    sizes = [planned.microbatches_of(rank) for rank in range(ranks)]
    assert sum(map(sum, sizes)) == effective
    assert all(1 <= size <= largest for each in sizes for size in each)
    assert {len(each) for each in sizes} == {planned.accumulation}
    assert max(map(max, sizes)) - min(map(min, sizes)) <= 1
    assert planned.microbatch == max(map(max, sizes))
    # One microbatch fewer on each rank could not hold the largest share.
    assert (planned.accumulation - 1) * largest < sum(sizes[0])


@given(effective=COUNTS, ranks=st.integers(1, 64), largest=st.integers(1, 200))
def test_ranks_are_alike_where_they_divide_and_otherwise_a_note_says_so(effective, ranks, largest):
    try:
        planned = brim.plan(effective, largest=largest, ranks=ranks)
    except InputError:
        return
    assert planned.ranks_are_even == (effective % ranks == 0)
    assert any("Ranks differ" in note for note in planned.notes) == (not planned.ranks_are_even)
    if planned.ranks_are_even:
        assert planned.microbatches_of(ranks - 1) == planned.microbatches


@given(microbatch=COUNTS, accumulation=COUNTS, ranks=COUNTS)
def test_settings_amount_to_their_product_and_come_back(microbatch, accumulation, ranks):
    planned = gives(microbatch, accumulation=accumulation, ranks=ranks)
    assert planned.effective == microbatch * accumulation * ranks
    assert planned.is_even
    assert brim.plan(planned.effective, largest=microbatch, ranks=ranks).microbatch == microbatch


@given(total=COUNTS, num_parts=st.integers(1, 100))
def test_a_split_is_exact(total, num_parts):
    parts = split(total, num_parts)
    assert sum(parts) == total
    assert len(parts) == num_parts
    assert sorted(parts, reverse=True) == list(parts)


@given(target=COUNTS, largest=st.integers(1, 200), ranks=st.integers(1, 16))
@example(target=2003, largest=2, ranks=1)
def test_the_nearest_even_choice_is_even_and_fits(target, largest, ranks):
    choice = nearest_even(target, largest=largest, ranks=ranks)
    assert choice.plan.is_even
    assert choice.plan.microbatch <= largest
    assert choice.plan.effective - target == choice.difference
    # No further off than half a sample in every microbatch of the fewest, or one sample in each where there is no room.
    assert abs(choice.difference) <= max(ranks, choice.plan.accumulation * ranks)


@given(target=COUNTS, microbatch=st.integers(1, 200), ranks=st.integers(1, 16))
def test_choices_at_a_microbatch_keep_it_and_surround_the_target(target, microbatch, ranks):
    choices = at_microbatch(target, microbatch=microbatch, ranks=ranks)
    assert all(choice.plan.microbatch == microbatch for choice in choices)
    assert abs(choices[0].difference) <= abs(choices[-1].difference)
    assert max(choice.difference for choice in choices) >= 0
    if target >= microbatch * ranks:
        assert min(choice.difference for choice in choices) <= 0


def test_the_known_answers():
    assert brim.plan(100, largest=40).microbatches == (34, 33, 33)
    assert brim.plan(80, largest=4, ranks=5).microbatches == (4, 4, 4, 4)
    assert gives(4, accumulation=5, ranks=4).effective == 80
    nearest = at_microbatch(100, microbatch=32)[0]
    assert (nearest.plan.accumulation, nearest.plan.effective, nearest.difference) == (3, 96, -4)


def test_an_exact_even_plan_is_preferred_to_a_near_one():
    choice = nearest_even(100, largest=40)
    assert (choice.plan.microbatch, choice.plan.accumulation, choice.difference) == (25, 4, 0)


def test_the_document_is_the_documented_one():
    document = brim.plan(80, largest=4, ranks=5).to_dict()
    assert document == {
        "schema": "brim.plan/1",
        "effective": 80,
        "ranks": 5,
        "microbatch": 4,
        "accumulation": 4,
        "microbatches": [4, 4, 4, 4],
        "per_rank": None,
        "notes": [],
    }
    uneven = brim.plan(9, largest=3, ranks=2).to_dict()
    assert uneven["per_rank"] == [[3, 2], [2, 2]]
    assert any("Ranks differ" in note for note in uneven["notes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"effective": 0, "largest": 4}, "effective is 0"),
        ({"effective": -8, "largest": 4}, "effective is -8"),
        ({"effective": 8, "largest": 0}, "largest is 0"),
        ({"effective": 8, "largest": 4, "ranks": 0}, "ranks is 0"),
        ({"effective": 8.0, "largest": 4}, "effective is 8.0"),
        ({"effective": True, "largest": 4}, "effective is True"),
        ({"effective": 3, "largest": 4, "ranks": 8}, "at most 3 ranks"),
        ({"effective": 9, "largest": 1, "ranks": 8}, "without a sample. Use 16 or more"),
        ({"effective": 10**12, "largest": 1}, "takes 1,000,000,000,000 microbatches a step"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_to_do(arguments, message):
    with pytest.raises(InputError, match=message):
        brim.plan(arguments.pop("effective"), **arguments)


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="Use 0 to 1"):
        BatchPlan(effective=8, ranks=2).microbatches_of(2)


def test_many_microbatches_are_written_short():
    assert describe((5,) * 3 + (4,) * 9) == "3 × 5 + 9 × 4"


@given(target=COUNTS, largest=st.integers(1, 200), ranks=st.integers(1, 16))
@example(target=2003, largest=2, ranks=1)
def test_the_nearest_even_choice_is_the_nearest_with_up_to_twice_the_steps(target, largest, ranks):
    fewest = -(-target // (ranks * largest))
    misses = [
        abs(size * steps * ranks - target) for steps in range(1, 2 * fewest + 1) for size in range(1, largest + 1)
    ]
    assert abs(nearest_even(target, largest=largest, ranks=ranks).difference) == min(misses)


def test_of_equally_near_choices_the_one_with_the_fewest_steps_is_taken():
    choice = nearest_even(97, largest=10)
    assert (choice.plan.microbatch, choice.plan.accumulation) == (8, 12)


def test_256_over_5_ranks_is_planned_exactly():
    planned = brim.plan(256, largest=20, ranks=5)
    assert [planned.microbatches_of(rank) for rank in (0, 1)] == [(18, 17, 17), (17, 17, 17)]
    assert "Ranks differ: 1 with 52 samples, 4 with 51. 255 or 260 would divide over 5." in planned.notes


def test_a_plan_shows_its_microbatch():
    assert repr(BatchPlan(effective=60, accumulation=3, ranks=5)) == (
        "BatchPlan(microbatch=4, accumulation=3, ranks=5, effective=60)"
    )
    assert "notes=('mind',)" in repr(BatchPlan(effective=8, notes=("mind",)))
