"""Audits of hand-written loops: each known mistake, by its name."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import brim
from brim.errors import InputError
from brim.training.auditing import Cause

EVEN = [5] * 10
UNEVEN = [7, 3, 9, 2, 5, 5, 1, 8, 4, 6]


def make_batches(sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 8, generator=generator), torch.randint(0, 4, (n,), generator=generator)) for n in sizes]


def make_model(layer: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), layer or nn.Identity(), nn.Tanh(), nn.Linear(16, 4))


class Loop:
    """A loop as people write it, with the mistakes that they make."""

    def __init__(self, model, *, divisor=lambda num_microbatches: 4.0, reduction="mean", clip_norm=None, tail=True):
        self.model = model
        self.divisor = divisor
        self.reduction = reduction
        self.clip_norm = clip_norm
        self.tail = tail
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def __call__(self, loader):
        for k, (x, y) in enumerate(loader, 1):
            left = len(loader) - 4 * ((k - 1) // 4)
            loss = F.cross_entropy(self.model(x), y, reduction=self.reduction) / self.divisor(min(4, left))
            loss.backward()
            if k % 4 == 0 or (self.tail and k == len(loader)):
                if self.clip_norm is not None:
                    clip_grad_norm_(self.model.parameters(), self.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def loss_fn(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y, reduction="sum"), len(y)


def audit(loop, sizes, **options):
    return brim.audit(loop, loop.model, make_batches(sizes), loop.loss_fn, **options)


def causes_of(report):
    return [window.causes for window in report.windows]


def test_a_constant_division_of_the_tail_halves_its_update():
    report = audit(Loop(make_model()), EVEN)
    assert [window.ratio for window in report.windows] == pytest.approx([1.0, 1.0, 0.5], rel=1e-5)
    assert causes_of(report) == [(), (), (Cause.CONSTANT_TAIL,)]
    assert [window.num_microbatches for window in report.windows] == [4, 4, 2]
    assert not report.is_right


def test_mean_of_means_is_found_in_every_window_of_unequal_microbatches():
    report = audit(Loop(make_model(), divisor=lambda num_microbatches: num_microbatches), UNEVEN)
    assert causes_of(report) == [(Cause.MEAN_OF_MEANS,)] * 3
    assert [window.items for window in report.windows] == [21, 19, 10]


def test_double_division_is_found():
    report = audit(Loop(make_model(), divisor=lambda num_microbatches: num_microbatches**2), EVEN)
    assert report.causes == (Cause.DOUBLE_DIVISION,)
    assert report.windows[0].ratio == pytest.approx(0.25, rel=1e-5)


def test_a_sum_that_nothing_divides_is_found():
    report = audit(Loop(make_model(), divisor=lambda _: 1.0, reduction="sum"), UNEVEN)
    assert report.causes == (Cause.NO_DIVISION,)


def test_a_tail_that_is_never_used_is_found():
    report = audit(Loop(make_model(), tail=False), EVEN)
    assert causes_of(report) == [(), (), (Cause.UNUSED_TAIL,)]
    assert report.windows[-1].ratio == 0.0


def test_gradients_that_are_not_cleared_are_found():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(loader):
        for k, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / 5).backward()
            if k % 5 == 0:
                optimizer.step()

    report = brim.audit(train, model, make_batches(EVEN), Loop(model).loss_fn)
    assert causes_of(report) == [(), (Cause.NOT_CLEARED,)]


def test_a_loop_that_counts_other_items_is_found():
    report = audit(Loop(make_model(), divisor=lambda num_microbatches: 1.1 * num_microbatches), EVEN)
    assert report.causes == (Cause.WRONG_DIVISOR,)


def test_clipping_does_not_hide_or_make_a_mistake():
    report = audit(Loop(make_model(), clip_norm=1e-3), EVEN)
    assert [window.ratio for window in report.windows] == pytest.approx([1.0, 1.0, 0.5], rel=1e-5)
    assert report.causes == (Cause.CONSTANT_TAIL,)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("unscales", [False, True])
def test_clipping_before_unscaling_is_found_in_every_window(unscales, accumulation):
    model = make_model()
    loop = Loop(model)

    def train(loader):
        scaler = torch.amp.GradScaler("cpu")
        for k, (x, y) in enumerate(loader, 1):
            scaler.scale(F.cross_entropy(model(x), y) / accumulation).backward()
            if k % accumulation == 0:
                if unscales:
                    scaler.unscale_(loop.optimizer)
                clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(loop.optimizer)
                scaler.update()
                loop.optimizer.zero_grad()

    report = brim.audit(train, model, make_batches(EVEN), loop.loss_fn)
    causes = () if unscales else (Cause.CLIP_BEFORE_UNSCALE,)
    assert causes_of(report) == [causes] * (len(EVEN) // accumulation)


def test_a_step_that_the_scaler_leaves_out_is_no_window():
    model = make_model()
    loop = Loop(model)

    def train(loader):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for x, y in loader:
            scaler.scale(100 * F.cross_entropy(model(x), y)).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.zero_grad()

    def loss_fn(batch):
        loss, items = loop.loss_fn(batch)
        return 100 * loss, items

    report = brim.audit(train, model, make_batches(EVEN), loss_fn)
    assert 0 < len(report.windows) < len(EVEN)
    assert report.is_right


@pytest.mark.parametrize(("layer", "cause"), [(nn.BatchNorm1d(16), Cause.BATCH_NORM), (nn.Dropout(0.3), Cause.DROPOUT)])
def test_what_no_loop_can_make_equal_is_named_beside_the_loops_own_mistake(layer, cause):
    report = audit(Loop(make_model(layer)), EVEN)
    assert causes_of(report) == [(cause,), (cause,), (Cause.CONSTANT_TAIL, cause)]
    # Microbatch for microbatch, with the same random numbers, the comparison is exact all the same.
    assert [window.ratio for window in report.windows] == pytest.approx([1.0, 1.0, 0.5], rel=1e-5)
    assert all(window.one_pass_difference > 0.01 for window in report.windows)
    assert "one forward pass over the full batch" in str(report)
    assert "in one pass" in str(report)


def test_a_contrastive_loss_is_named():
    model = make_model()

    def contrast(batch):
        x, _ = batch
        out = F.normalize(model(x), dim=1)
        return F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="sum"), len(x)

    def train(loader):
        acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
        for batch in loader:
            acc.backward(*contrast(batch))
        acc.finish()

    report = brim.audit(train, model, make_batches(EVEN), contrast)
    assert report.is_right
    assert report.causes == (Cause.NOT_A_SUM,)


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_brims_own_accumulator_is_right(clip_norm):
    model = make_model()
    loop = Loop(model)

    def train(loader):
        acc = brim.Accumulator(model, loop.optimizer, accumulation=4, clip_norm=clip_norm)
        for batch in loader:
            acc.backward(*loop.loss_fn(batch))
        acc.finish()

    report = brim.audit(train, model, make_batches(UNEVEN), loop.loss_fn)
    assert report.is_right
    assert not report.causes
    assert max(window.difference for window in report.windows) < 1e-6
    assert "Every window has the gradient of its full batch" in str(report)


def test_several_optimizers_make_one_window():
    model = make_model()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[3].parameters())]

    def train(loader):
        for k, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / 4).backward()
            if k % 4 == 0 or k == len(loader):
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

    report = brim.audit(train, model, make_batches(EVEN), Loop(model).loss_fn)
    assert causes_of(report) == [(), (), (Cause.CONSTANT_TAIL,)]


def test_microbatches_of_different_lengths_are_summed_and_that_is_said():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 20, (2, length), generator=generator) for length in (5, 9, 4, 7)]

    def loss_fn(tokens):
        logits = model(tokens[:, :-1]).flatten(0, 1)
        return F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum"), tokens[:, 1:].numel()

    def train(loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for k, tokens in enumerate(loader, 1):
            loss, items = loss_fn(tokens)
            (loss / items / 2).backward()
            if k % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    report = brim.audit(train, model, batches, loss_fn)
    assert report.causes == (Cause.MEAN_OF_MEANS,)
    assert report.windows[0].one_pass_difference is None
    assert "shapes (5,), (9,)" in str(report)


def test_everything_is_as_it_was_afterwards():
    model = make_model(nn.BatchNorm1d(16))
    loop = Loop(model)
    loop(make_batches(EVEN))  # so that there is momentum, and running statistics
    before = copy.deepcopy((model.state_dict(), loop.optimizer.state_dict()))
    generator = torch.get_rng_state()
    hooks = (torch.autograd.backward, torch.nn.utils.clip_grad_norm_, torch.amp.GradScaler.unscale_, clip_grad_norm_)
    audit(loop, EVEN)
    assert str((model.state_dict(), loop.optimizer.state_dict())) == str(before)
    assert torch.equal(torch.get_rng_state(), generator)
    now = (torch.autograd.backward, torch.nn.utils.clip_grad_norm_, torch.amp.GradScaler.unscale_, clip_grad_norm_)
    assert now == hooks


def test_a_report_reads_as_a_table_with_advice():
    text = str(audit(Loop(make_model()), EVEN))
    assert text.splitlines()[0].split()[:5] == ["window", "microbatches", "items", "ratio", "difference"]
    assert "0.5000       50.0%  constant division of the tail" in text
    assert "constant division of the tail: the last, shorter window" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda model, loader: None, "drew 0 batches of the loader it is given and ran no backward pass"),
        (lambda model, loader: model(torch.ones(1, 8)).sum().backward(), "drew nothing from the loader"),
        (lambda model, loader: list(loader), "drew 10 batches of the loader it is given"),
        (
            lambda model, loader: [model(x).sum().backward() for x, _ in loader for _ in range(2)],
            "more backward passes than it has drawn batches",
        ),
        (
            lambda model, loader: [
                (model(x).sum().backward(), torch.optim.SGD(make_model().parameters(), lr=0.1).step())
                for x, _ in loader
            ],
            "no parameter of the model that was given",
        ),
    ],
)
def test_loops_that_cannot_be_audited_are_told_why(train, message):
    model = make_model()
    loop = Loop(model)
    with pytest.raises(InputError, match=message):
        brim.audit(lambda loader: train(model, loader), model, make_batches(EVEN), loop.loss_fn)


def test_what_is_missing_is_told():
    model = make_model()
    loop = Loop(model)
    with pytest.raises(InputError, match="needs model and batches and loss_fn"):
        brim.audit(loop)
    with pytest.raises(InputError, match="The loop is a int"):
        brim.audit(3, model, make_batches(EVEN), loop.loss_fn)
    with pytest.raises(InputError, match="no batches"):
        brim.audit(loop, model, [], loop.loss_fn)
    with pytest.raises(InputError, match="tolerance is 0"):
        brim.audit(loop, model, make_batches(EVEN), loop.loss_fn, tolerance=0)
