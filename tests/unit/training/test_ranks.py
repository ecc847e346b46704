"""Accumulation over two real ranks: torchrun, gloo, DDP and FSDP2 on the CPU, against one process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.slow

WORKLOADS = Path(__file__).parents[2] / "workloads"


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Any]:
    """The file that the ranks run, as a module."""
    sys.path.insert(0, str(WORKLOADS))
    try:
        import ranks

        yield ranks
    finally:
        sys.path.remove(str(WORKLOADS))
        sys.modules.pop("ranks", None)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank found: one job for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, str(WORKLOADS / "ranks.py"), str(folder)],
        capture_output=True, text=True, env=environment, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def true_gradients(scenarios, windows) -> list[torch.Tensor]:
    """One forward and backward pass over all that all ranks have in a window, in one process."""
    net = scenarios.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for window in windows:
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
        gradients.append(torch.cat([gradient.reshape(-1) for gradient in flat]))
        optimizer.step()
    return gradients


def windows_of(batches_by_rank, accumulation):
    num_windows = max(-(-len(batches) // accumulation) for batches in batches_by_rank)
    return [
        [batch for batches in batches_by_rank for batch in batches[k * accumulation : (k + 1) * accumulation]]
        for k in range(num_windows)
    ]


def assert_equal_on_all_ranks(results, name, truth):
    for result in results:
        found = result[name]["gradients"] if isinstance(result[name], dict) else result[name]
        assert len(found) == len(truth)
        for gradient, true in zip(found, truth, strict=True):
            torch.testing.assert_close(gradient, true, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "uneven"),
    [("ddp windows", False), ("ddp uneven", True), ("fsdp windows", False), ("plain windows", False)],
)
def test_two_ranks_have_the_gradient_of_one_process(scenarios, results, name, uneven):
    for seed in range(scenarios.NUM_DRAWS):
        accumulation, batches = scenarios.draw(seed, uneven=uneven)
        truth = true_gradients(scenarios, windows_of(batches, accumulation))
        assert_equal_on_all_ranks([{name: result[name][seed]} for result in results], name, truth)


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_whole_batches_of_unequal_ranks_have_the_gradient_of_one_process(scenarios, results, wrap):
    windows = [
        [scenarios.make_batch(5 if rank == 0 else 3 + seed, seed=2 * seed + rank) for rank in range(2)]
        for seed in range(4)
    ]
    assert_equal_on_all_ranks(results, f"{wrap} batches", true_gradients(scenarios, windows))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_every_rank_goes_on_where_it_was_saved(scenarios, results, wrap):
    assert_equal_on_all_ranks(results, f"{wrap} saved", true_gradients(scenarios, windows_of(scenarios.draw(3)[1], 3)))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_nan_on_one_rank_is_raised_on_all_and_the_next_window_is_right(scenarios, results, wrap):
    windows = [[scenarios.make_batch(2 + rank, seed=10 * k + rank) for k in range(3, 6) for rank in range(2)]]
    assert_equal_on_all_ranks(results, f"{wrap} raised", true_gradients(scenarios, windows))
    for result in results:
        assert "Microbatch 2 of window 1 on rank 1 has a loss of nan" in result[f"{wrap} raised"]["said"]


@pytest.mark.parametrize(("name", "at"), [("skipped", 1), ("skipped last", 2)])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_nan_on_one_rank_can_be_left_out(scenarios, results, wrap, name, at):
    def is_left_out(k, rank):
        # With sharded parameters every rank has to run every backward pass, or none does.
        return k == at and (rank == 1 or wrap == "fsdp")

    windows = [
        [
            scenarios.make_batch(2 + rank, seed=10 * k + rank)
            for k in range(first, first + 3)
            for rank in range(2)
            if not is_left_out(k, rank)
        ]
        for first in (0, 3)
    ]
    assert_equal_on_all_ranks(results, f"{wrap} {name}", true_gradients(scenarios, windows))
    assert f"Microbatch {at + 1} of window 1 on rank 1 has a loss of nan" in results[1][f"{wrap} {name}"]["said"]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_an_overflow_on_one_rank_skips_the_update_on_all(results, wrap):
    for result in results:
        assert result[f"{wrap} overflow"] == {"updated": [False, False, False, True], "scale": 2.0**9}


def test_a_rank_that_ends_too_early_is_told_on_all_ranks(results):
    for result in results:
        assert "Rank 1 has finished with 1 microbatches in window 2" in result["ddp too early"]
        assert "uneven=True" in result["ddp too early"]


def test_a_model_that_was_not_wrapped_is_told_once(results):
    assert "There are 2 ranks, and the model is neither" in results[0]["plain"]
    assert results[1]["plain"] == ""


def test_a_forward_pass_out_of_turn_does_not_lose_the_communication(scenarios, results):
    windows = [[scenarios.make_batch(2 + k, seed=10 * k + rank) for k in range(2) for rank in range(2)]]
    assert_equal_on_all_ranks(results, "ddp out of turn", true_gradients(scenarios, windows))


def test_a_gradient_that_one_rank_lacks_counts_as_zero(scenarios, results):
    net = scenarios.Net()
    for rank in range(2):
        x, y = scenarios.make_batch(3, seed=rank)
        (scenarios.loss_sum(net, x, y, extra=rank == 1) / 6).backward()
    truth = torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])
    assert_equal_on_all_ranks(results, "ddp one head", [truth])


def test_ranks_communicate_gradients_once_a_window(results):
    for result in results:
        after = result["ddp communication"]
        assert after[:2] == [0, 0]
        assert after[2] == after[3] == after[4] > 0
        assert after[5] > after[4]


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [("none", []), ("missing ranks", ["missing × ranks"]), ("mean of ranks", ["mean of means"])],
)
def test_an_audit_over_ranks_names_what_is_wrong_between_them(results, mistake, cause):
    found = [result[f"audit {mistake}"] for result in results]
    assert found[0]["causes"] == found[1]["causes"] == [cause, cause]
    assert found[0]["num_ranks"] == 2
    assert found[0]["items"] == found[1]["items"]
    if mistake == "missing ranks":
        assert found[0]["ratios"] == pytest.approx([0.5, 0.5], rel=1e-6)
