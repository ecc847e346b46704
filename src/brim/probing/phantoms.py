"""Probes of a command on phantom GPUs: the same run as on real ones, and what only a phantom can tell of it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from brim.cases import Case
from brim.devices import Device
from brim.devices.catalog import Gpu
from brim.devices.context import context_bytes
from brim.findings import Probe, Race, Verdict
from brim.phantom import Event, Held, Phantoms, Snapshot, Torch
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced
from brim.probing.scripts import Command, CommandProber
from brim.probing.scripts.records import Ended
from brim.units import format_bytes

# Probes that run at the same time: the one that was asked for, and the one that will be if it goes as expected.
_MOST_AT_ONCE = 2
# How many modules or kinds are named where memory ran out.
_NUM_NAMED = 3
# What the driver notes that a user has to know.
_WORTH_TELLING = ("absent", "host", "full", "kernels", "loop", "private", "remark")
# What CUDA says to a job that names a GPU which is not there.
_NO_SUCH_GPU = "invalid device ordinal"
_HOST_FULL = "memory ran out on this machine, not on the GPU: the job's own data must fit here."

Key = tuple[Case, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one probe took of the fullest phantom.

    Attributes:
        device_bytes: With the context, by all processes.
        held: What tensors held at the peak, or when a request was refused; None where no process told.
        asked_bytes: That request; 0 where all fitted.
        remarks: What to know of the run.
    """

    fits: bool
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    held: Snapshot | None = None
    asked_bytes: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Run:
    ended: Ended
    log: Path
    observation: Observation
    events: tuple[Event, ...]
    was_refused: bool


class PhantomProber:
    """Runs a command on phantoms; of equal runs, one is enough.

    Attributes:
        observations: What every probe took, by case and microbatch.
    """

    def __init__(
        self,
        command: Command,
        device: Device,
        *,
        gpus: Sequence[Gpu],
        torch: Torch,
        fill: float = 1.0,
        expect: Callable[[Case, int], int | None] = lambda case, microbatch: None,
        timeout_seconds: float | None = None,
        ends_itself: bool = False,
        base: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Make phantoms; a command's processes see these GPUs alone.

        Args:
            command: What to run.
            device: What the search is told of.
            gpus: The GPUs of one machine.
            torch: The one that the command runs.
            fill: The share of a GPU's memory that a rank may use.
            expect: Returns what will be asked next if a microbatch of a case goes as expected.
            timeout_seconds: How long a command may make no progress.
            ends_itself: Whether it ends when it has shown enough, and is not ended after its steps.
            base: The environment that it would have on a real machine; None for this process's.
            say: Called with the last line that the command printed.
        """
        context = context_bytes(gpus[0], torch.cuda or ())
        # What is left for torch's allocator; of a whole GPU, the driver keeps count.
        most_bytes = int(fill * gpus[0].memory_bytes) - context if fill < 1 else gpus[0].memory_bytes
        self._command = CommandProber(command, device, (most_bytes,), timeout_seconds=timeout_seconds, say=say)
        self._gpus = gpus
        self._expect = expect
        self._base = base
        self._watched = sys.maxsize if ends_itself else None
        num_at_once = min(_MOST_AT_ONCE, os.cpu_count() or 1)
        self._machines: list[Phantoms] = []
        self._free: SimpleQueue[Phantoms] = SimpleQueue()
        self._pool = ThreadPoolExecutor(num_at_once, thread_name_prefix="brim-phantom")
        self._started: dict[Key, tuple[Future[_Run], threading.Event]] = {}
        self.observations: dict[Key, Observation] = {}
        try:
            for _ in range(num_at_once):
                self._machines.append(Phantoms(gpus, torch=torch))
                self._free.put(self._machines[-1])
        except BaseException:
            self.close()
            raise

    @property
    def kind(self) -> str:
        """What a step does; known after the first probe."""
        return self._command.kind

    @property
    def ranks(self) -> int:
        """How many data-parallel processes a probe has; known after the first."""
        return self._command.ranks

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
    ) -> Outcome:
        """Run the command once, and perhaps what will be asked next beside it."""
        assert not mix, "a command draws its own lengths"
        assert race is None, "a phantom has no time"
        expected = self._expect(case, microbatch)
        wanted = {(case, microbatch), (case, expected)}
        for key, (_, cancelled) in self._started.items():
            if key not in wanted:
                cancelled.set()
        run = self._start((case, microbatch), steps)
        if expected is not None and (case, expected) not in self.observations:
            self._start((case, expected), steps)
        return self._outcome(case, microbatch, run.result())

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Return no points: what is probed here takes what it takes."""
        return Traced()

    def close(self) -> None:
        """End what runs and remove the phantoms."""
        for _, cancelled in self._started.values():
            cancelled.set()
        self._pool.shutdown()
        for run, _ in self._started.values():
            if not run.cancelled() and run.exception() is None:
                run.result().log.unlink(missing_ok=True)
        for machine in self._machines:
            machine.close()

    def _start(self, key: Key, steps: int) -> Future[_Run]:
        known = self._started.get(key)
        if known is None or known[1].is_set():
            cancelled = threading.Event()
            known = self._started[key] = self._pool.submit(self._run, key, steps, cancelled), cancelled
        return known[0]

    def _run(self, key: Key, steps: int, cancelled: threading.Event) -> _Run:
        machine = self._free.get()
        try:
            machine.start_anew()
            environment = machine.environment(self._base)
            ended, log = self._command.run(*key, steps=self._watched or steps, base=environment, cancelled=cancelled)
            if cancelled.is_set():
                log.unlink(missing_ok=True)
            was_refused = any(usage.num_refused or usage.refused_bytes for usage in machine.account.usages())
            return _Run(ended, log, observe(machine, ended), tuple(machine.events()), was_refused)
        finally:
            self._free.put(machine)

    def _outcome(self, case: Case, microbatch: int, run: _Run) -> Outcome:
        del self._started[case, microbatch]
        outcome = self._command.outcome(case, microbatch, run.ended, run.log)
        observation = replace(run.observation, fits=outcome.probe.verdict is Verdict.FITS)
        self.observations[case, microbatch] = observation
        return replace(outcome, probe=self._told(outcome.probe, observation, run))

    def _told(self, probe: Probe, observation: Observation, run: _Run) -> Probe:
        """Return the probe with the phantom's own figures, and what it knows of a failure."""
        if probe.verdict is Verdict.OOM and not run.was_refused:
            return replace(probe, verdict=Verdict.ERROR, detail=f"{_HOST_FULL} {probe.detail}")
        if probe.verdict is Verdict.OOM:
            detail = describe_refusal(observation.held, observation.asked_bytes, _line_of(run.ended))
            return replace(probe, detail=detail or probe.detail)
        if probe.verdict is Verdict.FITS:
            memory = {**probe.memory, "device_bytes": observation.device_bytes}
            return replace(probe, peak_bytes=observation.device_bytes, memory=memory)
        said = [event.text for event in run.events if event.kind in _WORTH_TELLING and event.kind != "remark"]
        if (
            not observation.device_bytes
            and not run.ended.worked
            and not run.ended.exit_code
            and run.ended.hook_failure is None
        ):
            said.append("it never used the GPU: tell the script to, for example with --device cuda")
        if _NO_SUCH_GPU in (probe.detail or ""):
            said.append(
                f"the job wants a GPU that the machine does not have: --gpu {self._name_of_more()} gives it more"
            )
        return replace(probe, detail="; ".join(filter(None, [probe.detail, *said])))

    def _name_of_more(self) -> str:
        return f"{self._gpus[0].name}:{len(self._gpus) + 1}"


def observe(machine: Phantoms, ended: Ended | None = None) -> Observation:
    """Return what a job took of the fullest device, once it has ended."""
    usages, held = machine.account.usages(), machine.held()
    fullest = max(usages, key=lambda usage: usage.peak_bytes, default=None)
    refused = [each for each in held if each.refused is not None]
    failed = ended is not None and any(record.failure for record in ended.records)
    shown = refused[0] if refused and failed else _held_by(held, fullest.pid if fullest else 0)
    return Observation(
        fits=False,
        allocated_bytes=fullest.allocated_peak_bytes if fullest else 0,
        reserved_bytes=fullest.reserved_peak_bytes if fullest else 0,
        device_bytes=machine.account.peak_bytes(fullest.device) if fullest else 0,
        held=None if shown is None else (shown.refused if failed and shown.refused else shown.peak),
        asked_bytes=shown.asked_bytes if shown is not None and failed else 0,
        remarks=remarks_of(machine),
    )


def remarks_of(machine: Phantoms) -> tuple[str, ...]:
    """Return what the driver noted of a job that a user has to know."""
    return tuple(dict.fromkeys(each.text for each in machine.events() if each.kind in _WORTH_TELLING))


def _held_by(held: Sequence[Held], pid: int) -> Held | None:
    own = [each for each in held if each.pid == pid]
    return max(own, key=lambda each: each.peak.num_bytes, default=None)


def _line_of(ended: Ended) -> str | None:
    failures = [record.failure for record in ended.records if record.failure]
    return min(failures, key=lambda each: each["time"]).get("line") if failures else None


def describe_refusal(held: Snapshot | None, asked_bytes: int, line: str | None) -> str | None:
    """Return what was asked for, where, and what held the rest; None where that was not seen.

    >>> held = Snapshot(num_bytes=9 * 2**30, by_kind={"activations": 8 * 2**30, "inputs": 2**30}, by_module={})
    >>> describe_refusal(held, 2**30, "train.py:8")
    'asked for 1.00 GiB in train.py:8 while activations held 8.00 GiB, inputs 1.00 GiB'
    """
    if held is None or not asked_bytes:
        return None
    kinds = sorted(held.by_kind.items(), key=lambda kind: -kind[1])[:_NUM_NAMED]
    named = ", ".join(
        f"{kind} {'held ' if not index else ''}{format_bytes(n)}" for index, (kind, n) in enumerate(kinds)
    )
    where = f" in {line}" if line else ""
    return f"asked for {format_bytes(asked_bytes)}{where}" + (f" while {named}" if named else "")
