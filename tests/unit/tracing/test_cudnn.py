"""cuDNN's products of every sample: where they are known to be taken, and that sizes on a line follow them."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.devices.catalog import find_gpu
from brim.tracing import trace
from brim.tracing.cudnn import MOST_TERMS, workspace_of
from brim.tracing.prediction import predict_all
from brim.tracing.runtime import Runtime
from brim.tracing.sizes import TracedSizes

AMPERE = (8, 6)
BACKWARD = torch.ops.aten.convolution_backward.default
INPUTS, OUTPUTS, PIXELS = 320, 1280, 9
LAST = MOST_TERMS // PIXELS


def arguments(
    num_samples, *, inputs=INPUTS, outputs=OUTPUTS, kernel=1, stride=1, groups=1, side=3, dtype=torch.float32
):
    images = torch.empty(num_samples, inputs, side, side, device="meta", dtype=dtype)
    weight = torch.empty(outputs, inputs // groups, kernel, kernel, device="meta", dtype=dtype)
    gradient = torch.empty(num_samples, outputs, side, side, device="meta", dtype=dtype)
    return gradient, images, weight, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], groups, [True, True, False]


def taken(num_samples, *, capability=AMPERE, **sizes):
    return workspace_of(BACKWARD, arguments(num_samples, **sizes), microbatch=num_samples, capability=capability)


class Head(brim.Workload):
    """Ends as MobileNetV2 does at images of 86 pixels."""

    rows = 1

    def build(self):
        self.model = nn.Conv2d(INPUTS, OUTPUTS, 1, bias=False).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def batch(self, size):
        return torch.randn(self.rows * size, INPUTS, 3, 3, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Crops(Head):
    rows = 4


def workspaces(record):
    return [storage.num_bytes for storage in record.storages if storage.workspace is not None]


def test_every_sample_has_a_product_of_its_own_up_to_as_many_terms_as_were_seen():
    workspace = taken(200)
    assert workspace.at(200) == 200 * INPUTS * OUTPUTS * 4
    assert workspace.at(LAST) == LAST * INPUTS * OUTPUTS * 4
    assert workspace.at(LAST + 1) < 1024


@pytest.mark.parametrize(
    "other",
    [
        {"capability": (8, 9)},
        {"capability": None},
        {"kernel": 3},
        {"stride": 2},
        {"groups": 2},
        {"dtype": torch.float16},
        {"inputs": 400, "outputs": 400},
        {"inputs": 512, "outputs": 2048},
    ],
)
def test_nothing_is_said_of_what_was_not_seen(other):
    assert taken(200, **other) is None


def test_what_cudnn_itself_was_asked_for_is_there():
    assert taken(92, inputs=576, outputs=96, side=6).at(92) == 92 * 576 * 96 * 4
    assert taken(93, inputs=576, outputs=96, side=6).at(93) < 1024


def test_channels_last_is_left_alone():
    gradient, images, *rest = arguments(200)
    images = images.to(memory_format=torch.channels_last)
    assert workspace_of(BACKWARD, (gradient, images, *rest), microbatch=200, capability=AMPERE) is None


def test_a_gradient_of_the_weights_that_nobody_wants_takes_nothing():
    *rest, _ = arguments(200)
    assert workspace_of(BACKWARD, (*rest, [True, False, False]), microbatch=200, capability=AMPERE) is None


@pytest.mark.parametrize("workload_class", [Head, Crops])
@pytest.mark.parametrize("microbatch", [8, LAST // 4, LAST // 4 + 1, LAST, LAST + 1])
def test_the_line_says_what_a_trace_would_on_both_sides_of_the_last_size(workload_class, microbatch):
    traced = TracedSizes(workload_class, Case(), capability=AMPERE)
    own = trace(workload_class, Case(), microbatch, capability=AMPERE).record
    assert traced.is_on_line(microbatch)
    assert traced.record(microbatch).events == own.events
    assert workspaces(own) == [storage.workspace.at(microbatch) for storage in own.storages if storage.workspace]
    assert len(workspaces(own)) == 2  # one in each step


def test_a_peak_holds_the_workspace_while_it_is_taken():
    peaks = [brim.predict(Head, gpu="rtx-3060").peak(size).allocated_bytes for size in (LAST, LAST + 1)]
    assert peaks[0] - peaks[1] > 0.8 * LAST * INPUTS * OUTPUTS * 4  # without it, the peak is at another moment


def test_a_gpu_of_another_kind_does_not_share_the_trace():
    gpus = [find_gpu(name) for name in ("a100-80gb", "rtx-3060", "rtx-3090")]
    other, *ampere = predict_all(Head, gpus=gpus, cases=[Case()], runtime=Runtime(), cap=LAST)
    peaks = [prediction.peak(LAST).allocated_bytes for prediction in ampere]
    assert peaks[0] == peaks[1] > 2 * other.peak(LAST).allocated_bytes
