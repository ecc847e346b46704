from types import SimpleNamespace

import pytest

from brim.reporting.remarks import remarks
from brim.tracing.observed import Observed

_PLAIN = {"largest": 1432, "cap": 1432, "stopped_by": "memory", "fits_above": None, "unfit_below": None}
_PLAIN |= {"expandable_helps": False}


def ended(**how):
    return SimpleNamespace(**{**_PLAIN, "observed": Observed(), **how})


def saw(**what):
    return ended(observed=Observed(**what))


def test_what_was_counted_whole_is_said():
    assert "was counted whole" in remarks(saw(selects_all=True))[0]
    assert remarks(ended()) == []


def test_where_no_cap_was_given_none_is_spoken_of():
    (told,) = remarks(ended(stopped_by="cap", cap=None))
    assert "stopped at 1,432, beyond which brim does not look" in told


def test_a_workload_that_is_not_what_it_says_is_told_so():
    assert "bounds may be too close" in remarks(saw(has_recurrence=True))[0]
    assert "every step would hold one more" in remarks(saw(keeps_batch=True))[0]
    assert "largest of a few draws" in remarks(saw(is_random=True))[0]
    assert remarks(saw(branches=("train.py:3 (if loss > 1:)",)))[0].startswith(
        "train.py:3 (if loss > 1:) may go either"
    )
    assert "not seen to step twice" in remarks(saw(is_waiting=True))[0]
    assert "one token in 3 was replayed" in remarks(saw(token_stride=3))[0]
    assert "put on self.device" in remarks(saw(is_unplaced=True), is_searched=False)[0]
    assert 'no backward pass: say kind = "eval"' in remarks(saw(other_kind="eval"), is_searched=False)[0]
    assert 'a backward pass: say kind = "train"' in remarks(saw(other_kind="train"), is_searched=False)[0]


def test_a_name_that_the_workload_does_not_ask_for_is_told_with_what_it_asks_for():
    (told,) = remarks(saw(unread=("seqlen",), missed=("seq_len",)))
    assert told == "seqlen in the case changes nothing in the workload, which asks for seq_len."


def test_a_name_that_another_case_was_asked_for_is_no_mistake():
    assert remarks(saw(unread=("reentrant",)), read={"reentrant"}) == []


def test_a_size_below_that_does_not_fit_is_told():
    (told,) = remarks(ended(unfit_below=1400))
    assert told.startswith("Some sizes below 1,432 do not fit, such as 1,400, by the accident of how")


def test_a_single_sample_that_does_not_run_is_told():
    assert remarks(saw(single_failure="step fails: …")) == ["A microbatch of 1 does not run: step fails: …"]


def test_the_little_that_steps_keep_is_told():
    assert "keeps 4 B more" in remarks(saw(kept_bytes=4))[0]


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
