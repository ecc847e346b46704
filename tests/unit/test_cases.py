import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.cases import Case, as_cases, parse_cases
from brim.errors import InputError


def test_repeated_flags_multiply_in_order():
    cases = parse_cases(["max_crops=2,4", "px=224..226"])
    assert [dict(case) for case in cases] == [{"max_crops": c, "px": p} for c in (2, 4) for p in (224, 225, 226)]


@given(st.integers(-50, 50), st.integers(0, 50))
def test_a_range_holds_both_ends_and_all_between(first, length):
    cases = parse_cases([f"n={first}..{first + length}"])
    assert [case["n"] for case in cases] == list(range(first, first + length + 1))


def test_start_from_skips_what_comes_before():
    cases = parse_cases(["max_crops=2..13"], start_from="max_crops=12")
    assert [case["max_crops"] for case in cases] == [12, 13]


def test_values_keep_their_types():
    (case,) = parse_cases(["a=1", "b=0.5", "c=true", "d=bf16"])
    assert dict(case) == {"a": 1, "b": 0.5, "c": True, "d": "bf16"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["max_crops"], "is not KEY=VALUES"),
        (["max_crops="], "has a key without a value"),
        (["max_crops=2,,4"], "has a key without a value"),
        (["=3"], "is not KEY=VALUES"),
        (["n=13..2"], "Write 2..13"),
        (["n=1,1"], "names a value twice"),
        (["n=1..100000"], "at most 10,000"),
        (["n=1..1000", "m=1..1000"], "too many"),
    ],
)
def test_a_bad_case_is_refused_with_what_to_do(flags, message):
    with pytest.raises(InputError, match=message):
        parse_cases(flags)


@pytest.mark.parametrize("start", ["px=3", "n=9", "n=1,2"])
def test_start_from_must_name_a_case(start):
    with pytest.raises(InputError, match="--start-from"):
        parse_cases(["n=1,2,3"], start_from=start)


def test_an_empty_list_of_cases_is_refused():
    with pytest.raises(InputError, match="list of cases is empty"):
        as_cases([])


def test_equal_cases_are_equal_whatever_their_order():
    assert Case({"a": 1, "b": 2}) == Case({"b": 2, "a": 1})
    assert hash(Case({"a": 1, "b": 2})) == hash(Case({"b": 2, "a": 1}))


def test_no_case_means_the_default_case():
    assert as_cases(None) == [Case()]
    assert str(Case()) == "default"


def test_a_range_of_no_numbers_is_refused():
    with pytest.raises(InputError, match=r"'2..x' is not FIRST..LAST"):
        parse_cases(["max_crops=2..x"])
