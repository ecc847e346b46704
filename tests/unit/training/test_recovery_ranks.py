"""An out-of-memory on one of two real ranks: torchrun, gloo and DDP on the CPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

WORKLOADS = Path(__file__).parents[2] / "workloads"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """What every rank found, and what the job said: one for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(WORKLOADS / "recovering.py"), str(folder)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)], run.stderr


@pytest.fixture
def results(job: tuple[list[dict[str, Any]], str]) -> list[dict[str, Any]]:
    return job[0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.long
def test_the_gradient_is_that_of_the_undisturbed_run_on_all_ranks(results, place, rank):
    for result in results:
        found, truth = (result[name]["gradients"] for name in (f"{place} on {rank}", "undisturbed"))
        assert len(found) == len(truth) == 4
        for gradient, true in zip(found, truth, strict=True):
            torch.testing.assert_close(gradient, true, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.long
def test_all_ranks_go_down_to_the_same_size_before_anyone_goes_on(results, place, rank):
    name = f"{place} on {rank}"
    failed, other = results[rank][name]["calls"], results[1 - rank][name]["calls"]
    assert max(failed[3:]) == max(other[4:]) == 2  # after a first window, and what was tried of the second
    assert all("microbatches of at most 2" in result[name]["advice"] for result in results)


@pytest.mark.long
def test_batchnorm_and_dropout_are_as_if_the_failure_had_not_happened(results):
    for result in results:
        recovered, undisturbed = result["random"], result["random undisturbed"]
        assert torch.equal(recovered["random"], undisturbed["random"])
        for name, value in recovered["weights"].items():
            assert torch.equal(value, undisturbed["weights"][name]), name


@pytest.mark.long
def test_a_rank_under_a_lower_limit_of_the_kernel_makes_all_smaller(results):
    assert all(result["limit"]["is_updated"] for result in results)
    assert results[0]["limit"]["sizes"][-1] == results[1]["limit"]["sizes"][-1] < 64
    assert torch.equal(results[0]["limit"]["weight"], results[1]["limit"]["weight"])


@pytest.mark.long
def test_a_rank_without_room_to_bring_gradients_together_keeps_none_waiting(results):
    assert [result["no room"]["rooms"] for result in results] == [[True], [False]]
    assert all(result["no room"]["is_updated"] for result in results)
    torch.manual_seed(0)
    weight = torch.nn.Linear(4096, 4096, bias=False).weight.detach()[:2]
    for result in results:  # the mean over both samples, of 1 and of 2
        torch.testing.assert_close(result["no room"]["weight"], weight - 0.1 * 1.5)


@pytest.mark.long
def test_another_failure_on_one_rank_is_an_error_on_all_and_none_hangs(results):
    assert results[0]["failed"].startswith("WorkloadError: Rank 1 failed in window 1 for another reason than memory")
    assert results[1]["failed"].startswith("KeyError: 'label'")
    assert all(result["failed"].endswith("Then updated: True.") for result in results)


@pytest.mark.long
def test_the_end_of_the_way_down_is_the_same_error_on_all_ranks(results):
    assert results[0]["end"] == results[1]["end"]
    assert results[0]["end"].startswith("OutOfMemoryError: Window 1: out of memory with microbatches of 1 on rank 1")


@pytest.mark.long
def test_a_rank_whose_data_has_ended_waits_for_one_that_begins_again(results):
    assert [result["uneven"][-2:] for result in results] == [[9.0, 2.0], [9.0, 2.0]]


@pytest.mark.long
def test_one_rank_says_every_change_in_one_line(job):
    lines = [line for line in job[1].splitlines() if "out of memory with" in line]
    assert len(lines) == len(set(lines)) + 2  # forward and backward say the same
    assert all(line.endswith("The effective batch stays the same.") for line in lines)
