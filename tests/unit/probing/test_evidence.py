import pytest
import torch
from torch import nn

from brim.probing.evidence import collect, wrong_size


def test_it_counts_outermost_calls_backward_passes_and_optimizer_steps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    with collect() as evidence:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert evidence.to_dict() == {"forward": 3, "backward": 3, "optimizer": 3}
    assert evidence.missing("train") is None


def test_it_counts_again_after_a_forward_that_raised():
    model = nn.Linear(4, 4)
    with collect() as evidence:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(2, 5))
        model(torch.ones(2, 4))
    assert evidence.forward == 2


def test_it_leaves_no_hook_behind():
    backward = torch.autograd.backward
    with collect() as evidence:
        pass
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    assert torch.autograd.backward is backward
    assert evidence.forward == 0


def test_it_counts_functional_gradients():
    weight = torch.ones(3, requires_grad=True)
    with collect() as evidence:
        torch.autograd.grad(weight.sum(), weight)
    assert evidence.backward == 1


@pytest.mark.parametrize(
    ("kind", "counts", "missing"),
    [
        ("train", (0, 0, 0), "forward or backward pass"),
        ("train", (1, 0, 0), "backward pass"),
        ("train", (1, 1, 0), "optimizer step"),
        ("eval", (0, 0, 0), "forward pass of a module"),
        ("generate", (1, 0, 0), None),
    ],
)
def test_it_says_what_a_step_did_not_do(kind, counts, missing):
    with collect() as evidence:
        evidence.forward, evidence.backward, evidence.optimizer = counts
    assert evidence.missing(kind) == missing


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(6, 3),
        torch.zeros(9, 6, 3),
        torch.zeros(12, 5),
        {"ids": torch.zeros(6, 3), "offset": torch.zeros(1)},
        [torch.zeros(6)],
        "a text",
        None,
        torch.tensor(3.0),
    ],
)
def test_a_batch_that_may_hold_the_samples_is_accepted(batch):
    assert wrong_size(batch, 6, lambda size: torch.zeros(9, size, 3)) is None


def test_a_sample_may_be_several_rows():
    assert wrong_size(torch.zeros(12, 5), 6, lambda size: torch.zeros(2 * size, 5)) is None


def test_a_batch_of_always_the_same_size_is_none_even_where_that_is_a_multiple():
    fixed = torch.zeros(12, 5)
    assert wrong_size(fixed, 6, lambda size: fixed).endswith("and so does batch(1): it ignores its size")


def test_a_batch_that_cannot_be_made_of_a_single_sample_is_not_judged():
    def refuse(size):
        raise ValueError("at least two")

    assert wrong_size(torch.zeros(12, 5), 6, refuse) is None


def test_a_second_dimension_that_only_happens_to_be_the_size_is_no_batch():
    batch = torch.zeros(8, 60, 4)
    assert "ignores its size" in wrong_size(batch, 60, lambda size: batch)


def test_a_batch_that_ends_with_its_data_is_told_with_the_cap_that_helps():
    rows = torch.zeros(50, 3)
    assert wrong_size(rows, 60, lambda size: rows[:size]).endswith("search up to it: cap=50 (--cap 50)")


@pytest.mark.parametrize(
    ("feed", "seen"),
    [
        (lambda model, batch: model(batch), 20),
        (lambda model, batch: model(batch[:1]), 2),
        (lambda model, batch: [model(part) for part in batch.split(5)], 20),
        (lambda model, batch: model(batch.reshape(1, -1, 4)), 20),
        (lambda model, batch: model(batch[:5]), 10),  # half is not all
        (lambda model, batch: model(batch.reshape(2, -1, 4)), 20),
        (lambda model, batch: model(batch[:1].repeat(1, 50, 1)), None),  # more than there is: nobody knows of what
        (lambda model, batch: model(input=batch[:1]), None),  # keywords cannot be seen
    ],
)
def test_samples_are_those_that_the_model_was_given(feed, seen):
    model, batch = torch.nn.Linear(4, 2), torch.zeros(10, 4)
    with collect() as evidence:
        for _ in range(2):
            feed(model, batch)
    assert evidence.samples(batch, 10, steps=2) == seen


class ByName(nn.Module):
    """Takes keywords, as models of transformers do, and gives them on by name and then by position."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *, ids):
        return self.inner(ids=ids) if isinstance(self.inner, ByName) else self.inner(ids)


@pytest.mark.parametrize(("batch", "seen"), [(torch.zeros(10, 4), 20), (None, 20), (torch.zeros(99, 4), None)])
def test_what_is_given_by_name_is_seen_where_it_is_given_on(batch, seen):
    model = ByName(ByName(nn.Linear(4, 2)))
    with collect() as evidence:
        for _ in range(2):
            model(ids=torch.zeros(10, 4))
    assert evidence.forward == 2
    size = 10 if batch is None else len(batch)
    assert evidence.samples(batch, size, steps=2) == seen


def test_hidden_states_of_few_samples_are_no_evidence_of_many():
    model = ByName(nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64)))
    with collect() as evidence:
        model(ids=torch.zeros(1, 4))
    assert evidence.samples(torch.zeros(10, 4), 10, steps=1) is None


def test_sequences_that_come_first_are_no_samples():
    model, batch = nn.LSTM(4, 4), torch.zeros(3, 8, 4)
    with collect() as evidence:
        model(batch)
    assert evidence.samples(batch, 8, steps=1) == 8


def test_samples_of_a_step_that_makes_its_own_are_not_known_where_they_are_fewer():
    model = nn.Linear(4, 2)
    with collect() as evidence:
        model(torch.zeros(3, 4))
    assert evidence.samples(None, 10, steps=1) is None


@pytest.mark.parametrize("batch", [["a"] * 5, {"texts": ("a", "b"), "ids": [1, 2, 3, 4, 5, 6]}])
def test_a_list_of_texts_of_another_length_is_named(batch):
    assert "texts: not 6 samples" in wrong_size(batch, 6, lambda size: batch)


def test_a_list_of_as_many_texts_is_a_batch():
    assert wrong_size({"texts": ["a"] * 6, "labels": ("yes", "no")}, 6, lambda size: None) is None


@pytest.mark.parametrize("batch", [torch.zeros(7, 4), {"ids": torch.zeros(5, 128)}, (torch.zeros(1, 512),)])
def test_a_batch_that_shows_another_size_is_named(batch):
    assert "none holds 6 samples" in wrong_size(batch, 6, lambda size: torch.zeros(3, 3))
