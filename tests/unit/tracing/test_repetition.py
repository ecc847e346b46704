import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.allocator import MIB, AllocatorFullError, replay
from brim.tracing.record import Phase, Record, Storage
from brim.tracing.repetition import Repetition, repetition_of

AMPERE = (8, 0)


class Training(brim.Workload):
    """Keeps its gradients or its outputs from step to step, as the case says."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 700), nn.ReLU()).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.outputs = None

    def batch(self, size):
        return torch.randn(size, 300, device=self.device)

    def step(self, batch):
        if self.case["zero"] == "first":
            self.optimizer.zero_grad()
        outputs = self.model(batch)
        outputs.square().mean().backward()
        if self.case["keeps"]:
            self.outputs = outputs
        self.optimizer.step()
        if self.case["zero"] == "last":
            self.optimizer.zero_grad()
        elif self.case["zero"] == "in place":
            self.optimizer.zero_grad(set_to_none=False)


class Evaluation(Training):
    kind = "eval"

    def step(self, batch):
        with torch.no_grad():
            self.model(batch)


def record_of(workload, case, *, steps):
    return trace(workload, Case(case), 5000, steps=steps, capability=AMPERE).record


@pytest.mark.parametrize("zero", ["first", "last", "in place"])
@pytest.mark.parametrize("keeps", [True, False])
def test_repeating_the_second_step_is_tracing_more_of_them(zero, keeps):
    case = {"zero": zero, "keeps": keeps}
    two, five = record_of(Training, case, steps=2), record_of(Training, case, steps=5)
    repetition = repetition_of(two)
    assert repetition is not None
    assert replay(two.events, repetition=repetition) == replay(five.events)


def test_evaluation_is_repeated_from_its_only_step():
    one, three = (record_of(Evaluation, {"keeps": False}, steps=steps) for steps in (1, 3))
    assert replay(one.events, repetition=repetition_of(one)) == replay(three.events)


def test_a_job_that_fits_two_steps_may_not_fit_a_third():
    # Storages 0 and 4 of a step die in the next, the others in their own: blocks are cut anew in every step.
    mibs, num_events = (20, 27, 12, 29, 17), 8
    first = [(0, 20), (1, 27), (1, 0), (2, 12), (3, 29), (4, 17), (2, 0), (3, 0)]
    second = [(5, 20), (6, 27), (6, 0), (0, 0), (4, 0), (7, 12), (8, 29), (9, 17), (7, 0), (8, 0)]
    events = tuple((number, mib * MIB) for number, mib in (*first, *second))
    storages = tuple(Storage(num_bytes=mib * MIB, phase=Phase.FORWARD, module="") for mib in mibs * 2)
    repetition = repetition_of(Record(storages=storages, events=events, step_events=(0, num_events)))
    assert repetition == Repetition(start=num_events, successors={0: 5, 4: 9})
    assert replay(events).reserved_bytes == 96 * MIB
    assert replay(events, repetition=repetition).reserved_bytes == 154 * MIB
    assert replay(events, capacity_bytes=96 * MIB)
    with pytest.raises(AllocatorFullError):
        replay(events, repetition=repetition, capacity_bytes=96 * MIB)


def test_a_step_that_keeps_more_each_time_is_not_repeated():
    kept = Storage(num_bytes=8, phase=Phase.FORWARD, module="")
    record = Record(storages=(kept, kept), events=((0, 8), (1, 8)), step_events=(0, 1))
    assert repetition_of(record) is None
