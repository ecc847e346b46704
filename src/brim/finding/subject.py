"""What a search is about: a workload or a command, how it is called, and what probes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brim.cases import Case
from brim.devices import Device
from brim.errors import InputError
from brim.finding.observer import Observer
from brim.probing import PairedProber, Prober
from brim.probing.scripts import Command, CommandProber
from brim.workload import Workload, address_of, check_address, check_class, load


class Subject:
    """A workload, its address, or the words of a command.

    Attributes:
        label: How tables name it.
        identity: How the history knows it.
        command: The command, or None where it is a workload.
        ranks: How many ranks share this node; of a command, as far as that can be told before it runs.
    """

    def __init__(self, given: str | type[Workload] | Sequence[str], *, ranks: int, nodes: int, isolate: bool) -> None:
        self.command: Command | None = None
        self._isolate = isolate
        if isinstance(given, (list, tuple)):
            self.command = Command(tuple(given))
            self.label = self.command.label
            self.identity = f"{Path.cwd()}$ {self.command}"  # its paths may be relative
            if not isolate:
                raise InputError("A command runs in processes of its own: leave out isolate=False.")
            if ranks != 1 or nodes != 1:
                raise InputError(
                    f"ranks is {ranks}, but a command starts its ranks itself. Say it there: "
                    f"torchrun --nproc-per-node={ranks} {self.command.label} …"
                )
            self.ranks = self.command.num_ranks
            return
        if ranks != 1 and not isolate:
            raise InputError(f"{ranks} ranks are {ranks} processes: leave out isolate=False.")
        self.ranks = ranks // nodes
        workload: Any = given
        if isinstance(workload, str):
            check_address(workload)
        else:
            check_class(workload, _called(workload))
        self._workload = workload
        self.label = workload if isinstance(workload, str) else _label(workload)
        self.identity = address_of(workload) if isolate else self.label

    def check(self, cases: Sequence[Case], observer: Observer) -> None:
        """Refuse what cannot start; warn of what probes would overwrite."""
        if self.command is None:
            return
        self.command.check(cases)
        for name in self.command.unnamed_places(cases):
            observer.warn(f"{{{name}}} in the command is no case and stays as it is. If it is meant: --case {name}=…")
        for folder in self.command.overwritten():
            observer.warn(
                f"Probes run the real script: it may overwrite what is in {folder}. Give it another folder to be safe."
            )

    def make_prober(
        self, device: Device, limits_bytes: tuple[int, ...], *, timeout_seconds: float | None, observer: Observer
    ) -> Prober:
        """Return what runs the probes, each rank under its own limit."""
        if self.command is not None:
            return CommandProber(
                self.command, device, limits_bytes, timeout_seconds=timeout_seconds, say=observer.output
            )
        if self._isolate:
            return PairedProber(self.identity, device, limits_bytes=limits_bytes, timeout_seconds=timeout_seconds)
        from brim.probing.in_process import InProcessProber

        given = self._workload
        return InProcessProber(load(given) if isinstance(given, str) else given, device)


def _called(given: Any) -> str:
    """Return what a user calls what was given in the place of a workload's class."""
    return given.__name__ if isinstance(given, type) else repr(given)


def _label(workload: type[Workload]) -> str:
    try:
        target, _, name = address_of(workload).rpartition(":")
    except InputError:
        return workload.__name__
    path = Path(target)
    return f"{path.name if path.is_absolute() else target}:{name}"
