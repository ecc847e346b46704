import pytest
from tests.conftest import WORKLOADS

from brim.errors import InputError
from brim.sweeping.memory_check import MemoryCheck, scaled, warnings_of
from brim.sweeping.plan import make_plan
from brim.sweeping.spec import read_spec


def plan_of(models, batches, **document):
    pairs = {"pairs": {"model.type": models, "hp.batch_size": batches}}
    return make_plan(read_spec({"function": "train.py:train", "sweep": {"zip": pairs}, **document}))


def needs_of(plan):
    check = MemoryCheck(plan)
    return [check.need(trial) for trial in plan], check


@pytest.mark.parametrize(
    ("gigabytes", "batch", "num_bytes"), [(2.0, 128, 4e9), (8.0, 16, 2e9), (12.0, 16, 3e9), (12.0, 64, 12e9)]
)
def test_what_was_measured_at_64_is_scaled_linearly(gigabytes, batch, num_bytes):
    assert scaled(gigabytes, batch, 10**10).num_bytes == num_bytes


def test_a_trial_that_will_not_fit_is_told_with_the_batch_that_would():
    plan = plan_of(["r3d_18", "mvit_v1_b", "swin3d_b", "s3d"], [128, 128, 128, 32], memory_check={"memory": "15GB"})
    needs, _ = needs_of(plan)
    assert [need and need.fits for need in needs] == [True, False, False, None]
    assert [need and need.fitting_batch for need in needs] == [256, 64, 64, None]
    told = warnings_of([(trial, need) for trial, need in zip(plan, needs, strict=True) if need], plan.spec)
    assert told == [
        "mvit_v1_b with hp.batch_size 128 needs about 14.9 GiB and will not fit into 14.0 GiB; hp.batch_size 64 would",
        "swin3d_b with hp.batch_size 128 needs about 22.4 GiB and will not fit into 14.0 GiB; hp.batch_size 64 would",
    ]


def test_the_file_may_add_models_and_name_a_gpu():
    plan = plan_of(["s3d"], [128], memory_check={"gb_at_64": {"s3d": 20}, "gpu": "rtx-3090"})
    (need,), check = needs_of(plan)
    assert (need.num_bytes, need.fits, need.fitting_batch) == (40e9, False, 64)
    assert check.device == "23.7 GiB of rtx-3090"


def test_a_workload_is_predicted_instead():
    document = {
        "workload": "simple.py:Train",
        "workdir": str(WORKLOADS),
        "case": {"rows": "model.rows"},
        "base": {"model": {"type": "a", "rows": 64}, "hp": {"batch_size": 1}},
        "memory_check": {"memory": "1GiB"},
    }
    plan = plan_of(["a", "a"], [4, 4096], **document)
    (small, large), check = needs_of(plan)
    assert check.problems == []
    assert small.fits
    assert not large.fits
    assert large.num_bytes > 100 * (small.num_bytes - 450 * 2**20)
    assert 4 <= small.fitting_batch < 4096


def test_a_workload_that_cannot_be_predicted_is_a_note_and_no_end():
    plan = plan_of(["a"], [4], workload="simple.py:Missing", workdir=str(WORKLOADS), memory_check={"memory": "1GiB"})
    (need,), check = needs_of(plan)
    assert need is None
    assert "the memory of simple.py:Missing cannot be predicted" in check.problems[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gb_at_64": {"s3d": 0}}, "s3d is 0. Use GB above 0"),
        ({"gb_at_64": 3}, "must map models to GB"),
        ({"gpus": "t4"}, "unknown name 'gpus'. Did you mean gpu?"),
        ({"gpu": "rtx-3900"}, "Nearest: rtx-3090"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    plan = plan_of(["a"], [4], memory_check=settings)
    with pytest.raises(InputError, match=message):
        MemoryCheck(plan)
