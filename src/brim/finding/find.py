"""`brim.find`: the largest microbatch for every case."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from brim.cases import Case, CaseValue, as_cases
from brim.devices import Device, resolve_ranks
from brim.errors import InputError
from brim.finding.nodes import find_place, find_together
from brim.finding.observer import LogObserver, Observer
from brim.finding.run import Run
from brim.finding.subject import Subject
from brim.findings import FASTEST, LARGEST, Findings
from brim.groups import PROBING_VARIABLE
from brim.planning.buckets import bucket_edges
from brim.planning.lengths import as_lengths, check_longest
from brim.probing import Prober
from brim.probing.meeting import Meeting
from brim.searching import Bounds, Doubling, Estimate, Fastest, ScaleTable, Strategy
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.searching.estimate import MAX_TRIES
from brim.units import format_bytes, parse_seconds
from brim.workload import Workload

# What a case is called that stands for a length, unless the user says otherwise.
LENGTH_KEY = "seq_len"
STRATEGIES = ("guided", "estimate", "doubling")
GOALS = (LARGEST, FASTEST)
DEFAULT_STEPS = 3


def find(
    workload: str | type[Workload] | Sequence[str],
    *,
    cases: Iterable[Mapping[str, CaseValue]] | None = None,
    device: str = "auto",
    memory: str | int | None = None,
    fill: float = 0.9,
    cap: int | None = None,
    start: int | None = None,
    multiple_of: int = 1,
    strategy: str | Strategy = "guided",
    refine: bool = False,
    goal: str = "largest",
    steps: int | None = None,
    ranks: int = 1,
    nodes: int | None = None,
    rdzv_endpoint: str | None = None,
    timeout: float | str | None = None,
    cache: bool = True,
    isolate: bool = True,
    tries: int | None = None,
    time_limit: float | str | None = None,
    scale_table: ScaleTable | None = None,
    lengths: Iterable[int] | None = None,
    observer: Observer | None = None,
) -> Findings:
    """Find the largest microbatch that fits, for every case; each answer has been run and has fitted.

    Args:
        workload: A `Workload` subclass, its address `"file.py:Name"` or `"package.module:Name"`, or a command: a list
            of its words with `{batch}`, and perhaps names of the case in braces, where these belong.
        cases: Settings of the input shape, each answered on its own; None for one case without settings.
        device: `auto`, `cpu` or `cuda:N`.
        memory: What the job may have in all, e.g. `"8GiB"`; None for what is free on the device now. With
            several ranks, what each of them may have.
        fill: The share of `memory` that the peak may use.
        cap: The largest microbatch to try.
        start: The first microbatch to try.
        multiple_of: Try only multiples of this.
        strategy: `guided`, `estimate`, `doubling`, or an object with a `propose` method.
        refine: With `doubling`: bisect between the last size that fits and the first that does not.
        goal: `largest`, or `fastest` for the smallest microbatch within 5% of the best rate, in at most six probes.
        steps: How many whole steps each probe runs, and for the goal `fastest` how many rounds its race has; None for 3
            steps and about three seconds of rounds, or about a second of steps of a command, which has no race.
        ranks: Data-parallel processes. With more than one, a probe is a job of `torch.distributed`, one device for each
            rank, with what `Workload.wrap` asks for around the modules. The worst rank decides.
        nodes: Over how many machines the ranks are spread, each of which makes this same call; None for what Slurm or
            torchrun says. Every node returns the same findings.
        rdzv_endpoint: `"HOST:PORT"`, where these meet; None for one machine, or for torchrun's own store.
        timeout: Seconds a probe may go without reaching its next step before it is ended; None for ten minutes. Nodes
            wait for each other as long, or five minutes.
        cache: Whether to use and extend the history of findings. A hit costs one confirming probe.
        isolate: Whether to probe in child processes. False probes here and puts everything back as it was.
        tries: How many sizes may be tried for a case, the confirmation aside.
        time_limit: Seconds that the search of one case may take; its answer still runs once more after that.
        scale_table: Where the strategy `estimate` starts.
        lengths: The length of every sample of a dataset. The cases are then the lengths of a few buckets, `seq_len`
            unless `cases` names and lists them. In the end their batches run in turn in one process, the longest first.
        observer: Told of every step; None for log lines of the logger `brim`.

    Returns:
        A finding for each case, in the order of the cases.

    Raises:
        InputError: A value cannot be used.
        WorkloadError: The workload failed for another reason than memory. `error.findings` holds what was found.
        UnclearError: A probe died or hung three times for no known reason.
    """
    if PROBING_VARIABLE in os.environ:
        raise InputError(
            "brim.find was called again while brim was loading the workload's file. "
            'Put the call under `if __name__ == "__main__":`.'
        )
    listed = as_cases(cases) if lengths is None else _bucket_cases(lengths, cases)
    if goal not in GOALS:
        raise InputError(f"There is no goal {goal!r}. Use one of: {', '.join(GOALS)}.")
    if goal == FASTEST and strategy != "guided":
        raise InputError("The goal `fastest` has a strategy of its own. Leave out the strategy.")
    if refine and strategy != "doubling":
        raise InputError("refine goes with the strategy `doubling`; the other strategies refine by themselves.")
    is_timed = goal == FASTEST and steps is None
    if steps is None:
        steps = DEFAULT_STEPS
    for name, number in (("ranks", ranks), ("steps", steps)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InputError(f"{name} is {number!r}. Use a whole number of at least 1.")
    if tries is None and strategy == "estimate":
        tries = MAX_TRIES
    bounds = Bounds(
        cap=LARGEST_MICROBATCH if cap is None else cap,
        start=start,
        multiple_of=multiple_of,
        tries=tries,
        seconds=None if time_limit is None else parse_seconds(time_limit),
    )
    chosen = Doubling(refine=True) if refine else strategy
    make_strategy = _strategy_maker(chosen, bounds, scale_table or ScaleTable(), listed)
    timeout_seconds = None if timeout is None else parse_seconds(timeout)
    if not isolate and timeout is not None:
        raise InputError("A probe in this process cannot be ended: leave out timeout, or use isolate=True.")
    if lengths is not None and not isinstance(workload, (str, type)):
        raise InputError("A command draws its own samples: lengths are for a workload, whose batch(size) follows them.")
    place = find_place(ranks=ranks, nodes=nodes, endpoint=rdzv_endpoint)
    num_nodes = 1 if place is None else place.num_nodes
    subject = Subject(workload, ranks=ranks, nodes=num_nodes, isolate=isolate)
    observer = observer or LogObserver()
    subject.check(listed, observer)
    found_device, limits_bytes = resolve_ranks(
        device, memory=memory, fill=fill, num_ranks=subject.ranks, in_process=not isolate
    )
    if found_device.is_more_than_there_is:
        observer.warn(
            f"The limit is {format_bytes(found_device.limit_bytes)}, more than this machine has: the kernel may end "
            "processes before that. Ask for less memory, or set a cap."
        )

    def search(device: Device, prober: Prober) -> Findings:
        fastest = Fastest(limit_bytes=device.limit_bytes, races=subject.command is None) if goal == FASTEST else None
        run = Run(
            subject=subject,
            device=device,
            bounds=bounds,
            steps=steps,
            is_timed=is_timed,
            refine=refine,
            strategy_name=fastest.name if fastest else strategy if isinstance(strategy, str) else strategy.name,
            make_strategy=(lambda case: fastest) if fastest else make_strategy,
            observer=observer,
            ranks=ranks,
            nodes=num_nodes,
            isolate=isolate,
            # A strategy object or a table of the user's own cannot be compared with another run's.
            cache=cache and isinstance(strategy, str) and scale_table is None,
        )
        observer.started(listed, limit_bytes=device.limit_bytes)
        findings = run.search_all(prober, listed)
        return findings if lengths is None else run.run_mix(prober, findings)

    if place is not None:
        with contextlib.closing(Meeting(place, timeout_seconds=timeout_seconds)) as meeting:
            return find_together(
                meeting,
                search,
                address=subject.identity,
                device=found_device,
                limits_bytes=limits_bytes,
                ranks=ranks,
                timeout_seconds=timeout_seconds,
                observer=observer,
            )
    prober = subject.make_prober(found_device, limits_bytes, timeout_seconds=timeout_seconds, observer=observer)
    with contextlib.closing(prober):
        return search(found_device, prober)


def _bucket_cases(lengths: Iterable[int], cases: Iterable[Mapping[str, CaseValue]] | None) -> list[Case]:
    """Return a case for each bucket of a dataset's lengths, or the given ones if they cover all lengths."""
    checked = as_lengths(lengths)
    if cases is None:
        return [Case({LENGTH_KEY: edge}) for edge in bucket_edges(checked)]
    listed = as_cases(cases)
    names = {name for case in listed for name in case}
    edges = [value for case in listed for value in case.values()]
    if len(names) != 1 or not all(isinstance(edge, int) for edge in edges):
        raise InputError("With lengths, every case is one length. Use for example cases=[{'seq_len': 128}].")
    check_longest(checked, max(int(edge) for edge in edges), remedy="add a case for it")
    return listed


def _strategy_maker(
    strategy: str | Strategy, bounds: Bounds, table: ScaleTable, cases: list[Case]
) -> Callable[[Case], Strategy | None]:
    """Return what makes the strategy of a case; it answers None for `guided`, which waits for the trace."""
    if not isinstance(strategy, str):
        if not hasattr(strategy, "propose"):
            raise InputError(f"The strategy is {strategy!r}. Use {', '.join(STRATEGIES)}, or an object with `propose`.")
        return lambda case: strategy
    if strategy == "guided":
        return lambda case: None
    if strategy == "doubling":
        return lambda case: Doubling()
    if strategy == "estimate":
        if bounds.cap >= LARGEST_MICROBATCH and bounds.start is None:
            raise InputError("The strategy `estimate` starts from a share of the cap. Pass cap=64 (--cap 64).")
        scales = {case: table.scale(case) for case in cases}
        return lambda case: Estimate(scale=scales[case])
    raise InputError(f"There is no strategy {strategy!r}. Use one of: {', '.join(STRATEGIES)}.")
