"""The expander against plain enumeration."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.sweeping.config import canonical
from brim.sweeping.grid import Dimension, Grid

VALUES = st.one_of(st.integers(0, 3), st.booleans(), st.sampled_from(["a", "b", "r3d_18"]), st.floats(0, 1))


@st.composite
def dimensions(draw):
    """One to four dimensions with keys of their own; some are groups of two keys."""
    made = []
    for index in range(draw(st.integers(1, 4))):
        keys = tuple(f"d{index}.k{number}" for number in range(draw(st.integers(1, 2))))
        length = draw(st.integers(1, 4))
        columns = tuple(draw(st.lists(VALUES, min_size=length, max_size=length)) for _ in keys)
        made.append(Dimension(name=f"d{index}", keys=keys, columns=columns).without_duplicates())
    return tuple(made)


@st.composite
def grids(draw):
    """Grids with exclusions of keys they have, mostly of values they have, and inclusions."""
    made = draw(dimensions())
    columns = {key: column for dimension in made for key, column in zip(dimension.keys, dimension.columns, strict=True)}
    values = {key: st.one_of(st.sampled_from(list(column)), VALUES) for key, column in columns.items()}
    clause = st.dictionaries(st.sampled_from(list(columns)), st.none(), min_size=1).flatmap(
        lambda chosen: st.fixed_dictionaries({key: values[key] for key in chosen})
    )
    include = st.one_of(st.fixed_dictionaries(values), clause)
    return Grid(
        dimensions=made,
        exclude=tuple(draw(st.lists(clause, max_size=4))),
        include=tuple(draw(st.lists(include, max_size=4))),
    )


def enumerate_plainly(grid):
    """Everything by the definition: product, minus what an exclusion matches, plus what is new."""
    found = {}
    for points in itertools.product(*(range(len(dimension)) for dimension in grid.dimensions)):
        config = {}
        for dimension, position in zip(grid.dimensions, points, strict=True):
            config |= dict(zip(dimension.keys, dimension.point(position), strict=True))
        if not any(all(canonical(config[key]) == canonical(clause[key]) for key in clause) for clause in grid.exclude):
            found[canonical(config)] = config
    for config in grid.include:
        found.setdefault(canonical(config), dict(config))
    return list(found.values())


@given(grids())
def test_the_count_and_the_order_equal_enumeration(grid):
    expected = enumerate_plainly(grid)
    assert len(grid) == len(expected)
    assert list(grid) == expected


@given(grids())
def test_indexing_equals_iterating(grid):
    assert [grid[index] for index in range(len(grid))] == list(grid)
    with pytest.raises(IndexError, match=f"of {len(grid)}"):
        grid[len(grid)]


@given(grids())
def test_it_contains_what_it_yields_and_nothing_that_is_excluded(grid):
    yielded = {canonical(config) for config in grid}
    assert all(config in grid for config in grid)
    for clause in grid.exclude:
        for config in grid:
            is_excluded = all(canonical(config.get(key)) == canonical(clause[key]) for key in clause)
            assert not is_excluded or canonical(config) in {canonical(each) for each in grid.include}
    assert ({"d0.k0": "not a value"} in grid) == (canonical({"d0.k0": "not a value"}) in yielded)


@given(grids())
def test_no_trial_comes_twice(grid):
    texts = [canonical(config) for config in grid]
    assert len(texts) == len(set(texts))


@given(dimensions())
def test_the_order_is_stable_and_the_first_dimension_varies_slowest(made):
    grid = Grid(dimensions=made)
    assert list(grid) == list(grid)
    first = [tuple(config[key] for key in made[0].keys) for config in grid]
    per_point = len(grid) // len(made[0])
    assert first == [made[0].point(position) for position in range(len(made[0])) for _ in range(per_point)]


@given(grids())
def test_the_arithmetic_adds_up(grid):
    count = grid.count
    assert count.num_trials == count.num_product - count.num_excluded + count.num_included == len(grid)
    assert str(count).startswith(" × ".join(f"{size:,} {name}" for name, size in count.sizes.items()))


def test_a_group_is_one_dimension():
    lr = Dimension(name="lr", keys=("lr",), columns=([0.001, 0.01],))
    pairs = Dimension(name="pairs", keys=("model", "batch"), columns=(list("abcdefghi"), [128, 64, 128, *[16] * 6]))
    grid = Grid(dimensions=(lr, pairs))
    assert len(grid) == 18
    assert [grid[index]["model"] for index in range(3)] == ["a", "b", "c"]
    assert str(grid.count) == "2 lr × 9 pairs = 18 trials"


def test_the_arithmetic_names_exclusions_inclusions_and_duplicates():
    lr = Dimension(name="lr", keys=("lr",), columns=([0.1, 0.2, 0.1],)).without_duplicates()
    grid = Grid(dimensions=(lr,), exclude=({"lr": 0.2},), include=({"lr": 0.3}, {"lr": 0.1}))
    assert str(grid.count) == "2 lr; − 1 excluded; + 1 included = 2 trials (2 duplicates dropped)"


def test_numbers_are_equal_by_value_and_truth_values_are_not_numbers():
    dimension = Dimension(name="k", keys=("k",), columns=([1, 1.0, True, "1"],)).without_duplicates()
    assert dimension.columns == ((1, True, "1"),)
    assert len(Grid(dimensions=(dimension,), exclude=({"k": 1.0},))) == 2


def test_an_exclusion_that_matches_nothing_is_told():
    lr = Dimension(name="lr", keys=("lr",), columns=([0.1, 0.2],))
    grid = Grid(dimensions=(lr,), exclude=({"lr": 0.1}, {"lr": 0.01}))
    assert grid.unmatched() == [{"lr": 0.01}]


def test_an_exclusion_of_a_key_that_is_not_swept_is_refused():
    lr = Dimension(name="lr", keys=("lr",), columns=([0.1, 0.2],))
    grid = Grid(dimensions=(lr,), exclude=({"learning_rate": 0.1},))
    with pytest.raises(InputError, match="must name keys that are swept: lr"):
        len(grid)


def test_inclusions_alone_make_a_grid():
    grid = Grid(dimensions=(), include=({"a": 1}, {"a": 1}, {"a": 2}))
    assert list(grid) == [{"a": 1}, {"a": 2}]


class Counting(Sequence):
    """Ten values, and how often one was asked for."""

    num_asked = 0

    def __len__(self):
        return 10

    def __getitem__(self, index):
        Counting.num_asked += 1
        return index


@given(st.integers(0, 890_999))
def test_a_million_trials_are_counted_and_indexed_without_being_made(index):
    made = tuple(Dimension(name=f"d{n}", keys=(f"d{n}",), columns=(Counting(),)) for n in range(6))
    grid = Grid(dimensions=made, exclude=({"d0": 3, "d5": 4}, {"d0": 3}, {"d2": 0, "d5": 4}))
    Counting.num_asked = 0
    assert len(grid) == 10**6 - 10**5 - 9 * 10**3
    assert grid[index] in grid
    assert next(iter(grid)) == {f"d{n}": 0 for n in range(6)}
    assert Counting.num_asked < 500
