"""What traces show beside memory: what the workload may not be meant to do."""

from tests.unit.tracing.test_prediction import SMALL, Mlp

from brim.tracing import predict


class TrainsAsEval(Mlp):
    kind = "eval"


class KeepsLosses(Mlp):
    def build(self):
        super().build()
        self.losses = []

    def step(self, batch):
        loss = self.model(batch).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss)


def test_a_step_that_trains_needs_the_same_whatever_it_is_called():
    trains, evaluates = (predict(each, gpu=SMALL) for each in (Mlp, TrainsAsEval))
    assert evaluates.peak(64) == trains.peak(64)
    assert (trains.observed.other_kind, evaluates.observed.other_kind) == (None, "train")


def test_a_little_that_every_step_keeps_is_told():
    assert predict(KeepsLosses, gpu=SMALL).observed.kept_bytes == 4
    assert predict(Mlp, gpu=SMALL).observed.kept_bytes == 0


def test_a_name_of_the_case_that_nobody_asks_for_is_told():
    class Wide(Mlp):
        def batch(self, size):
            self.case.get("width", 8)
            return super().batch(size)

    prediction = predict(Wide, gpu=SMALL, case={"with": 8})
    assert (prediction.observed.unread, prediction.observed.missed) == (("with",), ("width",))
    assert predict(Wide, gpu=SMALL, case={"width": 8}).observed.unread == ()
