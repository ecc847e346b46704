import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import brim
from brim.devices.catalog import Gpu
from brim.errors import InputError, LengthError

SIMPLE = Path(__file__).parents[2] / "workloads" / "simple.py"
LENGTHS = [length for length in range(1, 101) for _ in range(3)]


def sampler(lengths=LENGTHS, **options):
    budget = {} if "largest" in options else {"max_tokens": 400}
    return brim.TokenBudgetSampler(lengths, **{**budget, **options})


@given(
    num_replicas=st.integers(1, 5),
    pack=st.booleans(),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
@settings(max_examples=40)
def test_ranks_share_every_index_in_equally_many_steps(num_replicas, pack, seed, epoch):
    samplers = [sampler(num_replicas=num_replicas, rank=rank, pack=pack, seed=seed) for rank in range(num_replicas)]
    for each in samplers:
        each.set_epoch(epoch)
    of_ranks = [list(each) for each in samplers]
    assert [len(batches) for batches in of_ranks] == [len(samplers[0])] * num_replicas
    assert sorted(index for batches in of_ranks for batch in batches for index in batch) == list(range(300))


@given(data=st.data(), num_replicas=st.integers(1, 3), epoch=st.integers(0, 3))
@settings(max_examples=40)
def test_a_loaded_state_goes_on_after_the_batches_that_were_taken(data, num_replicas, epoch):
    whole = sampler(num_replicas=num_replicas, rank=0)
    whole.set_epoch(epoch)
    num_taken = data.draw(st.integers(0, len(whole) - 1))
    iterator = iter(whole)
    before = [next(iterator) for _ in range(num_taken)]
    resumed = sampler(num_replicas=num_replicas, rank=0)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.epoch == epoch
    rest = list(resumed)
    assert rest == list(iterator)
    whole.set_epoch(epoch)
    assert before + rest == list(whole)


def test_a_dataloader_with_workers_shows_every_sample_once_an_epoch():
    dataset = TensorDataset(torch.arange(len(LENGTHS)))
    batches = sampler()
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)
    assert len(loader) == len(batches)
    epochs = [[batch.tolist() for (batch,) in loader] for _ in range(2)]
    assert [sorted(index for batch in epoch for index in batch) for epoch in epochs] == [list(range(300))] * 2
    assert epochs[0] != epochs[1]


def test_with_workers_the_state_counts_what_the_loop_has_taken():
    dataset = TensorDataset(torch.arange(len(LENGTHS)))
    batches = sampler()
    iterator = iter(DataLoader(dataset, batch_sampler=batches, num_workers=2))
    taken = [next(iterator)[0].tolist() for _ in range(3)]
    state = batches.state_dict(num_taken=3)
    # The workers are ahead of the loop, so what was handed out is not what was taken.
    assert batches.state_dict()["num_taken"] > 3
    del iterator
    resumed = sampler()
    resumed.load_state_dict(state)
    rest = [batch.tolist() for (batch,) in DataLoader(dataset, batch_sampler=resumed, num_workers=2)]
    assert taken + rest == list(sampler())


def test_an_epoch_that_ended_is_followed_by_the_next_also_after_loading():
    batches = sampler()
    first = list(batches)
    state = batches.state_dict()
    second = list(batches)
    assert batches.epoch == 1
    assert first != second
    resumed = sampler()
    resumed.load_state_dict(state)
    assert list(resumed) == second


def test_an_epoch_that_did_not_end_begins_anew():
    batches = sampler()
    first = next(iter(batches))
    assert next(iter(batches)) == first
    assert batches.epoch == 0


def test_choosing_the_loaded_epoch_keeps_its_position_and_choosing_another_does_not():
    state = sampler().state_dict(num_taken=4)
    batches = sampler()
    batches.load_state_dict(state)
    batches.set_epoch(0)
    assert list(batches) == list(sampler())[4:]
    batches.load_state_dict(state)
    batches.set_epoch(1)
    assert len(list(batches)) == len(batches)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"num_replicas": 2, "rank": 0}, "num_replicas"),
        ({"max_tokens": 500}, "fingerprint"),
        ({"lengths": LENGTHS[:-1]}, "fingerprint"),
        ({"shuffle": False}, "shuffle"),
    ],
)
def test_a_state_of_another_sampler_is_refused(options, name):
    with pytest.raises(InputError, match=f"of another sampler: its {name} is"):
        sampler(**options).load_state_dict(sampler().state_dict())


def test_what_is_no_state_is_refused():
    with pytest.raises(InputError, match="its num_replicas is None, here it is 1"):
        sampler().load_state_dict({})


def test_an_iterator_that_has_not_begun_has_taken_nothing():
    batches = sampler()
    next(iter(batches))
    iter(batches)
    assert batches.state_dict()["num_taken"] == 0


def test_batches_follow_what_was_found_for_each_length():
    largest = {25: 40, 50: 16, 100: 5}
    for batch in sampler(largest=largest):
        longest = max(LENGTHS[index] for index in batch)
        assert len(batch) <= next(size for length, size in largest.items() if longest <= length)


def test_batches_stay_below_what_is_predicted_for_their_longest_sample():
    gpu = Gpu(name="small", memory_bytes=2**30)

    def predict(rows):
        return brim.predict(f"{SIMPLE}:Train", gpu=gpu, case={"rows": rows})

    predictions = [predict(rows) for rows in (32, 128)]
    lengths = list(range(1, 129)) * 20
    batches = brim.TokenBudgetSampler(lengths, largest=predictions, interpolate=True)
    assert max(map(len, batches)) > predictions[1].largest
    for rows in (31, 47, 128):
        most = max(len(batch) for batch in batches if max(lengths[index] for index in batch) >= rows)
        assert most <= predict(rows).largest


def test_one_bucket_is_as_efficient_as_random_batches_are():
    lengths = list(range(1, 20_001))
    batches = brim.TokenBudgetSampler(lengths, largest={20_000: 8}, margin=0, batches_per_bucket=10_000)
    assert batches.padding_efficiency == pytest.approx(9 / 16, rel=0.02)
    assert brim.TokenBudgetSampler(lengths, largest={20_000: 8}, margin=0).padding_efficiency > 0.99


def test_packed_rows_are_nearly_full():
    packed = brim.TokenBudgetSampler(LENGTHS, max_tokens=400, pack=True)
    used = [sum(LENGTHS[index] for index in row) for row in packed]
    assert max(used) <= 400
    assert packed.padding_efficiency == pytest.approx(sum(used) / (400 * len(used)))
    assert packed.padding_efficiency > 0.95


def test_it_says_what_it_is():
    assert repr(sampler(num_replicas=4, rank=1)).startswith("<TokenBudgetSampler: 300 samples, ")
    assert repr(sampler(num_replicas=4, rank=1)).endswith("rank 1 of 4>")


RANK = """
import json, sys, torch, brim
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
print(json.dumps(list(brim.TokenBudgetSampler(list(range(1, 60)), max_tokens=100))))
torch.distributed.destroy_process_group()
"""


def test_ranks_are_read_from_torch_distributed(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    of_ranks = [json.loads(process.communicate()[0]) for process in processes]
    assert len(of_ranks[0]) == len(of_ranks[1])
    assert sorted(index for batches in of_ranks for batch in batches for index in batch) == list(range(59))


def test_a_sample_above_the_budget_is_named_by_its_index():
    with pytest.raises(LengthError, match=r"index 297 has length 100, above the 99 that fit.* first of 3 .*max_tokens"):
        sampler(max_tokens=99)
    with pytest.raises(LengthError, match="measure its length") as caught:
        sampler(largest={50: 10})
    assert caught.value.indices == tuple(range(150, 300))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 2}, "Pass both num_replicas and rank"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas is 0"),
        ({"num_replicas": 2, "rank": 2}, "rank is 2, but ranks count from 0 to 1"),
        ({"num_replicas": 2, "rank": -1}, "rank is -1"),
        ({"num_replicas": 1000, "rank": 1}, "300 samples .* 1000 ranks"),
        ({"batches_per_bucket": 0}, "batches_per_bucket is 0"),
        ({"seed": 1.5}, r"seed is 1\.5"),
        ({"pack": True, "largest": {100: 4}}, "pack=True packs into rows of `max_tokens`"),
        ({"pack": True, "max_samples": 4}, "pack=True packs into rows of `max_tokens`"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(options, message):
    with pytest.raises(InputError, match=message):
        sampler(**options)


@pytest.mark.parametrize("epoch", [-1, "2", None])
def test_an_epoch_that_is_no_count_is_refused(epoch):
    with pytest.raises(InputError, match="epoch is"):
        sampler().set_epoch(epoch)


def test_more_batches_than_an_epoch_has_cannot_have_been_taken():
    with pytest.raises(InputError, match="num_taken is 10000, but an epoch has"):
        sampler().state_dict(num_taken=10_000)
