from types import SimpleNamespace

import pytest

from brim.reporting.remarks import remarks

_NOTHING_ELSE = {
    "has_recurrence": False,
    "token_stride": 1,
    "keeps_batch": False,
    "is_random": False,
    "is_waiting": False,
    "other_kind": None,
    "unread": (),
    "missed": (),
    "kept_bytes": 0,
}


def ended(**how):
    plain = {"largest": 1432, "cap": 1432, "stopped_by": "memory", "fits_above": None, "expandable_helps": False}
    return SimpleNamespace(**{**plain, "selects_all": False, "is_unplaced": False, **_NOTHING_ELSE, **how})


def test_what_was_counted_whole_is_said():
    assert "was counted whole" in remarks(ended(selects_all=True))[0]
    assert remarks(ended()) == []


def test_where_no_cap_was_given_none_is_spoken_of():
    (told,) = remarks(ended(stopped_by="cap", cap=None))
    assert "stopped at 1,432, beyond which brim does not look" in told


def test_a_workload_that_is_not_what_it_says_is_told_so():
    assert "bounds may be too close" in remarks(ended(has_recurrence=True))[0]
    assert "every step would hold one more" in remarks(ended(keeps_batch=True))[0]
    assert "largest of a few draws" in remarks(ended(is_random=True))[0]
    assert "not seen to step twice" in remarks(ended(is_waiting=True))[0]
    assert "one token in 3 was replayed" in remarks(ended(token_stride=3))[0]
    assert "put on self.device" in remarks(ended(is_unplaced=True), is_searched=False)[0]
    assert 'no backward pass: say kind = "eval"' in remarks(ended(other_kind="eval"), is_searched=False)[0]
    assert 'a backward pass: say kind = "train"' in remarks(ended(other_kind="train"), is_searched=False)[0]


def test_a_name_that_the_workload_does_not_ask_for_is_told_with_what_it_asks_for():
    (told,) = remarks(ended(unread=("seqlen",), missed=("seq_len",)))
    assert told == "seqlen in the case changes nothing in the workload, which asks for seq_len."


def test_the_little_that_steps_keep_is_told():
    assert "keeps 4 B more" in remarks(ended(kept_bytes=4))[0]


@pytest.mark.parametrize(
    ("stopped_by", "fits_above", "expandable_helps", "said"),
    [
        ("memory", None, False, ""),
        ("cap", None, False, "stopped at the cap of 1,432, not at the end of the memory"),
        ("time", None, False, "stopped at 1,432, not at the end of the memory: a larger microbatch runs so many"),
        (
            "memory",
            1512,
            False,
            "Some sizes above 1,432 fit too, up to 1,512, by the accident of how the allocator cuts",
        ),
        ("memory", 1512, True, "segments; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids that."),
    ],
)
def test_how_a_search_ended_is_said_under_its_answer(stopped_by, fits_above, expandable_helps, said):
    how = {"stopped_by": stopped_by, "fits_above": fits_above, "expandable_helps": expandable_helps}
    told = " ".join(remarks(ended(**how)))
    assert said in told
    assert bool(said) == bool(told)
