import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.sweeping.config import check_keys, identity, leaves, look_up, merge

NAMES = st.sampled_from(["a", "b", "hp", "model"])
NESTED = st.recursive(
    st.integers() | st.sampled_from(["", "x", None]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(NAMES, NESTED, max_size=3)


@given(CONFIGS)
def test_the_leaves_of_a_configuration_rebuild_it(config):
    assert merge({}, {key: look_up(config, key) for key in leaves(config)}) == config


@given(CONFIGS, st.integers())
def test_merging_changes_the_key_alone_and_never_the_base(config, value):
    before = repr(config)
    merged = merge(config, {"new.key": value})
    assert repr(config) == before
    assert look_up(merged, "new.key") == value
    assert {key: look_up(merged, key) for key in leaves(config)} == {
        key: look_up(config, key) for key in leaves(config)
    }


@given(st.permutations(["a", "b", "c"]))
def test_the_identity_does_not_depend_on_the_order_of_keys(order):
    assert identity(dict.fromkeys(order, 1)) == identity({"a": 1, "b": 1, "c": 1})


def test_the_identity_depends_on_every_value():
    assert len({identity({"lr": value}) for value in (1, 2, "1", True, None, [1])}) == 6


BASE = {"model": {"type": "s3d"}, "hp": {"batch_size": 8, "learning_rate": 0.1}, "seed": 0}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["hp.batchsize"], "The base has no hp.batchsize. Did you mean hp.batch_size?"),
        (["model"], "model is a branch of the base, not a value. Sweep what lies below it, such as model.type"),
        (["seed.value"], r"seed.value lies below seed, which is a value in the base \(0\)"),
        (["model", "model.type"], "model cannot be both a value and a branch: model.type lies below it"),
        (["hp..batch_size"], "'hp..batch_size' is not a key"),
    ],
)
def test_keys_that_cannot_be_meant_are_refused_with_what_could(keys, message):
    with pytest.raises(InputError, match=message):
        check_keys(keys, BASE)


def test_without_a_base_every_key_is_welcome_but_a_leaf_is_still_no_branch():
    check_keys(["anything.at.all"], None)
    with pytest.raises(InputError, match="both a value and a branch"):
        check_keys(["a", "a.b"], None)
