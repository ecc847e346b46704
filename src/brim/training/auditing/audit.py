"""A user's own accumulation loop against the full batch: `brim.audit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from brim.errors import InputError
from brim.planning.batch_plan import check_count
from brim.probing.snapshot import restored
from brim.training.auditing.judge import Judge
from brim.training.auditing.reference import LossFn
from brim.training.auditing.report import AuditReport
from brim.training.auditing.trainers import prepare
from brim.training.auditing.witness import Batches, Witness

# Gradients that are equal but for rounding in float32 are a hundred times nearer; mistakes are not.
TOLERANCE = 1e-3


def audit(
    loop: Any,
    model: nn.Module | None = None,
    batches: Iterable[Any] | None = None,
    loss_fn: LossFn | None = None,
    *,
    accumulation: int | None = None,
    tolerance: float = TOLERANCE,
) -> AuditReport:
    """Run an accumulation loop, and compare the gradient of every update with the full batch's.

    At each step of an optimizer, at the weights that it is about to change, the gradient is computed as it should be:
    of the mean loss over all items of all microbatches since the last update, on all ranks. Gradients are compared
    before they are clipped. Models, optimizers, schedulers and random generators are put back afterwards.

    Args:
        loop: A function that trains `model` on the loader it is given, with one backward pass for each batch; or a
            transformers Trainer, which needs nothing else; or a Lightning Trainer.
        model: What the loop trains: a module, also in `DistributedDataParallel`, or a LightningModule.
        batches: The microbatches: a few windows and a shorter one. On several ranks, what this rank's loop is given.
        loss_fn: Takes one of `batches`, returns the sum of its losses, or that and the number of its items. Without
            one the items are the samples. The same as for `Accumulator.step`.
        accumulation: Microbatches of a whole window. By default the trainer's, or the most seen in a window.
        tolerance: Which share gradients may be apart and still be taken for equal; for 16-bit autocast about 0.02.

    Returns:
        The ratio of the gradients for every window, with its causes by name. Print it.
    """
    if accumulation is not None:
        check_count("accumulation", accumulation)
    case = prepare(loop, model, batches, loss_fn, accumulation)
    _check(case.model, case.batches, tolerance)
    judge, drawn = Judge(case.model, case.loss_fn), Batches(case.batches)
    witness = Witness(judge.parameters, drawn, on_step=judge.compare, on_close=judge.close)
    with restored(), witness.watching():
        case.run(drawn.loader())
    if not witness.num_backwards:
        raise InputError(
            f"The loop drew {len(drawn.drawn)} batches of the loader it is given and ran no backward pass."
        )
    return judge.report(accumulation=case.accumulation, tolerance=tolerance)


def _check(model: nn.Module, batches: Sequence[Any], tolerance: float) -> None:
    if not batches:
        raise InputError("There are no batches to audit with. Pass a few windows of them, and a shorter one.")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance!r}. Use a share above 0 and below 1, such as {TOLERANCE}.")
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise InputError("The model is sharded. Audit the loop on one that is not: what it does wrong is the same.")
