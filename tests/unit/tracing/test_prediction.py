import pytest
import torch
import torch.nn.functional as F
from torch import nn

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.devices.context import context_bytes
from brim.errors import InputError, TraceError
from brim.tracing import predict, trace
from brim.tracing.allocator import AllocatorFullError, replay
from brim.tracing.line import line_through
from brim.tracing.record import Phase
from brim.tracing.runtime import Runtime

GIB = 2**30
SMALL = Gpu(name="small", memory_bytes=2 * GIB, capability=(8, 6))


class Mlp(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.randn(size, 256, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Contrastive(Mlp):
    """The similarity of every pair grows with the square of the batch."""

    def step(self, batch):
        out = self.model(batch)
        (out @ out.T).softmax(-1).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class IgnoresSize(Mlp):
    def batch(self, size):
        return torch.randn(16, 256, device=self.device)


class Leaks(Mlp):
    def build(self):
        super().build()
        self.losses = []

    def step(self, batch):
        out = self.model(batch)
        self.losses.append(out)
        super().step(batch)


class AsksInBuild(Mlp):
    """Builds only for real, and ties two weights."""

    def build(self):
        super().build()
        self.model[2].weight = nn.Parameter(self.model[0].weight.T.contiguous())
        self.first = nn.Linear(256, 256, bias=False).to(self.device)
        self.second = nn.Linear(256, 256, bias=False).to(self.device)
        self.second.weight = self.first.weight
        if self.model[0].weight.sum().item() > 1e9:
            raise AssertionError
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.first.parameters()])

    def step(self, batch):
        self.second(self.first(batch)).sum().backward()
        super().step(batch)


class Attention(brim.Workload):
    kind = "eval"

    def build(self):
        self.dtype = torch.float16 if self.case.get("half") else torch.float32

    def batch(self, size):
        return torch.randn(size, 4, self.case["length"], 64, device=self.device, dtype=self.dtype)

    def step(self, batch):
        F.scaled_dot_product_attention(batch, batch, batch)


def test_every_kind_of_memory_is_told_apart():
    num_bytes = 4 * (256 * 1024 + 1024 + 1024 * 256 + 256)
    held = predict(Mlp, gpu="rtx-3090").breakdown(64)
    assert held["parameters"] == num_bytes
    assert held["inputs"] == 64 * 256 * 4
    # Adam's two moments; its step counters stay on the host.
    assert held["optimizer"] == 2 * num_bytes
    assert sum(held.values()) == trace(Mlp, Case(), 64, capability=(8, 6)).peak_bytes


def test_the_largest_fits_and_one_more_does_not():
    prediction = predict(Mlp, gpu=SMALL)
    assert prediction.is_exact
    capacity_bytes = SMALL.memory_bytes - context_bytes(SMALL, Runtime().cuda)

    def fits(size):
        events = trace(Mlp, Case(), size, capability=(8, 6)).record.events
        try:
            return replay([(-1, 8_519_680), (-2, 8_519_680), *events], capacity_bytes=capacity_bytes)
        except AllocatorFullError:
            return None

    assert fits(prediction.largest)
    assert not fits(prediction.largest + 1)
    low, high = prediction.interval
    assert low <= prediction.largest <= high


def test_memory_that_is_no_line_is_searched_by_traces():
    prediction = predict(Contrastive, gpu=SMALL)
    assert not prediction.is_exact
    assert prediction.fits(prediction.largest)
    assert not prediction.fits(prediction.above)


def test_the_line_between_two_traces_is_the_third_trace():
    records = {size: trace(Mlp, Case(), size, capability=(8, 6)).record for size in (4, 6, 777)}
    line = line_through(4, records[4], 6, records[6])
    assert line.at(777) == records[777]


def test_peaks_grow_from_allocated_to_reserved_to_the_device():
    peak = predict(Mlp, gpu="a100-80gb").peak(64)
    assert peak.allocated_bytes <= peak.reserved_bytes < peak.device_bytes


def test_a_cap_ends_the_search():
    assert predict(Mlp, gpu="h100-sxm", cap=100).largest == 100


def test_nothing_fits_and_what_would_help():
    tiny = Gpu(name="tiny", memory_bytes=context_bytes(SMALL, Runtime().cuda) + 10 * 2**20)
    prediction = predict(Mlp, gpu=tiny)
    assert prediction.largest == 0
    assert prediction.missing_bytes() > 0
    assert prediction.remedy()


def test_what_no_module_made_is_named_by_what_it_is():
    names = predict(Mlp, gpu=SMALL).modules(4096)
    assert "" not in names
    outside = {name for name in names if name.startswith("(")}
    assert outside == {"(inputs)", "(activations outside of modules)"}


def test_what_autograd_and_the_optimizer_make_belongs_to_modules():
    record = trace(Mlp, Case(), 4096, capability=(8, 6)).record
    made = [each for each in record.storages if each.phase is Phase.BACKWARD and each.kind is None]
    # "": of the loss; "model.0": what the sum of its bias's gradient takes for a moment.
    assert {each.origin for each in made if each.num_bytes > 4096} == {"", "model.0", "model.1", "model.2"}
    kept = [each for each in record.storages if each.kind == "optimizer"]
    assert {each.module for each in kept} == {"model.0", "model.2"}


@pytest.mark.parametrize("times", [1.01, 2, 10])
def test_a_size_that_does_not_fit_needs_more_than_there_is(times):
    prediction = predict(Mlp, gpu=SMALL)
    microbatch = int(times * prediction.above)
    peak = prediction.peak(microbatch)
    assert peak.allocated_bytes <= peak.reserved_bytes < peak.device_bytes
    assert prediction.missing_bytes(microbatch) == peak.device_bytes - SMALL.memory_bytes > 0
    document = prediction.to_dict("w.py:Mlp", microbatch=microbatch)
    assert document["missing_bytes"] == peak.device_bytes - SMALL.memory_bytes
    assert document["remedy"]


def test_a_batch_that_ignores_its_size_is_refused():
    with pytest.raises(TraceError, match="does not grow with the microbatch"):
        predict(IgnoresSize, gpu="rtx-3090")


def test_a_step_that_keeps_growing_is_refused_with_its_module():
    with pytest.raises(TraceError, match=r"Every step holds .* more .* made in model.1"):
        predict(Leaks, gpu="rtx-3090")


def test_a_model_that_builds_only_for_real_is_faked_afterwards_with_its_ties():
    held = predict(AsksInBuild, gpu="rtx-3090").breakdown(8)
    assert held["parameters"] == 4 * (256 * 1024 + 1024 + 1024 * 256 + 256 + 256 * 256)


@pytest.mark.parametrize("half", [False, True])
def test_attention_does_not_keep_its_scores_on_cuda(half):
    short, long = (
        trace(Attention, Case({"length": length, "half": half}), 4, capability=(8, 6)).peak_bytes
        for length in (1024, 4096)
    )
    assert long == pytest.approx(4 * short, rel=0.05)


class EncoderLayer(Attention):
    def build(self):
        self.model = nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0).to(self.device).train()

    def batch(self, size):
        return torch.randn(size, self.case["length"], 64, device=self.device)

    def step(self, batch):
        self.model(batch)


def test_attention_inside_torchs_own_modules_does_not_keep_its_scores_either():
    short, long = (
        trace(EncoderLayer, Case({"length": length}), 4, capability=(8, 6)).peak_bytes for length in (1024, 4096)
    )
    assert long == pytest.approx(4 * short, rel=0.15)


@pytest.mark.parametrize("microbatch", [0, -1, 1.5, True])
def test_a_microbatch_that_is_none_is_refused(microbatch):
    with pytest.raises(InputError, match="whole number of at least 1"):
        predict(Mlp, gpu="rtx-3090").peak(microbatch)


def dtypes_under_autocast():
    seen = {}

    class Casts(Mlp):
        def step(self, batch):
            with torch.autocast("cuda", dtype=torch.float16):
                linear = self.model[0](batch)
                dtypes = {
                    "linear": linear.dtype,
                    "softmax": linear.softmax(-1).dtype,
                    "layer_norm": F.layer_norm(linear, (1024,)).dtype,
                    "exp": linear.exp().dtype,
                    "pow": linear.pow(2).dtype,
                    "sum": linear.sum().dtype,
                    "relu": linear.relu().dtype,
                    "cross_entropy": F.cross_entropy(
                        linear, torch.zeros(len(batch), dtype=torch.long, device=self.device)
                    ).dtype,
                    "matmul": (linear @ linear.T).dtype,
                }
            seen.update(dtypes)
            super().step(batch)

    trace(Casts, Case(), 4, capability=(8, 6))
    return seen


def test_autocast_casts_what_it_casts_on_cuda():
    half, full = torch.float16, torch.float32
    assert dtypes_under_autocast() == {
        "linear": half,
        "softmax": full,
        "layer_norm": full,
        "exp": full,
        "pow": full,
        "sum": full,
        "relu": half,
        "cross_entropy": full,
        "matmul": half,
    }


def test_nothing_of_cudas_ways_is_left_behind():
    trace(Mlp, Case(), 4, capability=(8, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ones(2, 2, dtype=torch.bfloat16).softmax(-1).dtype is torch.bfloat16


@pytest.mark.parametrize("gpu", [None, 3090, ["rtx-3090", "t4"], 24e9])
def test_a_gpu_that_is_none_is_refused_with_what_to_write(gpu):
    with pytest.raises(InputError) as refused:
        predict(Mlp, gpu=gpu)
    assert f"gpu is {gpu!r}." in str(refused.value)
    assert "gpu='rtx-3090'" in str(refused.value)
    assert "brim.Gpu(name=..., memory_bytes=...)" in str(refused.value)


def test_a_gpu_that_is_not_in_the_catalog_is_refused_before_the_workload_is_loaded():
    with pytest.raises(InputError, match="There is no GPU 'a100'"):
        predict("nowhere.py:Mlp", gpu="a100")


@pytest.mark.parametrize("cuda", [12.4, (12, 4), 12])
def test_a_version_of_cuda_that_is_no_text_is_refused_with_what_to_write(cuda):
    with pytest.raises(InputError, match=r"cuda is .*12.* Write the version in quotes, e\.g\. cuda='12\.8'"):
        predict(Mlp, gpu=SMALL, cuda=cuda)


def test_an_empty_version_of_cuda_is_refused():
    with pytest.raises(InputError, match="CUDA version '' cannot be read"):
        predict(Mlp, gpu=SMALL, cuda="")


@pytest.mark.parametrize("case", ["x=1", 5, "", 0, [("x", 1)]])
def test_a_case_that_is_no_mapping_is_refused_with_what_to_write(case):
    with pytest.raises(InputError, match=r"A case maps names to values.*Use for example {'seq_len': 512}"):
        predict(Mlp, gpu=SMALL, case=case)


@pytest.mark.parametrize("setting", ["yes", 1, "False"])
def test_expandable_segments_are_there_or_not(setting):
    with pytest.raises(InputError, match=r"expandable_segments is .*Use True, False, or None"):
        predict(Mlp, gpu=SMALL, expandable_segments=setting)


def test_a_prediction_is_shown_in_short_without_a_search():
    prediction = predict(Mlp, gpu="rtx-3090", case={"seq_len": 512}, cap=8)
    assert repr(prediction) == "Prediction(gpu='rtx-3090', case='seq_len=512')"
    assert prediction.largest == 8
    assert repr(prediction) == "Prediction(gpu='rtx-3090', case='seq_len=512', largest=8)"


class Normalizes(Mlp):
    def build(self):
        self.model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())


def test_a_single_sample_that_does_not_run_is_not_shown_as_one_that_fits():
    prediction = predict(Normalizes, gpu=SMALL, cap=64)
    assert prediction.shown_sizes() == [64]
    assert "Expected more than 1 value per channel" in prediction.observed.single_failure
    with pytest.raises(TraceError, match="Expected more than 1 value per channel"):
        prediction.check(1)
    assert predict(Mlp, gpu=SMALL, cap=64).shown_sizes() == [1, 64]
