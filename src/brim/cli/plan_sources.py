"""Which options of `brim plan` belong together, and the answer that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brim.cases import parse_cases
from brim.devices.catalog import Gpu, find_gpu
from brim.errors import InputError
from brim.planning.answer import (
    Answer,
    Wanted,
    answer_kept_microbatch,
    answer_largest,
    answer_measurement,
    answer_settings,
    answer_sizing,
    answer_thumb,
    answer_traced,
)
from brim.planning.configs import read_config
from brim.planning.footprint import LORA_RANK, Training
from brim.planning.measurement import Measured, extrapolate
from brim.planning.profiles import FILLS, check_profile
from brim.planning.shapes import ModelShape, find_model
from brim.planning.sizing import size_up
from brim.planning.thumb import rule_of_thumb
from brim.units import parse_bytes, parse_seconds
from brim.workload import check_address

DEFAULT_FILL = 0.9
DEFAULT_SEQ_LEN = 2048
_MODEL_OPTIONS = ("seq_len", "method", "task", "precision", "optimizer", "lora_rank", "rule")
_DEVICE_OPTIONS = ("gpu", "memory", "fill", "profile", "ladder")
# Where the largest microbatch can come from, and the options that go with each.
_GOES_WITH = {
    "largest": ("effective", "profile"),
    "microbatch": ("effective", "accumulation", "largest"),
    "measured": ("effective", "target", "profile", "safety", "gpu", "memory"),
    "model": ("effective", *_MODEL_OPTIONS, *_DEVICE_OPTIONS),
    "config": ("effective", *_MODEL_OPTIONS, *_DEVICE_OPTIONS),
    "workload": ("effective", "case", *_DEVICE_OPTIONS),
}
_ANYWHERE = ("ranks", "lr", "lr_rule", "beta2", "dataset", "symptom", "timing", "framework", "save", "json", "debug")
_RULES = ("shapes", "thumb")

Options = Mapping[str, Any]


def answer_from(parameters: Options) -> Answer:
    """Answer from the options of the command that were given; refuse those that make no sense together."""
    options = {name: value for name, value in parameters.items() if value is not None and value is not False}
    options = {name: value for name, value in options.items() if value not in ([], ())}
    wanted = _wanted(options)
    return _ANSWERS[_source(options)](options, wanted)


def _source(options: Options) -> str:
    found = [source for source in _GOES_WITH if source in options]
    if "microbatch" in found and "largest" in found:
        found.remove("largest")
    if not found:
        raise InputError(
            "What fits? Pass one of: --largest 12 (known), --measured 512:0.1GB --target 35GB, "
            "--model 7b --gpu a100-80gb, --config config.json --gpu …, --workload file.py:Name --gpu …; "
            "or --microbatch 4 --accumulation 5 for what they amount to."
        )
    if len(found) > 1:
        raise InputError(f"{' and '.join(map(_flag, found))} each say what fits. Pass one of them.")
    source = found[0]
    for name in options:
        if name not in (source, *_GOES_WITH[source], *_ANYWHERE):
            homes = [_flag(each) for each, others in _GOES_WITH.items() if name in others]
            raise InputError(f"{_flag(name)} does not go with {_flag(source)}. It goes with {' or '.join(homes)}.")
    return source


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _wanted(options: Options) -> Wanted:
    learning_rate, tuned_at = _parse_rate(options["lr"]) if "lr" in options else (None, None)
    for name in ("lr_rule", "beta2"):
        if name in options and learning_rate is None:
            raise InputError(f"{_flag(name)} needs the rate that is to be scaled. Add for example --lr 3e-4@64.")
    if "beta2" in options and options.get("lr_rule") == "sgd":
        raise InputError("--beta2 is Adam's, and --lr-rule is sgd. Leave one of them out.")
    return Wanted(
        effective=options.get("effective"),
        ranks=options["ranks"],
        ladder=options.get("ladder", False),
        dataset_size=options.get("dataset"),
        symptom=options.get("symptom"),
        learning_rate=learning_rate,
        tuned_at=tuned_at,
        rule=options.get("lr_rule", "sgd" if options.get("optimizer") == "sgd" else "adam"),
        beta2=options.get("beta2", 0.999),
        timings=dict(map(_parse_timing, options["timing"])) if "timing" in options else None,
    )


def _parse_rate(text: str) -> tuple[float, int]:
    rate, _, batch = text.partition("@")
    try:
        return float(rate), int(batch)
    except ValueError as error:
        raise InputError(f"--lr {text!r} is not RATE@BATCH. Use for example --lr 3e-4@64.") from error


def _parse_timing(text: str) -> tuple[int, float]:
    batch, _, seconds = text.partition(":")
    if not batch.isdecimal() or not int(batch) or not seconds:
        raise InputError(f"--timing {text!r} is not MICROBATCH:TIME. Use for example --timing 8:80ms --timing 32:0.2s.")
    return int(batch), parse_seconds(seconds)


def _gpu(options: Options) -> Gpu:
    if "gpu" in options and "memory" in options:
        raise InputError("--gpu and --memory each say how much memory there is. Pass one of them.")
    if "memory" in options:
        return Gpu(name=options["memory"], memory_bytes=parse_bytes(options["memory"]))
    if "gpu" in options:
        return find_gpu(options["gpu"])
    raise InputError("Which GPU? Pass --gpu rtx-3090 (`brim gpus` lists all) or --memory 24GB.")


def _fill(options: Options) -> float:
    if "profile" not in options:
        return float(options.get("fill", DEFAULT_FILL))
    if "fill" in options:
        raise InputError("--profile and --fill each say how much may be used. Pass one of them.")
    return FILLS[check_profile(options["profile"])]


def _from_largest(options: Options, wanted: Wanted) -> Answer:
    if wanted.effective is None:
        raise InputError("Which effective batch? Pass for example --effective 256.")
    if options["largest"] < 1:
        raise InputError(
            f"--largest is {options['largest']}: nothing fits, so there is nothing to plan. "
            "See what would save memory: brim plan --workload file.py:Name --gpu NAME"
        )
    return answer_largest(wanted, options["largest"], profile=options.get("profile"))


def _from_microbatch(options: Options, wanted: Wanted) -> Answer:
    if ("accumulation" in options) == (wanted.effective is not None):
        raise InputError(
            "--microbatch needs one of two: --accumulation 4 for what they amount to, "
            "or --effective 100 for the choices near it."
        )
    if wanted.effective is None:
        return answer_settings(
            wanted,
            microbatch=options["microbatch"],
            accumulation=options["accumulation"],
            largest=options.get("largest"),
        )
    return answer_kept_microbatch(wanted, microbatch=options["microbatch"], largest=options.get("largest"))


def _from_measurement(options: Options, wanted: Wanted) -> Answer:
    has_device = "gpu" in options or "memory" in options
    if not has_device and "target" not in options:
        raise InputError("How much may it use? Pass --target 35GB, or the device: --gpu a100-80gb or --memory 80GB.")
    memory_bytes = _gpu(options).memory_bytes if has_device else None
    target = parse_bytes(options["target"]) if "target" in options else int(DEFAULT_FILL * (memory_bytes or 0))
    if "profile" in options and "safety" in options:
        raise InputError("--profile and --safety each say how far to trust the line. Pass one of them.")
    found = extrapolate(
        [Measured.parse(text) for text in options["measured"]],
        target_bytes=target,
        memory_bytes=memory_bytes,
        profile=options.get("profile", "conservative"),
        safety=options.get("safety"),
    )
    return answer_measurement(wanted, found)


def _from_model(options: Options, wanted: Wanted) -> Answer:
    shape: ModelShape = read_config(options["config"]) if "config" in options else find_model(options["model"])
    training = Training(
        seq_len=options.get("seq_len", DEFAULT_SEQ_LEN),
        method=options.get("method", "full"),
        task=options.get("task", "generation"),
        precision=options.get("precision", "bf16"),
        optimizer=options.get("optimizer", "adamw"),
        lora_rank=options.get("lora_rank", LORA_RANK),
    )
    gpu, rule = _gpu(options), options.get("rule", "shapes")
    if rule not in _RULES:
        raise InputError(f"There is no rule {rule!r}. Use one of: {', '.join(_RULES)}.")
    sizing = size_up(shape, training, gpu=gpu, fill=_fill(options), ranks=wanted.ranks)
    if rule == "shapes":
        return answer_sizing(wanted, sizing)
    thumb = rule_of_thumb(
        shape.num_parameters,
        memory_bytes=gpu.memory_bytes,
        task=training.task,
        state_bytes=sizing.held.state_bytes,
    )
    return answer_thumb(wanted, thumb)


def _from_workload(options: Options, wanted: Wanted) -> Answer:
    check_address(options["workload"])
    gpu = _gpu(options)
    cases = parse_cases([options["case"]] if "case" in options else [])
    if len(cases) > 1:
        raise InputError(f"--case {options['case']} is {len(cases)} cases. A plan is for one: give its key one value.")
    from brim.cli.output import telling
    from brim.tracing.ladder import trace_job  # imports torch: after what can be refused without it

    with telling() as tell:
        job = trace_job(
            options["workload"],
            gpu=gpu,
            case=cases[0],
            wanted=wanted,
            fill=_fill(options),
            tell=tell,
        )
    return answer_traced(wanted, job)


_ANSWERS: dict[str, Callable[[Options, Wanted], Answer]] = {
    "largest": _from_largest,
    "microbatch": _from_microbatch,
    "measured": _from_measurement,
    "model": _from_model,
    "config": _from_model,
    "workload": _from_workload,
}
