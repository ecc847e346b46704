import pytest

from brim.cases import Case
from brim.errors import InputError
from brim.searching import Bounds, Estimate, ScaleTable, Search
from brim.searching.estimate import MAX_TRIES


def sizes_tried(fails, scale=0.3, cap=64):
    search = Search(Estimate(scale=scale), Bounds(cap=cap, tries=MAX_TRIES), confirm=False)
    tried = []
    while (ask := search.ask()) is not None:
        tried.append(ask.microbatch)
        search.tell(ask.microbatch, fits=ask.microbatch not in fails)
    return tried


def test_it_grows_by_half_up_to_the_cap():
    assert sizes_tried(fails=()) == [19, 28, 42, 63, 64]


def test_it_halves_then_bisects_when_the_start_fails():
    assert sizes_tried(fails=(19,)) == [19, 9, 14, 16, 17]


def test_it_bisects_when_growing_fails():
    assert sizes_tried(fails=(28,)) == [19, 28, 23, 25, 26]


@pytest.mark.parametrize(
    ("max_crops", "start"), [(1, 64), (2, 64), (3, 51), (6, 38), (8, 32), (10, 25), (12, 19), (13, 16), (99, 16)]
)
def test_the_table_gives_the_known_starts(max_crops, start):
    scale = ScaleTable().scale(Case({"max_crops": max_crops}))
    assert sizes_tried(fails=(), scale=scale)[0] == start


def test_a_case_with_several_numbers_must_say_which():
    with pytest.raises(InputError, match="several numbers: seq_len, px"):
        ScaleTable().scale(Case({"seq_len": 2, "px": 224}))
    assert ScaleTable(key="px").scale(Case({"seq_len": 2, "px": 224})) == 0.25


def test_crops_are_meant_where_there_are_other_numbers():
    assert ScaleTable().scale(Case({"max_crops": 12, "px": 224})) == 0.3


def test_a_case_without_numbers_starts_at_the_cap():
    assert ScaleTable().scale(Case({"precision": "bf16"})) == 1.0


def test_a_table_is_read_from_plain_data():
    table = ScaleTable.from_mapping({"key": "px", "scales": {224: 1.0, 448: 0.3}, "above": 0.1})
    assert [table.scale(Case({"px": px})) for px in (224, 300, 500)] == [1.0, 0.3, 0.1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "mapping with `scales`"),
        ({"scales": {2: "half"}}, "numbers only"),
        ({"scales": {2: 1.5}}, "at most 1"),
        ({"scales": {4: 0.5, 2: 1.0}}, "must rise"),
        ({"scales": {2: 1.0}, "keys": "x"}, "has no 'keys'"),
    ],
)
def test_a_bad_table_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        ScaleTable.from_mapping(data)


def test_without_a_cap_there_is_nothing_to_take_a_share_of():
    search = Search(Estimate(), Bounds())
    with pytest.raises(InputError, match="--cap 64"):
        search.ask()
