"""What is said where a workload does not run on fake tensors."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import TraceError
from brim.tracing import predict, recorder
from brim.tracing.traces import trace

SMALL = Gpu(name="small", memory_bytes=2 * 2**30, capability=(8, 6))


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


def test_a_question_about_values_names_its_line():
    class Asks(Mlp):
        def step(self, batch):
            if batch.sum() > 0:
                super().step(batch)

    with pytest.raises(TraceError, match=r"test_refusals.py:\d+ \(if batch.sum\(\) > 0:\) asks for a tensor's value"):
        trace(Asks, Case(), 4, capability=(8, 6))


def test_an_operator_without_a_fake_implementation_is_named():
    with torch.library._scoped_library("brimtest", "DEF") as library:
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda x: x.clone(), "CPU")

        class Opaque(Mlp):
            def step(self, batch):
                torch.ops.brimtest.opaque(batch)

        with pytest.raises(TraceError, match=r"no fake implementation.*register_fake\(\"brimtest::opaque\"\)"):
            predict(Opaque, gpu="rtx-3090")


def test_a_custom_operator_without_a_fake_implementation_is_named():
    @torch.library.custom_op("brimtest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Custom(Mlp):
        def step(self, batch):
            twice(batch)

    with pytest.raises(TraceError, match=r"calls brimtest::twice, .*register_fake\(\"brimtest::twice\"\)"):
        predict(Custom, gpu="rtx-3090")


@pytest.mark.parametrize(
    "error", [RuntimeError("No CUDA GPUs are available"), AssertionError("needs a GPU"), RuntimeError("cuda, please")]
)
def test_a_workload_that_needs_a_real_gpu_to_build_is_told_where_and_what_to_do(error):
    class NeedsGpu(Mlp):
        def build(self):
            raise error

    with pytest.raises(TraceError, match=r"build .*test_refusals.py:\d+ .*needs a real GPU.*`\.to\(self\.device\)`"):
        predict(NeedsGpu, gpu="rtx-3090")


def test_a_number_of_a_trace_used_as_a_size_is_told():
    class Counts(Mlp):
        def step(self, batch):
            torch.zeros(int(batch.sum().item()), 4, device=self.device)

    with pytest.raises(TraceError, match="uses a number that comes from a tensor's value"):
        predict(Counts, gpu=SMALL)


def test_a_workload_without_a_method_is_told_which():
    class Incomplete(brim.Workload):
        def build(self):
            self.model = nn.Linear(4, 4).to(self.device)

    with pytest.raises(TraceError, match=r"^Incomplete has no batch\(self, size\): return `size` samples there\.$"):
        predict(Incomplete, gpu=SMALL)


def test_a_batch_that_returns_nothing_is_named_where_the_step_fails_on_it():
    class Forgets(Mlp):
        def batch(self, size):
            super().batch(size)

    with pytest.raises(TraceError, match=r"step fails.*`batch` returned None: does it end with `return`\?$"):
        predict(Forgets, gpu=SMALL)


def test_lazy_modules_and_nested_tensors_are_told_with_what_to_use_instead():
    class Lazy(Mlp):
        def build(self):
            self.model = nn.LazyLinear(4).to(self.device)

    class Nested(Mlp):
        def batch(self, size):
            rows = [torch.zeros(2, 256, device=self.device)] * size
            return torch.nested.nested_tensor(rows, layout=torch.jagged, device=self.device)

    with pytest.raises(TraceError, match="Lazy modules are not traced"):
        predict(Lazy, gpu=SMALL)
    with pytest.raises(TraceError, match="Nested tensors are not traced"):
        predict(Nested, gpu=SMALL)


def test_a_step_without_an_end_is_told(monkeypatch):
    class Loops(Mlp):
        def step(self, batch):
            while True:
                self.model(batch)

    monkeypatch.setattr(recorder, "MOST_OPERATIONS", 2000)
    with pytest.raises(TraceError, match=r"\(self.model\(batch\)\) runs after .* operations.*give it an end"):
        predict(Loops, gpu="rtx-3090")


def test_what_ended_the_attempt_on_fake_tensors_is_told_beside_what_ended_the_one_on_real_ones():
    class Builds(Mlp):
        num_builds = 0

        def build(self):
            type(self).num_builds += 1
            raise OSError("no compiler") if self.num_builds == 1 else ImportError("no library")

    with pytest.raises(TraceError, match=r"ImportError: no library.*on fake tensors, ended in OSError: no compiler"):
        predict(Builds, gpu="rtx-3090")


def test_what_may_be_built_only_once_is_told_that_it_is_built_again():
    class Builds(Mlp):
        is_built = False

        def build(self):
            if self.is_built:
                raise ValueError("trying to initialize twice")
            type(self).is_built = True
            super().build()

    with pytest.raises(TraceError, match=r"initialize twice \(`build` runs once for every size"):
        predict(Builds, gpu="rtx-3090")
