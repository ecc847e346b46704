"""What is on the host in a trace for CUDA is not counted, and what is moved is counted from then on."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.prediction import predict

AMPERE = (8, 6)
WIDTH = 256
WEIGHT_BYTES = 4 * WIDTH**2


class OnGpu(brim.Workload):
    """One layer and its gradient, all on the GPU."""

    def build(self):
        self.model = nn.Linear(WIDTH, WIDTH, bias=False).to(self.device)

    def batch(self, size):
        return torch.ones(size, WIDTH, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.model.zero_grad()


def _peak(workload, microbatch=4):
    return trace(workload, Case(), microbatch, capability=AMPERE).peak_bytes


def _held(workload, microbatch=4):
    return trace(workload, Case(), microbatch, capability=AMPERE).record.breakdown()


def test_a_model_that_is_cast_before_it_is_moved_was_never_there_in_float32():
    class Cast(OnGpu):
        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH, bias=False).to(torch.bfloat16).to(self.device)

        def batch(self, size):
            return super().batch(size).to(torch.bfloat16)

    record = trace(Cast, Case(), 4, capability=AMPERE).record
    assert [each.num_bytes for each in record.storages if each.kind == "parameters"] == [WEIGHT_BYTES // 2]


def test_what_is_moved_and_cast_at_once_is_cast_on_the_host():
    class Both(OnGpu):
        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH, bias=False)
            self.model.to(device=self.device, dtype=torch.bfloat16)

        def batch(self, size):
            return torch.ones(size, WIDTH).to(self.device, torch.bfloat16)

    record = trace(Both, Case(), 4, capability=AMPERE).record
    assert sum(each.num_bytes for each in record.storages[:2]) == WEIGHT_BYTES // 2 + 4 * WIDTH * 2


def test_a_dataset_on_the_host_is_not_counted():
    class Dataset(OnGpu):
        def build(self):
            super().build()
            self.samples = torch.ones(10_000, WIDTH)

        def batch(self, size):
            return self.samples[:size].to(self.device)

    assert _peak(Dataset) == _peak(OnGpu)


def test_what_is_moved_in_the_step_is_an_input():
    class Moves(OnGpu):
        def batch(self, size):
            return torch.ones(size, WIDTH)

        def step(self, batch):
            super().step(batch.to(self.device))

    assert _held(Moves) == _held(OnGpu)
    assert _held(Moves)["inputs"] == 4 * WIDTH * 4


def test_outputs_that_are_collected_on_the_host_are_no_leak():
    class Collects(brim.Workload):
        kind = "eval"

        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH).to(self.device)
            self.outputs = []

        def batch(self, size):
            return torch.ones(size, WIDTH, device=self.device)

        @torch.no_grad()
        def step(self, batch):
            self.outputs.append(self.model(batch).cpu())

    assert predict(Collects, gpu="rtx-3090").largest > 1_000_000


def test_activations_that_are_saved_on_the_host_are_there_for_their_operation_only():
    class Deep(OnGpu):
        def build(self):
            layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
            self.model = nn.Sequential(*layers).to(self.device)

    class Offloads(Deep):
        def step(self, batch):
            with torch.autograd.graph.save_on_cpu():
                loss = self.model(batch).sum()
            loss.backward()
            self.model.zero_grad()

    samples = 1024
    held, offloaded = _held(Deep, samples), _held(Offloads, samples)
    assert held["activations"] >= 8 * samples * WIDTH * 4
    assert offloaded["activations"] <= 2 * samples * WIDTH * 4


def test_what_is_made_on_the_host_for_a_moment_leaves_no_trace():
    class Temporary(OnGpu):
        def build(self):
            torch.ones(1000, 1000).sum()
            super().build()

    assert trace(Temporary, Case(), 4, capability=AMPERE).record == trace(OnGpu, Case(), 4, capability=AMPERE).record


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.zeros(1000, device=device),
        lambda device: torch.zeros(1000, device=str(device)),
        lambda device: torch.zeros(1000, device=0),
        lambda device: torch.zeros(1000).cuda(),
        lambda device: torch.zeros(1000).to(0),
        lambda device: torch.zeros(500, dtype=torch.float64).to(torch.empty(0, dtype=torch.float64, device=device)),
        lambda device: torch.empty(1000, device="meta").new_zeros(1000, device=device),
        lambda device: torch.tensor([0.0] * 1000, device=device),
        lambda device: torch.zeros_like(torch.empty(1000), device=device),
        lambda device: torch.arange(1000, dtype=torch.float32, device=device),
        lambda device: torch.zeros(1000, device=torch.ones(1, device=device).device),
    ],
)
def test_every_way_onto_the_gpu_counts(make):
    class Makes(OnGpu):
        def build(self):
            super().build()
            self.extra = make(self.device)
            assert self.extra.is_cuda
            assert not self.extra.is_cpu
            assert self.extra.device == self.device
            assert self.extra.get_device() == 0

    assert _peak(Makes) - _peak(OnGpu) == 4000


def test_the_default_device_counts():
    class Default(OnGpu):
        def build(self):
            with self.device:
                self.model = nn.Linear(WIDTH, WIDTH, bias=False)

    assert _peak(Default) == _peak(OnGpu)


@pytest.mark.parametrize("where", ["batch", "model"])
def test_a_batch_or_a_model_that_stays_on_the_host_is_refused_as_on_cuda(where):
    class Forgets(OnGpu):
        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH)
            if where != "model":
                self.model.to(self.device)

        def batch(self, size):
            return torch.ones(size, WIDTH) if where == "batch" else super().batch(size)

    with pytest.raises(TraceError, match=r"Expected all tensors to be on the same device.*\.to\(self\.device\)"):
        trace(Forgets, Case(), 4, capability=AMPERE)


def test_a_workload_that_puts_nothing_on_the_gpu_is_counted_whole_and_told():
    class Nowhere(OnGpu):
        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH, bias=False)

        def batch(self, size):
            return torch.ones(size, WIDTH)

    traced = trace(Nowhere, Case(), 64, capability=AMPERE)
    assert traced.is_unplaced
    assert traced.peak_bytes == _peak(OnGpu, 64)
    assert not trace(OnGpu, Case(), 4, capability=AMPERE).is_unplaced


def test_a_checkpoint_that_names_the_device_runs_again():
    class Checkpointed(OnGpu):
        def step(self, batch):
            def run(values):
                return self.model(values + torch.zeros(WIDTH, device=self.device)).to(values.device)

            torch.utils.checkpoint.checkpoint(run, batch.requires_grad_(), use_reentrant=False).sum().backward()
            self.model.zero_grad()

    assert _peak(Checkpointed) > _peak(OnGpu)


def test_a_workload_that_is_built_for_real_has_its_places_too():
    class Real(OnGpu):
        def build(self):
            self.model = nn.Linear(WIDTH, WIDTH, bias=False)
            assert isinstance(self.model.weight.sum().item() < 1e9, bool)
            self.model.to(self.device)
            self.kept = torch.ones(10_000)

    assert _peak(Real) == _peak(OnGpu)


def test_the_gpu_answers_questions():
    seen = {}

    class Asks(OnGpu):
        def step(self, batch):
            seen["available"] = torch.cuda.is_available()
            seen["bfloat16"] = torch.cuda.is_bf16_supported(including_emulation=False)
            seen["capability"] = torch.cuda.get_device_capability()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available()):
                seen["dtype"] = self.model(batch).dtype
                seen["autocast"] = torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")
            end.record()
            f"{start.elapsed_time(end):.1f} ms"
            super().step(batch)

    assert trace(Asks, Case(), 4, capability=AMPERE).asks_gpu
    assert seen == {
        "available": True,
        "bfloat16": True,
        "capability": AMPERE,
        "dtype": torch.bfloat16,
        "autocast": (True, torch.bfloat16),
    }
    trace(Asks, Case(), 4, capability=(7, 5))
    assert not seen["bfloat16"]
    assert not torch.cuda.is_available()
    assert not trace(OnGpu, Case(), 4, capability=AMPERE).asks_gpu


def test_operators_have_the_kernels_of_where_their_tensors_are():
    class Counts(OnGpu):
        def step(self, batch):
            torch.histc(torch.zeros(8, dtype=torch.int32, device=self.device), bins=4, min=0, max=3)
            super().step(batch)

    class CountsOnTheHost(OnGpu):
        def step(self, batch):
            torch.histc(torch.zeros(10_000, dtype=torch.int32), bins=4, min=0, max=3)

    assert _peak(Counts) == _peak(OnGpu)
    with pytest.raises(TraceError, match=r"\"histogram_cpu\" not implemented"):
        _peak(CountsOnTheHost)


def test_random_numbers_of_a_generator_on_the_gpu():
    class Draws(OnGpu):
        def batch(self, size):
            generator = torch.Generator(self.device).manual_seed(0)
            return torch.randn(size, WIDTH, device=self.device, generator=generator)

    assert _peak(Draws) == _peak(OnGpu)


def test_calls_that_people_put_into_loops():
    told = []

    class Logs(OnGpu):
        def step(self, batch):
            with torch.cuda.nvtx.range("step"):
                super().step(batch)
            torch.cuda.synchronize()
            told.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
            assert torch.cuda.max_memory_reserved() == torch.cuda.memory_stats()["allocated_bytes.all.peak"]
            assert "Allocated memory" in torch.cuda.memory_summary()

    traced = trace(Logs, Case(), 4, capability=AMPERE)
    assert told[-1] == (traced.held_bytes[-1], traced.peak_bytes)


def test_what_nobody_knows_of_a_gpu_is_told_so():
    class Asks(OnGpu):
        def build(self):
            super().build()
            assert getattr(torch.cuda.get_device_properties(0), "multi_processor_count", 1) == 1
            print(torch.cuda.get_device_properties(0).total_memory)

    with pytest.raises(TraceError, match=r"tell their total_memory.*needs a real GPU"):
        trace(Asks, Case(), 4, capability=AMPERE)


class Loaded(OnGpu):
    """Its weights come from a file, past all modes, and two of them are one."""

    def build(self):
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            first, second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        second.weight = first.weight
        self.model = nn.Sequential(first, second)
        self.place()

    def place(self):
        self.model.to(self.device)


def test_weights_that_are_loaded_for_real_are_moved_with_their_ties():
    record = trace(Loaded, Case(), 4, capability=AMPERE).record
    assert record.breakdown()["parameters"] == WEIGHT_BYTES
    assert [each.num_bytes for each in record.storages].count(WEIGHT_BYTES) >= 2  # and a gradient in each step


def test_weights_that_are_loaded_for_real_count_where_nothing_is_moved():
    class Stays(Loaded):
        def place(self):
            pass

        def batch(self, size):
            return torch.ones(size, WIDTH)

    traced = trace(Stays, Case(), 64, capability=AMPERE)
    assert traced.is_unplaced
    assert traced.record.breakdown()["parameters"] == WEIGHT_BYTES
    assert trace(Stays, Case(), 64).record.breakdown()["parameters"] == WEIGHT_BYTES


def test_the_host_may_compute_with_itself_and_torch_with_what_it_moves():
    class Speaks(OnGpu):
        def step(self, batch):
            lengths = torch.full((len(batch),), 8)
            lengths = lengths + lengths
            log_probs = self.model(batch)[None].expand(16, -1, -1).log_softmax(-1)
            targets = torch.ones(len(batch), 5, dtype=torch.long, device=self.device)
            nn.functional.ctc_loss(log_probs, targets, lengths, torch.full((len(batch),), 5)).backward()
            self.model.zero_grad()

    record = trace(Speaks, Case(), 4, capability=AMPERE).record
    # Four samples, sixteen steps, five labels and the six gaps around them.
    assert 4 * 16 * (2 * 5 + 1) * 4 in [each.num_bytes for each in record.storages]


@pytest.mark.parametrize(
    ("optimizer", "layer", "told"),
    [
        (torch.optim.LBFGS, nn.Linear(WIDTH, WIDTH), "runs an optimizer that asks for values"),
        (torch.optim.SGD, nn.Embedding(WIDTH, WIDTH, sparse=True), "use sparse=False"),
    ],
)
def test_what_cannot_be_traced_is_told_with_what_to_do(optimizer, layer, told):
    class Trains(OnGpu):
        def build(self):
            self.model = layer.to(self.device)
            self.optimizer = optimizer(self.model.parameters(), lr=0.1)

        def batch(self, size):
            is_embedding = isinstance(layer, nn.Embedding)
            return torch.zeros(size, WIDTH, device=self.device, dtype=torch.long if is_embedding else torch.float32)

        def step(self, batch):
            def loss():
                self.optimizer.zero_grad()
                value = self.model(batch).sum()
                value.backward()
                return value

            self.optimizer.step(loss)

    with pytest.raises(TraceError, match=told):
        trace(Trains, Case(), 4, capability=AMPERE)
