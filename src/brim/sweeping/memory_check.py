"""Before anything runs: what each trial should need of the device, and the batch that would fit where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.devices.catalog import Gpu, find_gpu
from brim.errors import BrimError, InputError
from brim.sweeping.auto import find_request
from brim.sweeping.config import MISSING, canonical, look_up
from brim.sweeping.file import check_names
from brim.sweeping.plan import Plan, Trial
from brim.sweeping.spec import SweepSpec
from brim.units import format_bytes, parse_bytes

# Training memory of video models at this batch size, measured by users, in GB of 1e9 bytes; `gb_at_64` in the sweep
# file adds to them and goes before them.
BATCH_MEASURED = 64
MEASURED_GB = {"r3d_18": 2.0, "mvit_v1_b": 8.0, "swin3d_b": 12.0}
_NAMES = ("gb_at_64", "gpu", "memory", "device")
# Tracing takes seconds for each case; a dry run should not take minutes.
_MOST_CASES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a trial should need.

    Attributes:
        fitting_batch: The largest power of two that fits; 0 where none does.
    """

    num_bytes: int
    limit_bytes: int
    fits: bool
    fitting_batch: int


class MemoryCheck:
    """Estimates trials, by a prediction where the sweep names a workload, else by what others measured."""

    def __init__(self, plan: Plan) -> None:
        self._spec = plan.spec
        settings = plan.spec.memory_check
        if not isinstance(settings, Mapping):
            raise InputError(f"memory_check must be a mapping such as {{gpu: rtx-3090}}, not {settings!r}.")
        check_names(settings, _NAMES, "memory_check")
        self._measured = _measured(settings.get("gb_at_64") or {})
        self._gpu = _device(settings)
        self._predictions: dict[str, Any] = {}
        self.problems: list[str] = []

    @property
    def device(self) -> str:
        """The device that trials are held against."""
        return f"{format_bytes(self._gpu.memory_bytes)} of {self._gpu.name}"

    def need(self, trial: Trial) -> Need | None:
        """Return what a trial should need; None where nothing is known of it."""
        batch = look_up(trial.resolved, self._spec.batch_key)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            return None
        if "workload" in self._spec.auto:
            return self._predicted(trial, batch)
        gigabytes = self._measured.get(str(look_up(trial.resolved, self._spec.model_key)))
        return None if gigabytes is None else scaled(gigabytes, batch, self._gpu.memory_bytes)

    def _predicted(self, trial: Trial, batch: int) -> Need | None:
        asked = find_request(self._spec.auto, trial.resolved)
        key = canonical(asked)
        if key not in self._predictions:
            if len(self._predictions) >= _MOST_CASES:
                return None
            self._predictions[key] = self._predict(asked)
        prediction = self._predictions[key]
        if prediction is None:
            return None
        return Need(
            num_bytes=prediction.peak(batch).device_bytes,
            limit_bytes=self._gpu.memory_bytes,
            fits=prediction.fits(batch),
            fitting_batch=power_of_two(prediction.largest),
        )

    def _predict(self, asked: Mapping[str, Any]) -> Any:
        from brim.tracing import predict

        try:
            target, _, name = asked["workload"].rpartition(":")
            address = f"{self._spec.workdir / target}:{name}" if target.endswith(".py") else asked["workload"]
            return predict(address, gpu=self._gpu, case=asked["case"])
        except BrimError as error:
            self.problems.append(f"the memory of {asked['workload']} cannot be predicted: {error}")
            return None


def scaled(gigabytes: float, batch: int, limit_bytes: int) -> Need:
    """Return the need of a batch from what was measured at batch 64, scaled linearly.

    >>> scaled(12.0, 128, 16_000_000_000)
    Need(num_bytes=24000000000, limit_bytes=16000000000, fits=False, fitting_batch=64)
    """
    measured_bytes = gigabytes * 1e9
    largest = int(limit_bytes / measured_bytes * BATCH_MEASURED)
    num_bytes = round(measured_bytes * batch / BATCH_MEASURED)
    return Need(
        num_bytes=num_bytes,
        limit_bytes=limit_bytes,
        fits=num_bytes <= limit_bytes,
        fitting_batch=power_of_two(largest),
    )


def power_of_two(largest: int) -> int:
    """Return the largest power of two that is at most `largest`; 0 where there is none.

    >>> [power_of_two(n) for n in (0, 1, 85, 128)]
    [0, 1, 64, 128]
    """
    return 1 << (largest.bit_length() - 1) if largest >= 1 else 0


def warnings_of(needs: Iterable[tuple[Trial, Need]], spec: SweepSpec) -> list[str]:
    """Return a line for each trial that will not fit, with the batch that would."""
    lines = []
    for trial, need in needs:
        if not need.fits:
            model = look_up(trial.resolved, spec.model_key)
            who = "a trial" if model is MISSING else model
            batch = look_up(trial.resolved, spec.batch_key)
            instead = f"{spec.batch_key} {need.fitting_batch} would" if need.fitting_batch else "no batch would"
            lines.append(
                f"{who} with {spec.batch_key} {batch} needs about {format_bytes(need.num_bytes)} and will not fit "
                f"into {format_bytes(need.limit_bytes)}; {instead}"
            )
    return lines


def _measured(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise InputError(f"memory_check.gb_at_64 must map models to GB, such as {{s3d: 3.1}}, not {given!r}.")
    for model, gigabytes in given.items():
        if isinstance(gigabytes, bool) or not isinstance(gigabytes, (int, float)) or gigabytes <= 0:
            raise InputError(f"memory_check.gb_at_64: {model} is {gigabytes!r}. Use GB above 0, measured at batch 64.")
    return {**MEASURED_GB, **given}


def _device(settings: Mapping[str, Any]) -> Gpu:
    """Return what trials are held against: a GPU of the catalog, so much memory, or what is here and free."""
    if "gpu" in settings:
        return find_gpu(str(settings["gpu"]))
    if "memory" in settings:
        return Gpu(name="`memory_check: memory`", memory_bytes=parse_bytes(settings["memory"]))
    from brim.devices import resolve

    device = resolve(settings.get("device", "auto"), memory=None, fill=1.0)
    return Gpu(name=device.name, memory_bytes=device.memory_bytes)
