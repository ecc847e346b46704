"""`brim watch`: live memory and utilisation; `brim watch -- COMMAND` runs a job and judges it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brim.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.project import KeptPlan, PlanBook
    from brim.watching.checklist import Check
    from brim.watching.following import JobSample, Show
    from brim.watching.job import Observed
    from brim.watching.samples import DeviceSample

FAILED = 1
SCHEMA = "brim.watch/1"
# A log grows with every line, so it gets fewer of them than a screen.
_LOG_INTERVAL_SECONDS = 10.0
_SCREEN_INTERVAL_SECONDS = 1.0


def command(
    run: Annotated[
        list[str] | None, typer.Argument(help="After --: a job to run and to judge at its end.", metavar="-- COMMAND")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(help="Time between samples. Default: 1s on a screen, 10s in a log.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="End after so many samples.", metavar="N")] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON document a line for every sample.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Watch the devices, or run a job and hold it against its plan.

    Memory, utilisation and power of every device, and who holds it; q leaves.

    brim watch -- python train.py   runs the job and holds it against the active plan
    """
    from brim.units import parse_seconds

    if count is not None and count < 1:
        raise InputError(f"--count is {count}. Use a whole number of at least 1.")
    if count is not None and run:
        raise InputError("--count does not go with a job, which is watched to its end.")
    if not run and sys.argv[-1] == "--":  # `brim watch -- $COMMAND`, and the variable is empty
        raise InputError("Nothing stands after --. Name the job: brim watch -- python train.py")
    seconds = None if interval is None else parse_seconds(interval)
    path, book = _book()
    if run:
        return _watch_job(run, path, book, interval_seconds=seconds, as_json=json)
    return _watch_devices(book.active, interval_seconds=seconds, count=count, as_json=json)


def _watch_devices(plan: KeptPlan | None, *, interval_seconds: float | None, count: int | None, as_json: bool) -> int:
    from brim.cli.keys import pressed_keys
    from brim.watching.samples import open_samplers

    with ExitStack() as stack:
        samplers = open_samplers()
        for sampler in samplers:
            stack.callback(sampler.close)
        note = "" if len(samplers) > 1 else "No NVIDIA driver answers here, so this is the CPU alone."
        display = stack.enter_context(_display(plan, note=note, as_json=as_json, with_job=False))
        wait = stack.enter_context(pressed_keys())
        left = count
        while left is None or left > 0:
            display.show([device for sampler in samplers for device in sampler.sample()], None)
            left = None if left is None else left - 1
            if left != 0 and wait(interval_seconds or display.interval_seconds) == "q":
                break
    return 0


def _watch_job(
    run: Sequence[str], path: Path | None, book: PlanBook, *, interval_seconds: float | None, as_json: bool
) -> int:
    from brim.cli.signals import end_like_ctrl_c
    from brim.watching.checklist import has_passed, judge
    from brim.watching.following import follow
    from brim.watching.job import Job

    plan = book.active
    with end_like_ctrl_c(), ExitStack() as stack:
        display = stack.enter_context(_display(plan, note="", as_json=as_json, with_job=True))
        job = stack.enter_context(Job(run, output=_passed_through(display.console, as_json=as_json)))
        seen = follow(job, display.show, interval_seconds or display.interval_seconds)
    checks = judge(seen, plan)
    _print_checks(checks, seen, plan, as_json=as_json)
    if path is not None and plan is not None:
        _note_verdict(path, plan, seen, checks)
    return 0 if has_passed(checks) else FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Display:
    """How samples are shown, how often, and on which console a live view stands."""

    show: Show
    interval_seconds: float = _SCREEN_INTERVAL_SECONDS
    console: Console | None = None


@contextmanager
def _display(plan: KeptPlan | None, *, note: str, as_json: bool, with_job: bool) -> Iterator[_Display]:
    """Yield JSON lines, a live view, or log lines."""
    from rich.console import Console
    from rich.live import Live

    from brim.cli.output import say
    from brim.reporting.watch import WatchView, log_line

    console = Console(stderr=with_job)
    if as_json:
        yield _Display(show=lambda devices, job: _print_sample(devices, job, plan))
        return
    if not console.is_terminal:
        if note:
            say(note)
        yield _Display(
            show=lambda devices, job: console.print(
                log_line(devices, job.describe() if job else ""), soft_wrap=True, highlight=False
            ),
            interval_seconds=_LOG_INTERVAL_SECONDS,
        )
        return
    view = WatchView(plan=plan, note="" if with_job else f"q leaves  {note}")
    with Live(view, console=console, screen=not with_job, auto_refresh=False, transient=with_job) as live:

        def show(devices: Sequence[DeviceSample], job: JobSample | None) -> None:
            view.update(devices, job=job.describe() if job else "")
            live.refresh()

        yield _Display(show=show, console=live.console)


def _passed_through(console: Console | None, *, as_json: bool) -> Callable[[str, bytes], None]:
    """Return where a job's output goes: above a live view, else where it would have gone without brim."""
    from rich.text import Text

    from brim.watching.job import Lines

    lines = {"stdout": Lines(), "stderr": Lines()}

    def above(name: str, chunk: bytes) -> None:
        assert console is not None
        for line in lines[name].add(chunk):
            console.print(Text.from_ansi(line), soft_wrap=True)

    def straight(name: str, chunk: bytes) -> None:
        # With --json standard output is brim's alone.
        stream = sys.stdout if name == "stdout" and not as_json else sys.stderr
        stream.buffer.write(chunk)
        stream.buffer.flush()

    return straight if console is None else above


def _print_checks(checks: Sequence[Check], seen: Observed, plan: KeptPlan | None, *, as_json: bool) -> None:
    from brim.cli.output import print_renderable
    from brim.reporting.watch import checklist_table, ranks_table
    from brim.watching.checklist import has_passed, why_not_judged

    if as_json:
        _print_json_line(
            checks=[check.to_dict() for check in checks],
            passed=has_passed(checks),
            not_judged=None if plan is None else why_not_judged(checks, seen),
            exit_code=seen.exit_code,
            host_peak_bytes=seen.host_peak_bytes,
            gpu_peak_bytes=seen.gpu_peak_bytes,
            num_steps=seen.told.num_steps,
            step_seconds=seen.told.step_seconds,
            processes=[process.to_dict() for process in seen.told.processes],
            plan=None if plan is None else plan.number,
        )
    else:
        print_renderable(checklist_table(checks))
        if len(seen.told.workers) > 1:
            print_renderable(ranks_table(seen.told.workers))


def _note_verdict(path: Path, plan: KeptPlan, seen: Observed, checks: Sequence[Check]) -> None:
    """Write down how the plan ran, and where it failed say what to go back to."""
    from brim.cli.output import say
    from brim.planning.batch_plan import equation
    from brim.project import read_book, write_book
    from brim.project.plan_book import FAILED as PLAN_FAILED
    from brim.project.plan_book import PASSED as PLAN_PASSED
    from brim.watching.checklist import has_passed, why_not_judged

    why = why_not_judged(checks, seen)
    if why is not None:
        say(f"Plan {plan.number} is not judged: {why}.")
        return
    passed = has_passed(checks)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    verdict = PLAN_PASSED if passed else PLAN_FAILED
    book = read_book(path)  # once more: jobs run for days, and plans are made meanwhile
    write_book(path, book.with_verdict(plan.number, verdict, judged=now, step_seconds=seen.told.step_seconds))
    say(f"Plan {plan.number} {verdict}; noted in {path}.")
    fallback = book.fallback()
    if not passed and fallback is not None:
        say(f"Plan {fallback.number} ran well ({equation(fallback.plan)}). Go back to it: brim plan rollback")


def _book() -> tuple[Path | None, PlanBook]:
    from brim.project import PlanBook, find_file, read_book

    path = find_file()
    return path, PlanBook() if path is None else read_book(path)


def _print_sample(devices: Sequence[DeviceSample], job: JobSample | None, plan: KeptPlan | None) -> None:
    """Print a sample as JSON: the devices, and of a job what it holds and does and what its plan should fill."""
    document: dict[str, Any] = {"devices": [each.to_dict() for each in devices]}
    if job is not None:
        document["job"] = job.to_dict()
    if plan is not None:
        kept = plan.to_dict()
        document |= {"plan": plan.number, "planned": {key: kept[key] for key in ("memory_bytes", "peak_bytes")}}
    _print_json_line(**document)


def _print_json_line(**document: Any) -> None:
    import json

    line = {"schema": SCHEMA, "time": round(time.time(), 3), **document}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
