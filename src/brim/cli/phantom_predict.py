"""`brim predict` on phantoms: which engine, which machines, the search over both, and what is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum

from brim.cases import Case
from brim.cli.find import NOTHING_FITS
from brim.devices.catalog import Gpu, find_gpu
from brim.errors import BrimError, InputError
from brim.finding.phantom import Machine, Request, label_of, predict_on_phantom
from brim.finding.predicted import PhantomPrediction
from brim.phantom import Torch, find_torch, why_unavailable
from brim.units import parse_bytes, parse_seconds

_SEVERAL = re.compile(r"(.+):(\d+)")
# The setting of torch's allocator, under its older name, which every torch knows.
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


class Engine(Enum):
    """How memory is learnt without the GPU."""

    AUTO = "auto"
    PHANTOM = "phantom"
    TRACE = "trace"


def find_machines(names: Sequence[str], memories: Sequence[str]) -> list[Machine]:
    """Return the machines that `--gpu` and `--memory` name.

    >>> find_machines(["rtx-3090:2"], [])[0].num_gpus
    2
    """
    machines = [find_machine(name) for name in names]
    machines += [Machine(gpu=Gpu(name=memory, memory_bytes=parse_bytes(memory))) for memory in memories]
    if not machines:
        raise InputError("Which GPU? Pass --gpu rtx-3090 (`brim gpus` lists all) or --memory 23.7GiB.")
    return list(dict.fromkeys(machines))


def find_machine(name: str) -> Machine:
    """Return the machine of a name of the catalog, perhaps with a number of GPUs behind it."""
    several = _SEVERAL.fullmatch(name)
    if several is None:
        return Machine(gpu=find_gpu(name))
    return Machine(gpu=find_gpu(several[1]), num_gpus=int(several[2]))


def choose_engine(asked: str, words: Sequence[str], machines: Sequence[Machine], *, cuda: str | None) -> Engine:
    """Return the engine for a workload's address or a command, or raise what keeps the one asked for from running."""
    try:
        engine = Engine(asked)
    except ValueError:
        raise InputError(f"There is no engine {asked!r}. Use one of: auto, phantom, trace.") from None
    is_command = len(words) > 1
    if engine is Engine.TRACE and is_command:
        raise InputError(
            "A trace runs a workload, not a command. Use --engine phantom, which needs torch's CUDA build, or write "
            "a brim.Workload."
        )
    several = next((machine for machine in machines if machine.num_gpus > 1), None)
    why_not = _why_no_phantom(words, machines, cuda)
    if why_not is None and engine is not Engine.TRACE:
        return Engine.PHANTOM
    if engine is Engine.PHANTOM or is_command or several is not None:
        assert why_not is not None or several is not None
        raise InputError(why_not or f"A trace has one GPU, not {several and several.num_gpus}. Use --engine phantom.")
    return Engine.TRACE


def _why_no_phantom(words: Sequence[str], machines: Sequence[Machine], cuda: str | None) -> str | None:
    if cuda is not None:
        return f"A phantom runs the CUDA that torch was built for. Leave out --cuda {cuda}, or use --engine trace."
    amd = next((machine.gpu for machine in machines if machine.gpu.is_amd), None)
    if amd is not None:
        return f"{amd.name} runs ROCm, and phantoms are CUDA GPUs. Use --engine trace."
    return why_unavailable(words if len(words) > 1 else ())


def predict_and_print(
    words: Sequence[str],
    machines: Sequence[Machine],
    *,
    cases: Sequence[Case],
    microbatch: int | None,
    fill: float,
    cap: int | None,
    steps: int,
    timeout: str | None,
    expandable_segments: bool | None,
    as_json: bool,
) -> int:
    """Search every case on every machine, print what was found, and return the exit code."""
    from brim.cli.prediction_output import print_documents, print_on_phantom, say_failures

    request = Request(
        words=tuple(words),
        cases=tuple(cases),
        fill=fill,
        cap=cap,
        microbatch=microbatch,
        steps=steps,
        timeout_seconds=None if timeout is None else parse_seconds(timeout),
        environment=_allocator_setting(expandable_segments),
    )
    torch = find_torch(request.command.words if request.is_command else ())
    predictions, failure = _search(request, machines, torch)
    label = label_of(words)
    if as_json and predictions:
        documents = [each.to_dict(label, microbatch=microbatch) for each in predictions]
        print_documents(documents, [] if failure is None else [failure])
    elif as_json and isinstance(failure, KeyboardInterrupt):
        from brim.cli.output import print_json_error

        print_json_error(failure)
    elif predictions:
        print_on_phantom(label, predictions, microbatch=microbatch, torch=torch)
    if failure is not None:
        say_failures([])
        raise failure
    return 0 if all(_fits_anywhere(predictions, case) for case in cases) else NOTHING_FITS


def _search(
    request: Request, machines: Sequence[Machine], torch: Torch
) -> tuple[list[PhantomPrediction], BrimError | KeyboardInterrupt | None]:
    from brim.cli.output import observer
    from brim.cli.signals import end_like_ctrl_c

    predictions: list[PhantomPrediction] = []
    try:
        for machine in machines:
            with end_like_ctrl_c(), observer() as told:
                if len(machines) > 1:
                    told.note(f"{machine.gpu.name}:")
                for prediction in predict_on_phantom(request, machine, torch=torch, observer=told):
                    predictions.append(prediction)
    except (BrimError, KeyboardInterrupt) as error:
        return predictions, error
    return predictions, None


def _fits_anywhere(predictions: Sequence[PhantomPrediction], case: Case) -> bool:
    return any(prediction.largest for prediction in predictions if prediction.case == case)


def _allocator_setting(expandable_segments: bool | None) -> Mapping[str, str]:
    import os

    if expandable_segments is None:
        return {}
    others = [each for each in os.environ.get(_ALLOCATOR, "").split(",") if each and "expandable_segments" not in each]
    return {_ALLOCATOR: ",".join([*others, f"expandable_segments:{expandable_segments}"])}
