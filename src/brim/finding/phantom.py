"""The search over phantoms: `brim.find`'s own, on GPUs that are not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.cases import Case
from brim.devices import Device
from brim.devices.catalog import Gpu
from brim.finding.case_search import CaseSearch
from brim.finding.observer import LogObserver, Observer
from brim.finding.predicted import PhantomPrediction
from brim.finding.subject import Subject
from brim.findings import Finding, Verdict
from brim.phantom import Torch, find_torch
from brim.probing.phantoms import PhantomProber
from brim.probing.scripts import Command
from brim.probing.scripts.workload import words_of
from brim.searching import Ask, Bounds
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.searching.exact import Exact
from brim.searching.known import Known, Trial
from brim.workload import check_address

DEFAULT_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Equal GPUs that a job sees."""

    gpu: Gpu
    num_gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be predicted.

    Attributes:
        words: A command with `{batch}`, or the address of a workload alone.
        microbatch: One size to run; None for the largest.
        steps: How many whole steps a run has.
        timeout_seconds: How long it may make no progress.
        environment: What its environment has besides this process's.
    """

    words: tuple[str, ...]
    cases: tuple[Case, ...]
    fill: float = 1.0
    cap: int | None = None
    microbatch: int | None = None
    steps: int = DEFAULT_STEPS
    timeout_seconds: float | None = None
    environment: Mapping[str, str] | None = None

    @property
    def is_command(self) -> bool:
        """Whether it is a script as it is."""
        return len(self.words) > 1

    @property
    def command(self) -> Command:
        """What is run."""
        if self.is_command:
            return Command(self.words)
        check_address(self.words[0])
        return Command(tuple(words_of(self.words[0], self.cases, steps=self.steps)))


def predict_on_phantom(
    request: Request, machine: Machine, *, torch: Torch | None = None, observer: Observer | None = None
) -> Iterator[PhantomPrediction]:
    """Yield the answer for each case on phantoms of one machine, as soon as it is known.

    Raises:
        InputError: There is no torch with CUDA, or the command cannot start.
        WorkloadError: The job failed for another reason than memory.
        UnclearError: It died or hung three times for no known reason.
    """
    observer = observer or LogObserver()
    command = request.command
    if request.is_command:
        Subject(list(request.words), ranks=1, nodes=1, isolate=True).check(request.cases, observer)
    torch = torch or find_torch(command.words)
    device = Device(
        name="phantom", memory_bytes=machine.gpu.memory_bytes, fill=request.fill, model=f"phantom {machine.gpu.name}"
    )
    observer.started(list(request.cases), limit_bytes=device.limit_bytes)
    bounds = Bounds(cap=request.cap or LARGEST_MICROBATCH)
    search = _Search(request, machine, device, bounds, observer)
    with contextlib.closing(search.make_prober(command, torch)) as prober:
        for case in request.cases:
            observer.case_started(case)
            yield search.answer(prober, case)


@dataclass(frozen=True, slots=True)
class _Search:
    request: Request
    machine: Machine
    device: Device
    bounds: Bounds
    observer: Observer

    @property
    def strategy(self) -> Exact:
        """How sizes are chosen."""
        return Exact(limit_bytes=self.device.limit_bytes)

    def make_prober(self, command: Command, torch: Torch) -> PhantomProber:
        """Return what runs the job; it runs ahead where a search is expected to go."""
        base = {**os.environ, **(self.request.environment or {})}

        def expect(case: Case, microbatch: int) -> int | None:
            if self.request.microbatch is not None:
                return None
            trials = [
                Trial(size, seen.fits, seen.device_bytes if seen.fits else None)
                for (of, size), seen in prober.observations.items()
                if of == case
            ]
            return self.strategy.expects(Known(self.bounds, tuple(trials)), microbatch)

        prober = PhantomProber(
            command,
            self.device,
            gpus=[self.machine.gpu] * self.machine.num_gpus,
            torch=torch,
            fill=self.request.fill,
            expect=expect,
            timeout_seconds=self.request.timeout_seconds,
            ends_itself=not self.request.is_command,
            base=base,
            say=self.observer.output,
        )
        return prober

    def answer(self, prober: PhantomProber, case: Case) -> PhantomPrediction:
        """Search one case, or run the one size that was asked for."""
        search = CaseSearch(
            prober=prober,
            case=case,
            bounds=self.bounds,
            steps=self.request.steps,
            device=self.device,
            make_strategy=lambda case: self.strategy,
            observer=self.observer,
            fresh=False,
        )
        finding = search.run() if self.request.microbatch is None else self._one(search, case, self.request.microbatch)
        if self.request.microbatch is None:
            self.observer.found(finding)
        seen = {size: observation for (of, size), observation in prober.observations.items() if of == case}
        return PhantomPrediction(
            gpu=self.machine.gpu,
            finding=finding,
            observations=seen,
            kind=prober.kind,
            fill=self.request.fill,
            cap=self.request.cap,
            num_gpus=self.machine.num_gpus,
        )

    def _one(self, search: CaseSearch, case: Case, microbatch: int) -> Finding:
        probe = search.probe(Ask(microbatch))
        self.observer.probe_ended(case, probe, None)
        fits = probe.verdict is Verdict.FITS
        return Finding(
            case=case,
            microbatch=microbatch if fits else None,
            stopped_by="tries",
            confirmed=False,
            probes=(probe,),
        )


def label_of(words: Sequence[str]) -> str:
    """Return how tables name what is run."""
    return (
        words[0] if len(words) == 1 else next((Path(w).name for w in words if w.endswith(".py")), Path(words[0]).name)
    )
