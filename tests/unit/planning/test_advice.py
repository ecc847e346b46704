import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.planning.advice import advise
from brim.planning.batch_plan import gives, plan
from brim.planning.learning_rate import scale_learning_rate


def topics(*args, **kwargs):
    return {advice.topic: advice for advice in advise(*args, **kwargs)}


def test_accumulation_on_one_device_is_advised_against():
    found = topics(plan(100, largest=40))
    assert found["accumulation"].plan.effective == 34
    assert "accumulation" not in topics(plan(100, largest=40, ranks=2))
    assert topics(plan(100, largest=100)) == {}


def test_gradients_that_accumulation_holds_are_pointed_out_where_nobody_counted_them():
    assert (
        "found with them held" in topics(plan(100, largest=40), largest=40, gradients_counted=False)["gradients"].text
    )
    assert "gradients" not in topics(plan(40, largest=40), largest=40, gradients_counted=False)


def test_a_batch_beyond_the_dataset_is_advised_against():
    assert "Use at most 100" in topics(gives(256), dataset_size=100)["dataset"].text
    assert "195 steps an epoch; 80 are left" in topics(gives(256), dataset_size=50_000)["dataset"].text


def test_memory_to_spare_raises_the_microbatch_and_lowers_the_accumulation():
    found = topics(gives(4, accumulation=4, ranks=5), largest=16)["slow"]
    assert (found.plan.microbatch, found.plan.accumulation, found.plan.effective) == (16, 1, 80)
    assert "slow" not in topics(plan(80, largest=4, ranks=5), largest=4)


def test_settings_that_do_not_fit_are_told_so():
    found = topics(gives(8, accumulation=2, ranks=2), largest=5)["memory"]
    assert "Microbatch 8 does not fit, 5 does" in found.text
    assert (found.plan.microbatch, found.plan.accumulation, found.plan.effective) == (4, 4, 32)


def test_slow_training_without_memory_to_spare_is_told_so():
    assert "fewest that fit" in topics(plan(80, largest=4, ranks=5), largest=4, symptom="slow")["slow"].text


def test_unstable_training_raises_the_effective_batch():
    found = topics(gives(2, accumulation=8, ranks=5), symptom="unstable")["unstable"]
    assert (found.plan.microbatch, found.plan.accumulation, found.plan.effective) == (2, 16, 160)


def test_running_out_of_memory_halves_the_microbatch_at_the_same_effective_batch():
    found = topics(gives(8, accumulation=2, ranks=5), symptom="oom")["oom"]
    assert (found.plan.microbatch, found.plan.accumulation, found.plan.effective) == (4, 4, 80)
    assert "oom" not in topics(gives(8, accumulation=2), largest=4, symptom="oom"), "what fits is known"
    assert "One sample does not fit" in topics(gives(1), symptom="oom")["oom"].text


def test_a_symptom_that_is_not_known_is_refused():
    with pytest.raises(InputError, match="oom, unstable, slow"):
        advise(gives(4), symptom="sad")
    with pytest.raises(InputError, match="dataset's size is 0"):
        advise(gives(4), dataset_size=0)


@given(
    rate=st.floats(1e-6, 1.0),
    tuned_at=st.integers(1, 4096),
    effective=st.integers(1, 4096),
    beta2=st.floats(0.5, 0.9999),
)
def test_scaling_follows_the_rules(rate, tuned_at, effective, beta2):
    ratio = effective / tuned_at
    adam = scale_learning_rate(rate, tuned_at=tuned_at, effective=effective, beta2=beta2)
    assert adam.learning_rate == pytest.approx(rate * math.sqrt(ratio))
    # The half-life in samples stays.
    if 0 < adam.beta2 < 1:
        assert effective / -math.log(adam.beta2) == pytest.approx(tuned_at / -math.log(beta2), rel=1e-3)
    sgd = scale_learning_rate(rate, tuned_at=tuned_at, effective=effective, optimizer="sgd")
    assert sgd.learning_rate == pytest.approx(rate * ratio)
    assert sgd.beta2 is None
    assert any("Warm up" in reason for reason in sgd.reasons)


def test_a_far_ratio_asks_for_a_sweep():
    assert any("sweep" in reason for reason in scale_learning_rate(1e-3, tuned_at=32, effective=4096).reasons)
    assert not any("sweep" in reason for reason in scale_learning_rate(1e-3, tuned_at=32, effective=64).reasons)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning rate is 0.0"),
        ({"learning_rate": math.nan}, "learning rate is nan"),
        ({"tuned_at": 0}, "tuned_at is 0"),
        ({"optimizer": "lion"}, "adam, sgd"),
        ({"beta2": 1.0}, "β₂ is 1.0"),
    ],
)
def test_what_cannot_be_scaled_is_refused(arguments, message):
    arguments = {"learning_rate": 1e-3, "tuned_at": 64, "effective": 128, **arguments}
    with pytest.raises(InputError, match=message):
        scale_learning_rate(arguments.pop("learning_rate"), **arguments)


def test_slow_with_nothing_known_asks_for_what_fits():
    (advice,) = advise(gives(8, ranks=2), symptom="slow")
    assert "Pass --largest" in advice.text


def test_slow_with_one_microbatch_does_not_blame_accumulation():
    (advice,) = advise(gives(256, ranks=2), largest=1000, symptom="slow")
    assert "One microbatch a step already" in advice.text
