import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.kernels import batch_norm_scratch
from brim.tracing.record import Phase


class SumsUp(brim.Workload):
    """The gradient of a sum is one number that is repeated, which a matrix product copies first."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to(self.device)

    def batch(self, size):
        return torch.ones(size, 512, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.model.zero_grad()


class Attends(SumsUp):
    def step(self, batch):
        (self.model(batch).softmax(-1) ** 2).sum().backward()
        self.model.zero_grad()


def test_a_product_with_a_repeated_number_holds_a_copy_of_it():
    record = trace(SumsUp, Case(), 4096, steps=1).record
    products = [each.num_bytes for each in record.storages if each.phase is Phase.BACKWARD]
    # The gradient of the first layer's output, and a copy for each of the products that lead to it and to the weight.
    assert products.count(4096 * 512 * 4) == 3


def test_the_backward_pass_of_softmax_holds_a_product_on_cuda():
    on_cpu, on_cuda = (trace(Attends, Case(), 4096, capability=each).record for each in (None, (8, 6)))
    sizes = [[each.num_bytes for each in record.storages].count(4096 * 512 * 4) for record in (on_cpu, on_cuda)]
    assert sizes[1] - sizes[0] == 2  # in each of the two steps


class Classifies(SumsUp):
    """Takes the softmax of what lies channels last, as after an interpolation."""

    def step(self, batch):
        with torch.no_grad():
            images = batch.view(-1, 8, 8, 8)
            if self.case["layout"]:
                images = images.contiguous(memory_format=torch.channels_last)
            images.log_softmax(1)


def test_softmax_copies_what_does_not_lie_in_its_order_on_cuda():
    sizes = []
    for layout in (0, 1):
        record = trace(Classifies, Case({"layout": layout}), 64, steps=1, capability=(8, 6)).record
        sizes.append([each.num_bytes for each in record.storages].count(64 * 512 * 4))
    assert sizes[1] - sizes[0] == 2  # the batch in its other order, and the copy back


CHANNELS_LAST = {"memory_format": torch.channels_last}


@pytest.mark.parametrize("wants_inputs", [True, False])
@pytest.mark.parametrize(
    ("inputs", "gradient"),
    [
        (torch.ones(4, 8, 16, 16), torch.ones(4, 8, 16, 16)),
        (torch.ones(4, 8, 256), torch.ones(4, 8, 256)),
        (torch.ones(64, 8), torch.ones(64, 8)),
        (torch.ones(4, 8, 16, 16).bfloat16(), torch.ones(4, 8, 16, 16).bfloat16()),
        (torch.ones(4, 8, 16, 16).to(**CHANNELS_LAST), torch.ones(4, 8, 16, 16).to(**CHANNELS_LAST)),
        (torch.ones(4, 8, 16, 16).to(**CHANNELS_LAST), torch.ones(4, 8, 16, 16)),
        (torch.ones(4, 8, 16, 16), torch.ones(1).expand(4, 8, 16, 16)),
        (torch.ones(4, 8, 16, 20).transpose(2, 3), torch.ones(4, 8, 16, 20).transpose(2, 3)),
    ],
    ids=["images", "rows", "vectors", "bfloat16", "channels last", "mixed", "repeated", "transposed"],
)
def test_the_backward_pass_of_batch_norm_takes_what_the_cpus_allocator_gives_it(inputs, gradient, wants_inputs):
    backward, ones = torch.ops.aten.native_batch_norm_backward.default, torch.ones(8)
    arguments = gradient, inputs, ones, ones, ones, ones, ones, True, 1e-5, [wants_inputs, True, True]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        backward(*arguments)
    events = recorded.profiler.kineto_results.events()
    given_back = [-event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() < 0]
    # The results themselves are given back at the end.
    num_large = given_back.count(inputs.nbytes) - wants_inputs
    assert batch_norm_scratch(backward, arguments) == (inputs.nbytes,) * num_large


class Standardized(brim.Workload):
    """Weights that are normalized before they are used: of few samples they are the largest thing there is."""

    def build(self):
        self.weight = nn.Parameter(torch.ones(256, 256, 1, 1, device=self.device))

    def batch(self, size):
        return torch.ones(size, 256, 8, 8, device=self.device)

    def step(self, batch):
        rows = F.batch_norm(self.weight.reshape(1, 256, -1), None, None, training=True)
        F.conv2d(batch, rows.reshape_as(self.weight)).sum().backward()
        self.weight.grad = None


def test_batch_norm_makes_its_gradient_twice_on_the_cpu_alone():
    on_cpu, on_cuda = (trace(Standardized, Case(), 1, steps=1, capability=each) for each in (None, (8, 0)))
    assert on_cpu.peak_bytes - on_cuda.peak_bytes == 256 * 256 * 4
