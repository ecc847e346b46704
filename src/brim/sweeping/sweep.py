"""`brim.sweep`: run every trial of a sweep once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import DeviceError, InputError
from brim.sweeping.command import check_runnable
from brim.sweeping.dimensions import check_limit
from brim.sweeping.driver import Driver, Sink
from brim.sweeping.engine import Engine
from brim.sweeping.journal import JOURNAL_FILE, LOCK_FILE, Journal, lock
from brim.sweeping.local import LocalEngine
from brim.sweeping.observer import LogSweepObserver, Outlook, SweepObserver
from brim.sweeping.outcome import ExitKind
from brim.sweeping.past import Past
from brim.sweeping.plan import Plan, describe_edit, make_plan
from brim.sweeping.plan_file import PLAN_FILE, StoredPlan, read_plan, relative_source, remembered, write_plan
from brim.sweeping.policy import Frontier
from brim.sweeping.results import SweepResults
from brim.sweeping.spec import SweepSpec, read_spec

if TYPE_CHECKING:
    from brim.sweeping.ray_engine import RayEngine

ENGINES = ("local", "ray")
# What is in a directory before its plan is.
_OWN_FILES = {JOURNAL_FILE, LOCK_FILE, f"{PLAN_FILE}.new"}
# How many trials a dry run lists, unless told.
LISTED = 1000


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    command: str | None = None,
    engine: str = "local",
    jobs: int | None = None,
    ray_address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    memory: str | int | None = None,
    max_experiments: int | None = None,
    strict: bool = False,
    retry: Iterable[str] = (),
    dry_run: bool = False,
    list_at_most: int = LISTED,
    observer: SweepObserver | None = None,
    sinks: Sequence[Sink] = (),
) -> SweepResults:
    """Run every trial of a sweep; trials that ended in an earlier run are not run again.

    Args:
        source: A sweep file, or the mapping that one would hold.
        out: Where journal, configurations, logs and results go; None for `NAME.sweep` beside `NAME.yaml`.
        command: What each trial runs, before what the file says.
        engine: `local`, or `ray` (`pip install '.[ray]'` in brim's folder).
        jobs: The most trials at once on this machine; None for as many as its cores, memory and GPUs allow.
        ray_address: A Ray cluster to run on; None for one that is started here.
        cpus: Cores of each trial, before what the file says.
        gpus: GPUs of each trial, likewise.
        memory: Host memory of each trial, e.g. `"8GiB"`, likewise.
        max_experiments: Run only the first so many trials of the plan.
        strict: Refuse a file of the older form whose meaning has to be guessed.
        retry: Kinds of exit whose trials run again: `oom`, `host_oom`, `error`, `timeout`.
        dry_run: Only say what would be run; nothing is written.
        list_at_most: How many trials a dry run returns.
        observer: Told of every step; None for log lines of the logger `brim`.
        sinks: Other tools that get every result.

    Returns:
        The results of all trials, in the order of the plan.

    Raises:
        InputError: The file cannot be used, or the directory belongs to another sweep.
        SweepStoppedError: Trials fail at once, all in the same way.
        DeviceError: The machine, or the cluster, cannot do what was asked; the disk is full.
    """
    told = observer or LogSweepObserver()
    make_engine = _engine_maker(engine, jobs=check_limit(jobs, "jobs"), ray_address=ray_address)
    retried = _check_retry(retry)
    spec = read_spec(source, command=command)
    spec = replace(spec, resources=spec.resources.override(cpus=cpus, gpus=gpus, memory=memory))
    directory = sweep_directory(source, out)
    stored = _stored(directory, spec)
    plan = _make_plan(spec, stored, strict=strict, max_experiments=max_experiments, observer=told)
    run = _Run(plan=plan, directory=directory, retry=retried, observer=told, sinks=sinks)
    if dry_run:
        run.compare(stored)
        return SweepResults(plan, directory, limit=list_at_most)
    check_runnable(spec.command, spec.function, spec.workdir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with lock(directory) as lock_fd:
            write_plan(plan, directory)
            run.compare(stored)
            with closing(make_engine(plan.spec, lock_fd)) as made:
                run.drive(made)
    except OSError as error:
        # Errors of brim's own are no OSError; this is a disk, or a right to it, that ends.
        raise DeviceError(f"{error.filename or directory} cannot be used: {error.strerror or error}.") from error
    return SweepResults(plan, directory)


def _make_plan(
    spec: SweepSpec, stored: StoredPlan | None, *, strict: bool, max_experiments: int | None, observer: SweepObserver
) -> Plan:
    """Return the plan, and say what had to be guessed or has no effect."""
    if stored is not None:
        spec = remembered(spec, stored)
    if spec.grid.guess is not None:
        if strict:
            raise InputError(f"The file has to be guessed at, which --strict forbids; {spec.grid.guess}.")
        observer.warn(spec.grid.guess)
    plan = make_plan(spec, max_experiments=check_limit(max_experiments, "max_experiments"))
    idle = [f"exclude {dict(clause)} matches no trial." for clause in plan.grid.unmatched()]
    for message in (*spec.grid.notes, *idle):
        observer.warn(message)
    return plan


class _Run:
    """One run of a plan in a directory whose lock is held."""

    def __init__(
        self,
        *,
        plan: Plan,
        directory: Path,
        retry: frozenset[str],
        observer: SweepObserver,
        sinks: Sequence[Sink],
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._observer = observer
        self._sinks = sinks
        self._retry = retry
        self._frontier = Frontier(plan.spec.policy)

    @cached_property
    def _past(self) -> Past:
        """What earlier runs left, read when it is first asked for: under the lock, where something is to be run."""
        return Past(self._directory, self._plan, retry=self._retry, frontier=self._frontier)

    def compare(self, stored: StoredPlan | None) -> None:
        """Say what an edited file changes."""
        if stored is None:
            return
        self._past.count_kept(self._directory)
        if stored.digest != self._plan.digest:
            self._observer.note(f"the sweep was edited: {describe_edit(stored.plan, self._plan)}")
        if stored.what_runs != self._plan.spec.what_runs:
            self._observer.warn(
                f"what runs has changed, from `{stored.what_runs}`; trials that ended before keep their results."
            )

    def drive(self, engine: Engine) -> None:
        """Run what is left."""
        spec = self._plan.spec
        outlook = Outlook(
            directory=str(self._directory),
            num_trials=len(self._plan),
            num_ended=min(self._past.num_kept, len(self._plan)),
            metric=spec.metric,
        )
        self._observer.started(outlook)
        try:
            with Journal(self._directory) as journal:
                driver = Driver(
                    plan=self._plan,
                    directory=self._directory,
                    engine=engine,
                    journal=journal,
                    past=self._past,
                    frontier=self._frontier,
                    observer=self._observer,
                    sinks=self._sinks,
                )
                driver.run()
        finally:
            for sink in self._sinks:
                self._close(sink)

    def _close(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001  another tool may raise anything
            self._observer.warn(f"{type(sink).__name__} could not be closed: {error}")


def sweep_directory(source: str | Path | Mapping[str, Any], out: str | Path | None = None) -> Path:
    """Return where a sweep's results go."""
    if out is not None:
        return Path(out)
    if isinstance(source, Mapping):
        raise InputError("A sweep that is given as a mapping needs a directory for its results. Pass out='folder'.")
    return Path(source).with_suffix(".sweep")


def _stored(directory: Path, spec: SweepSpec) -> StoredPlan | None:
    """Return the plan that is in the directory; refuse one that belongs to something else."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file. Results need a folder: choose another with --out.")
    if not directory.exists() or not any(directory.iterdir()):
        return None
    if not (directory / PLAN_FILE).exists():
        if {path.name for path in directory.iterdir()} <= _OWN_FILES:
            return None  # a sweep that was ended before it began
        raise InputError(f"{directory} is not empty and holds no sweep. Choose another folder with --out.")
    stored = read_plan(directory)
    source = relative_source(spec, directory)
    if stored.source != source:
        raise InputError(
            f"{directory} holds the results of another sweep, {stored.source or 'given in Python'}. "
            "Choose another folder with --out."
        )
    return stored


def _check_retry(retry: Iterable[str]) -> frozenset[str]:
    known = [kind.value for kind in ExitKind]
    for kind in retry:
        if kind not in known:
            raise InputError(f"--retry {kind!r} is no kind of exit. Use some of: {', '.join(known)}.")
    return frozenset(retry)


def _engine_maker(
    name: str, *, jobs: int | None, ray_address: str | None
) -> Callable[[SweepSpec, int], LocalEngine | RayEngine]:
    """Return what makes the engine of a sweep that holds its lock; refuse what names none."""
    if name not in ENGINES:
        raise InputError(f"There is no engine {name!r}. Use one of: {', '.join(ENGINES)}.")
    if name == "local":
        if ray_address is not None:
            raise InputError("A Ray address goes with --engine ray.")
        return lambda spec, lock_fd: LocalEngine(spec.resources, jobs=jobs, held_fds=(lock_fd,))
    from brim.sweeping.ray_engine import RayEngine

    return lambda spec, lock_fd: RayEngine(spec.resources, address=ray_address, workdir=spec.workdir, jobs=jobs)
