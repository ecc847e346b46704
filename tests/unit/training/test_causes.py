import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.training.auditing.causes import ADVICE, Cause, Fit, Weighting, name_causes

RIGHT = Fit(scale=1.0, residual=0.0)
OFF = Fit(scale=0.9, residual=0.4)


def named(fits, *, num_microbatches=4, accumulation=4, num_ranks=1, items=37.0, elsewhere=()):
    return name_causes(
        fits,
        num_microbatches=num_microbatches,
        accumulation=accumulation,
        num_ranks=num_ranks,
        items=items,
        tolerance=1e-3,
        elsewhere=elsewhere,
    )


def of_items(scale):
    return {Weighting.ITEMS: Fit(scale=scale, residual=0.0), Weighting.MICROBATCHES: OFF}


def of_microbatches(scale):
    return {Weighting.ITEMS: OFF, Weighting.MICROBATCHES: Fit(scale=scale, residual=0.0)}


@pytest.mark.parametrize(
    ("fits", "settings", "causes"),
    [
        (of_items(1.0), {}, ()),
        (of_microbatches(1.0), {}, (Cause.MEAN_OF_MEANS,)),
        (of_items(0.5), {"num_microbatches": 2}, (Cause.CONSTANT_TAIL,)),
        (of_microbatches(0.5), {"num_microbatches": 2}, (Cause.MEAN_OF_MEANS, Cause.CONSTANT_TAIL)),
        (of_items(0.25), {}, (Cause.DOUBLE_DIVISION,)),
        (of_items(1 / 3), {"num_microbatches": 3}, (Cause.DOUBLE_DIVISION,)),
        (of_items(0.125), {"num_microbatches": 2}, (Cause.CONSTANT_TAIL, Cause.DOUBLE_DIVISION)),
        (of_items(37.0), {}, (Cause.NO_DIVISION,)),
        (of_items(4.0), {}, (Cause.NO_DIVISION,)),
        (of_microbatches(4.0), {}, (Cause.MEAN_OF_MEANS, Cause.NO_DIVISION)),
        (of_items(1 / 3), {"num_ranks": 3}, (Cause.MISSING_RANKS,)),
        (of_items(1 / 6), {"num_ranks": 3, "num_microbatches": 2}, (Cause.MISSING_RANKS, Cause.CONSTANT_TAIL)),
        (of_items(0.97), {}, (Cause.WRONG_DIVISOR,)),
        ({Weighting.ITEMS: OFF, Weighting.MICROBATCHES: OFF}, {}, (Cause.UNKNOWN,)),
        ({Weighting.ITEMS: OFF, Weighting.RANKS: RIGHT}, {"num_ranks": 2}, (Cause.MEAN_OF_MEANS,)),
    ],
)
def test_numbers_have_names(fits, settings, causes):
    assert named(fits, **settings) == causes


def test_a_tail_of_one_is_taken_for_a_constant_division_not_for_two():
    assert named(of_items(0.25), num_microbatches=1) == (Cause.CONSTANT_TAIL,)


def test_a_tail_suffers_from_what_is_wrong_elsewhere():
    # Half: 2 of 4 microbatches divided by 4, or divided by 2 twice.
    assert named(of_items(0.5), num_microbatches=2) == (Cause.CONSTANT_TAIL,)
    assert named(of_items(0.5), num_microbatches=2, elsewhere={Cause.DOUBLE_DIVISION}) == (Cause.DOUBLE_DIVISION,)
    assert named(of_items(0.5), num_microbatches=2, elsewhere={Cause.MEAN_OF_MEANS}) == (Cause.CONSTANT_TAIL,)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.floats(1, 1e6))
def test_a_right_gradient_never_has_a_cause(num_microbatches, more, num_ranks, items):
    fits = {Weighting.ITEMS: RIGHT, Weighting.MICROBATCHES: RIGHT}
    accumulation = num_microbatches + more - 1
    assert named(fits, num_microbatches=num_microbatches, accumulation=accumulation, num_ranks=num_ranks) == ()


def test_every_cause_has_advice():
    assert set(ADVICE) == set(Cause)
