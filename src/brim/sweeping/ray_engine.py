"""The engine on Ray: each trial is one task of Ray core, wherever the cluster has room for it.

Ray places trials and says when a node is lost; what follows is decided here, so Ray itself retries nothing. A trial
runs in a folder of its node, and everything that belongs into its directory comes back as the task's result: no disk
is shared.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from brim.errors import DeviceError
from brim.extras import missing_extra
from brim.sweeping.outcome import LOG_FILE, ExitKind, TrialOutcome
from brim.sweeping.resources import Resources
from brim.sweeping.trial import TrialRequest, make_directory, run_trial
from brim.units import format_bytes

# A larger file that a trial writes into its directory does not come back; of a longer log, only the end does.
MOST_FILE_BYTES = 4 * 2**20
# Of a node's identity: enough to tell nodes apart, as Ray's own tools show them.
_NUM_NODE_DIGITS = 8
# How long a worker may take to end its trial before it is ended itself.
_STOPPING_SECONDS = 15.0
# How long a cluster may take to answer at its address.
_CONNECTING_SECONDS = 10.0


class RayEngine:
    """Runs trials as tasks of a cluster.

    Args:
        resources: What each trial needs.
        address: A running cluster; None for one on this machine that ends with the engine.
        workdir: The folder that trials run in; a cluster elsewhere gets a copy of it.
        jobs: The most trials at once; None for as many as the cluster has room for.
    """

    def __init__(
        self, resources: Resources, *, workdir: Path, address: str | None = None, jobs: int | None = None
    ) -> None:
        self._ray = _import_ray()
        self._has_connected = not self._ray.is_initialized()
        self._brings_workdir = self._has_connected and address is not None
        if self._has_connected:
            self._connect(address, workdir)
        self._resources = resources
        self._jobs = jobs
        self._running: dict[Any, tuple[str, Path]] = {}
        self._stopped_at: float | None = None
        try:
            self._check_room()
        except DeviceError:
            self.close()
            raise
        self._task = self._ray.remote(_run_on_node).options(
            max_retries=0,
            num_cpus=resources.cpus,
            num_gpus=resources.gpus or 0,
            memory=resources.memory_bytes,
        )

    @property
    def num_running(self) -> int:
        """How many trials were started and have not been returned by `wait`."""
        return len(self._running)

    @property
    def has_room(self) -> bool:
        """Whether another trial may be started now."""
        room = sum(_num_fitting(self._resources, node) for node in self._nodes())
        return self.num_running < min(room, self._jobs or room)

    def start(self, request: TrialRequest, directory: Path) -> None:
        """Start a trial in its directory and return at once."""
        make_directory(directory, request.attempt)
        if self._brings_workdir:
            request = replace(request, workdir="")
        self._running[self._task.remote(request)] = (request.trial_id, directory)

    def wait(self, timeout_seconds: float) -> list[tuple[str, TrialOutcome]]:
        """Return the trials that ended, by id, after at most so long."""
        ended, _ = self._ray.wait(list(self._running), timeout=timeout_seconds)
        if not ended and self._stopped_at is None:
            self._check_room()  # a node that was lost may have been the only one with what trials need
        elif self._stopped_at is not None and time.monotonic() > self._stopped_at + _STOPPING_SECONDS:
            for reference in self._running:
                self._ray.cancel(reference, force=True)
        outcomes = []
        for reference in ended:
            trial_id, directory = self._running.pop(reference)
            outcomes.append((trial_id, self._collect(reference, directory)))
        return outcomes

    def stop(self) -> None:
        """Ask every trial to end; `wait` then returns them as interrupted."""
        self._stopped_at = time.monotonic()
        for reference in self._running:
            self._ray.cancel(reference)

    def close(self) -> None:
        """End what still runs, and the cluster where it was started here."""
        if self._has_connected:
            self._ray.shutdown()
        else:
            self.stop()

    def _connect(self, address: str | None, workdir: Path) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        if address is not None:
            _check_listening(address)
            settings = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
            settings["runtime_env"] = {"working_dir": str(workdir), "excludes": ["*.sweep", ".git"]}
        try:
            self._ray.init(**settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DeviceError(f"The Ray cluster {address or 'on this machine'} cannot be used: {error}") from error

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _check_room(self) -> None:
        """Refuse what Ray would wait for in silence: a request that no node can satisfy."""
        nodes = self._nodes()
        if not any(_num_fitting(self._resources, node) for node in nodes):
            told = "; ".join(_describe_node(node) for node in nodes) or "no node"
            raise DeviceError(
                f"A trial asks for {self._resources}, and no node of the Ray cluster has that. It has: {told}. "
                "Ask for less with --cpus, --gpus and --memory, or add a node."
            )

    def _collect(self, reference: Any, directory: Path) -> TrialOutcome:
        """Return a trial's outcome and put what it wrote into its directory."""
        try:
            outcome, files = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._judge(error)
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        found: TrialOutcome = outcome
        return found

    def _judge(self, error: Exception) -> TrialOutcome:
        """Return the outcome of a task that Ray has no result of."""
        exceptions = self._ray.exceptions
        if self._stopped_at is not None:
            return TrialOutcome(kind=ExitKind.INTERRUPTED, detail="ended with the sweep")
        if isinstance(error, exceptions.OutOfMemoryError):
            return TrialOutcome(kind=ExitKind.HOST_OOM, detail=f"ended by Ray: {_first_line(error)}")
        if isinstance(error, exceptions.RuntimeEnvSetupError):
            return TrialOutcome(kind=ExitKind.ERROR, detail=_first_line(error), is_fatal=True)
        if isinstance(error, exceptions.RayTaskError):
            return TrialOutcome(kind=ExitKind.ERROR, detail=_first_line(getattr(error, "cause", None) or error))
        return TrialOutcome(kind=ExitKind.NODE_LOST, detail=_first_line(error))


def _run_on_node(request: TrialRequest) -> tuple[TrialOutcome, dict[str, bytes]]:
    """Run a trial on this node; return its outcome and what it wrote."""
    folder = Path(tempfile.mkdtemp(prefix=f"brim-{request.trial_id}-"))
    try:
        # Without a folder of its own, a trial runs where Ray unpacked the copy that it brought.
        placed = replace(request, workdir=request.workdir or str(Path.cwd()))
        node_id = _import_ray().get_runtime_context().get_node_id()
        where = f"{socket.gethostname()} node {node_id[:_NUM_NODE_DIGITS]}"
        outcome = run_trial(placed, directory=folder, environment={}, where=where)
        return outcome, _files(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """Return what a trial wrote, by its path in the folder; of a long log the end, large files not at all."""
    files = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        if path.name != LOG_FILE and size > MOST_FILE_BYTES:
            continue
        with path.open("rb") as file:
            file.seek(max(0, size - MOST_FILE_BYTES))
            files[str(path.relative_to(folder))] = file.read()
    return files


def _check_listening(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try it for minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^\]]+)\]?:(\d+)", address)
    if match is None:
        return  # `auto`, or another word of Ray's
    try:
        socket.create_connection((match[1], int(match[2])), timeout=_CONNECTING_SECONDS).close()
    except OSError as error:
        raise DeviceError(
            f"No Ray cluster answers at {address}: {error.strerror or error}. Start one with `ray start --head`, or "
            "mend --ray-address."
        ) from error


def _num_fitting(needed: Resources, node: Mapping[str, float]) -> int:
    """Return how many trials a node has room for when it is empty."""
    shares = [node.get("CPU", 0) // needed.cpus]
    if needed.gpus:
        shares.append(node.get("GPU", 0) // needed.gpus)
    if needed.memory_bytes is not None:
        shares.append(node.get("memory", 0) // needed.memory_bytes)
    return int(min(shares))


def _describe_node(node: Mapping[str, float]) -> str:
    return f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs, {format_bytes(node.get('memory', 0))}"


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "--engine ray") from error
    return ray
