"""The drop-in for Accelerate's decorator: up, down, remembered, the same on every rank; with the real library."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from tests.unit.probing.test_snapshot import fingerprint
from torch import nn

from brim.devices import make_meter
from brim.errors import DeviceError, InputError, NothingFitsError, WorkloadError
from brim.history import History
from brim.integrations.accelerate import find_executable_batch_size
from brim.probing.in_process import release_memory

WORKLOADS = Path(__file__).parents[2] / "workloads"


class Job:
    """A small training function that keeps a record of its calls."""

    def __init__(self, *, largest: int = 10**6, largest_in_run: int = 10**6, num_steps: int = 5) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.calls: list[int] = []
        self.starts: list[object] = []
        self.num_steps_taken = 0
        self._largest, self._largest_in_run, self._num_steps = largest, largest_in_run, num_steps

    def __call__(self, batch_size: int) -> int:
        self.calls.append(batch_size)
        self.starts.append(fingerprint(self.model, self.optimizer))
        for step in range(self._num_steps):
            if batch_size > (self._largest if step < 4 else self._largest_in_run):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            self.model(torch.randn(batch_size, 4)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.num_steps_taken += 1
        return batch_size


def decorate(job, **settings):
    return find_executable_batch_size(**{"device": "cpu", "memory": "4GiB", "cache": False, **settings})(job)


def test_it_goes_up_from_the_first_size_as_far_as_it_fits():
    job = Job(largest=23)
    assert decorate(job, starting_batch_size=16, cap=32)() == 23
    assert job.calls[0] == 16
    assert job.calls[-1] == 23


def test_it_goes_down_when_the_first_size_does_not_fit():
    assert decorate(Job(largest=5), starting_batch_size=8)() == 5


def test_probes_are_ended_after_a_few_steps_and_the_run_starts_as_if_there_had_been_none():
    job = Job(num_steps=50)
    assert decorate(job, starting_batch_size=4, cap=8, steps=3)() == 8
    assert job.calls == [4, 8, 8]
    assert job.num_steps_taken == 2 + 2 + 50  # a probe's third step does not come back
    assert job.starts[0] == job.starts[1] == job.starts[2]


def test_a_call_after_the_first_does_not_search_again():
    job = Job(largest=10)
    run = decorate(job, starting_batch_size=10, cap=10)
    run()
    num_calls = len(job.calls)
    assert run() == 10
    assert job.calls[num_calls:] == [10]


@pytest.mark.long
def test_another_process_remembers_and_confirms_with_one_probe():
    def job(batch_size):
        return inner(batch_size)

    inner = Job(largest=10)
    assert decorate(job, cache=True, starting_batch_size=5, cap=10)() == 10
    inner = Job(largest=10)
    assert decorate(job, cache=True, starting_batch_size=5, cap=10)() == 10
    assert inner.calls == [10, 10]


def test_a_run_that_is_out_of_memory_later_starts_again_smaller_and_that_is_remembered(caplog):
    job = Job(largest=40, largest_in_run=37)
    assert decorate(job, cache=True, starting_batch_size=40, cap=40)() == 36
    assert job.calls[-2:] == [40, 36]
    assert "starting it again with 36" in caplog.text
    assert History(warn=pytest.fail).newest(1)[0].finding.microbatch == 36


def test_the_users_own_rule_of_reducing_is_followed():
    sizes = iter([7, 5])
    job = Job(largest=16, largest_in_run=5)
    assert decorate(job, starting_batch_size=16, cap=16, reduce_batch_size_fn=lambda: next(sizes))() == 5
    assert job.calls[-3:] == [16, 7, 5]


def test_nothing_fits_is_said_with_what_helps():
    run = decorate(Job(largest=0), starting_batch_size=8)
    with pytest.raises(NothingFitsError, match="smallest tried was 1"):
        run()


def test_a_limit_that_the_process_has_passed_already_is_refused():
    with pytest.raises(DeviceError, match=r"holds .* before the first probe, and the limit is 9\.00 MiB"):
        decorate(Job(), memory="10MiB")()


def test_an_error_of_the_function_is_no_lack_of_memory():
    def broken(batch_size):
        nn.Linear(4, 1)(torch.ones(batch_size, 5))

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as caught:
        decorate(broken)()
    assert not isinstance(caught.value, WorkloadError)


@pytest.mark.parametrize("raised", [ValueError("mine"), SystemExit(3)])
def test_what_the_function_raises_arrives_as_it_is(raised):
    cause = KeyError("its own cause")

    def broken(batch_size):
        raise raised from cause

    with pytest.raises(type(raised)) as caught:
        decorate(broken)()
    assert caught.value is raised
    assert raised.__cause__ is cause


def test_nothing_is_kept_of_a_probe_that_ran_out_of_memory():
    held = []

    def hungry(batch_size):
        assert not any(reference() is not None for reference in held)
        activations = torch.ones(batch_size)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(NothingFitsError):
        decorate(hungry, starting_batch_size=2)()
    assert len(held) == 2


def test_a_function_without_a_step_starts_with_the_first_size_as_with_accelerate(caplog):
    sizes = []

    def count(batch_size, factor):
        sizes.append(batch_size)
        if batch_size > 10:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return factor * batch_size

    assert decorate(count, starting_batch_size=8)(2) == 16
    assert decorate(count, starting_batch_size=12)(2) == 20
    assert max(sizes) == 12
    assert "without a step of kind 'train'" in caplog.text


def test_a_cap_of_nothing_is_refused():
    with pytest.raises(InputError, match="cap is 0"):
        decorate(Job(), cap=0)


def test_a_batch_size_passed_by_hand_is_refused_as_accelerate_does():
    with pytest.raises(TypeError, match="Leave out the batch size"):
        decorate(Job().__call__)(32)
    with pytest.raises(InputError, match="kind is 'test'"):
        decorate(Job(), kind="test")


def test_an_evaluation_is_ended_after_forward_passes():
    model, num_passes = nn.Linear(4, 1), 0

    def evaluate(batch_size, passes):
        nonlocal num_passes
        for _ in range(passes):
            with torch.no_grad():
                model(torch.ones(batch_size, 4))
            num_passes += 1
        return batch_size

    assert decorate(evaluate, kind="eval", starting_batch_size=4, cap=4)(passes=20) == 4
    assert num_passes == 3 + 20


@pytest.mark.long
def test_the_real_library_trains_under_a_real_limit():
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    sizes = []

    def train(batch_size):
        accelerator.free_memory()
        loader = torch.utils.data.DataLoader([torch.ones(1024, 256)] * batch_size * 4, batch_size=batch_size)
        prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
        for batch in prepared[2]:
            with accelerator.accumulate(prepared[0]):
                accelerator.backward(prepared[0](batch).mean())
                prepared[1].step()
                prepared[1].zero_grad()
            sizes.append(len(batch))
        return batch_size

    release_memory()
    memory = make_meter("cpu").peaks()["peak_bytes"] + 200 * 2**20
    found = decorate(train, starting_batch_size=512, memory=memory, fill=1.0)()
    # Three activations of 1 MiB and the batch itself for each sample.
    assert 20 <= found <= 100
    assert sizes[-4:] == [found] * 4


@pytest.mark.long
def test_two_ranks_take_the_size_that_fits_both_and_none_waits_for_the_other(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIM_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [*command, str(WORKLOADS / "job_ranks.py"), "accelerate"],
        capture_output=True, text=True, env=environment, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(line for line in run.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 ran with 24, weights equal: True",
        "rank 1 ran with 24, weights equal: True",
    ]
    assert run.stderr.count("running with batch size 24") == 1
