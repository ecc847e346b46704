"""The process that probes run in: it imports torch and the workload once, then forks one fresh child per request.

A forked child is as fresh as a new process: nothing ran in its parent but imports. Where that does not hold (threads
were started while importing, CUDA is involved, the system cannot fork safely) the server serves one request itself
and ends; whoever asks starts another.

Messages are JSON, one a line: requests come in on one pipe, events go out on another. Standard output and standard
error belong to the workload.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from brim.cases import Case
from brim.errors import InputError, TraceError
from brim.findings import Race
from brim.groups import PROBING_VARIABLE, adopt_orphans, die_with_parent, kill_descendants, kill_group
from brim.importing import OBJECTS_BETWEEN_COLLECTIONS
from brim.probing.mixing import mixed
from brim.probing.tracer import Tracer
from brim.workload import Workload, describe_error, load, users_traceback


class Server:
    """Serves probes and traces of one workload on one device."""

    def __init__(
        self,
        *,
        address: str,
        device_name: str,
        limits_bytes: list[int],
        rendezvous: dict[str, Any] | None,
        scratch: str | None,
        request_fd: int,
        event_fd: int,
    ) -> None:
        self._address = address
        self._device_name = device_name
        self._limits_bytes = tuple(limits_bytes)
        self._limit_bytes = min(limits_bytes)
        self._rendezvous = rendezvous
        self._scratch = scratch
        self._is_ranked = len(limits_bytes) > 1 or rendezvous is not None
        self._can_fork = False
        self._request_fd = request_fd
        self._event_fd = event_fd
        self._tracer: Tracer | None = None
        self._child_pid: int | None = None

    def end(self, *_: object) -> NoReturn:
        """End all that runs here, whole groups, with what the workload has started, and this process."""
        for pid in (self._child_pid, self._tracer.pid if self._tracer else None):
            if pid is not None:
                kill_group(pid)
        kill_descendants(os.getpid())
        os._exit(1)

    def serve(self) -> None:
        """Load the workload, then answer requests until the pipe closes."""
        try:
            workload_class, reusable = self._load()
        except InputError as error:
            self._emit({"say": "refused", "error": type(error).__name__, "message": str(error)})
            return
        except BaseException as error:  # noqa: BLE001  the user's module may raise anything, an interrupt as well
            self._emit({"say": "load_failed", "message": describe_error(error), "traceback": users_traceback(error)})
            return
        if not reusable:
            # The workload runs in this process, which may then hear no signal that can be handled.
            die_with_parent(int(os.environ[PROBING_VARIABLE]))
        self._emit({"say": "ready", "kind": workload_class.kind, "reusable": reusable})
        for request in self._requests():
            if not reusable:
                self._answer(workload_class, request)
                return
            if request["do"] == "trace":
                self._answer_by_tracer(workload_class, request)
            else:
                self._answer_in_child(workload_class, request)

    def _load(self) -> tuple[type[Workload], bool]:
        thresholds = gc.get_threshold()
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        import torch

        num_threads = _num_threads()
        workload_class = load(self._address)
        if workload_class.kind == "train":
            # The first optimizer of a process imports this: once here, not once in every child.
            import torch._dynamo
        gc.freeze()
        gc.set_threshold(*thresholds)
        reusable = (
            sys.platform == "linux"
            and self._device_name == "cpu"
            and (_num_threads() == num_threads or _num_threads_after_fork() == 1)
            and not torch.cuda.is_initialized()
        )
        if self._is_ranked:
            import brim.probing.ranks  # noqa: F401  once here, not once in every child
        self._can_fork = reusable
        return workload_class, reusable

    def _answer_in_child(self, workload_class: type[Workload], request: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.close(self._request_fd)
                die_with_parent(parent_pid)
                self._answer(workload_class, request)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        self._child_pid = pid
        self._emit({"say": "started", "pid": pid})
        _, status = os.waitpid(pid, 0)
        kill_group(pid)  # whatever the workload started and left behind
        kill_descendants(os.getpid(), but=() if self._tracer is None else (self._tracer.pid,))
        self._child_pid = None
        self._emit({"say": "ended", "exit_code": os.waitstatus_to_exitcode(status)})

    def _answer_by_tracer(self, workload_class: type[Workload], request: dict[str, Any]) -> None:
        if self._tracer is None:
            self._tracer = Tracer(
                _prepare_to_trace,
                lambda asked, prepared: self._trace(workload_class, asked, backed=True, **prepared),
            )
        self._emit({"say": "started", "pid": self._tracer.pid})
        exit_code = self._tracer.ask(request)
        if exit_code is not None:
            self._tracer = None
        self._emit({"say": "ended", "exit_code": exit_code or 0})

    def _answer(self, workload_class: type[Workload], request: dict[str, Any]) -> None:
        from brim.devices import make_meter

        if request["do"] == "trace":
            # The meter has started torch's threads, after which this process must not fork.
            self._trace(workload_class, request, make_meter(self._device_name).baseline_bytes, backed=False)
            return
        from brim.probing.sources import imported_sources

        outcome = self._probe(workload_class, request)
        outcome["sources"] = imported_sources(Path(inspect.getfile(workload_class)))
        self._emit({"say": "probed", **outcome})

    def _probe(self, workload_class: type[Workload], request: dict[str, Any]) -> dict[str, Any]:
        from brim.devices import make_meter

        race = Race.from_dict(request["race"]) if request["race"] else None
        if self._is_ranked:
            from brim.probing.ranks import RankedProbe, run_ranked

            probe = RankedProbe(
                workload=workload_class if self._can_fork else self._address,
                case=request["case"],
                microbatch=request["microbatch"],
                steps=request["steps"],
                mix=request["mix"],
                race=race,
                device_type=self._device_name.partition(":")[0],
                limits_bytes=self._limits_bytes,
            )
            return run_ranked(
                probe,
                event_fd=self._event_fd,
                can_fork=self._can_fork,
                scratch=self._scratch,
                rendezvous=self._rendezvous,
                run=request["run"],
            )
        from brim.probing.trial import run_trial

        return run_trial(
            mixed(workload_class, request["mix"]),
            Case(request["case"]),
            request["microbatch"],
            steps=request["steps"],
            meter=make_meter(self._device_name),
            limit_bytes=self._limit_bytes,
            race=race,
            report=lambda phase: self._emit({"say": "phase", "phase": phase}),
            owns_process=True,
        )

    def _trace(
        self,
        workload_class: type[Workload],
        request: dict[str, Any],
        baseline_bytes: int,
        *,
        backed: bool,
        shared_bytes: int = 0,
    ) -> None:
        import torch

        from brim.tracing import predict_curve, trace_curve

        traced: dict[str, Any] = {"say": "traced", "baseline_bytes": baseline_bytes}
        case = Case(request["case"])
        near: Any = {"baseline_bytes": baseline_bytes, "limit_bytes": self._limit_bytes, "cap": request["cap"]}
        device = torch.device(self._device_name)
        try:
            if device.type == "cuda":
                capability = torch.cuda.get_device_capability(device)
                curve = predict_curve(workload_class, case, capability=capability, **near)
            else:
                how: Any = {"steps": request["steps"], "backed": backed, "shared_bytes": shared_bytes}
                curve = trace_curve(workload_class, case, **how, **near)
        except TraceError as error:
            self._emit({**traced, "problem": str(error)})
        else:
            traced["baseline_bytes"] = curve.around_bytes
            learnt = {"points": sorted(curve.points.items()), "slope": curve.slope}
            learnt |= {"gap_from": curve.gap_from, "leak": curve.leak}
            is_asked = curve.grown and curve.gap_from is None
            self._emit({**traced, **learnt, "expected": curve.expected().points if is_asked else ()})

    def _requests(self) -> Iterator[dict[str, Any]]:
        with os.fdopen(self._request_fd, "r", closefd=False) as lines:
            for line in lines:
                yield json.loads(line)

    def _emit(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._event_fd, data) :]


def _prepare_to_trace() -> dict[str, int]:
    """Import what tracing needs; return what a probe's process holds before it builds, and what these modules take."""
    from brim.devices.cpu import baseline_in_fork, data_bytes

    baseline_bytes, before_bytes = baseline_in_fork(), data_bytes()
    import brim.tracing  # noqa: F401  with all that fake tensors need

    gc.freeze()
    return {"baseline_bytes": baseline_bytes, "shared_bytes": data_bytes() - before_bytes}


def _num_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


def _num_threads_after_fork() -> int:
    """Fork once and return how many threads are left here.

    Libraries that know of forks end their threads before one, as OpenBLAS does with those that importing scipy starts.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _num_threads()


def main() -> None:
    """Run the server described by the JSON in the first argument."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # torch says so at its first import where NumPy is missing; it is no output of the workload's.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    settings = json.loads(sys.argv[1])
    for fd in (settings["request_fd"], settings["event_fd"]):
        os.set_inheritable(fd, False)  # a program that the workload starts has no business with them
    sys.argv = [settings["address"].rpartition(":")[0]]
    server = Server(**settings)
    adopt_orphans()
    signal.signal(signal.SIGTERM, server.end)
    die_with_parent(int(os.environ[PROBING_VARIABLE]), by=signal.SIGTERM)
    server.serve()


if __name__ == "__main__":
    main()
