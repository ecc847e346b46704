"""One probe on several ranks: a real `torch.distributed` job, started by torchrun's own launcher.

Where the process may fork, its ranks are forked from it, which has imported everything; so a job costs no more than
its rendezvous. Every rank writes its outcome into a folder. A rank that failed leaves at once, and the launcher ends
the others, whatever collective they are in. On several nodes each has a launcher for its own ranks.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from brim.cases import Case
from brim.devices import make_meter
from brim.devices.cpu import num_oom_kills
from brim.findings import Race, Verdict
from brim.groups import die_with_parent, signal_name
from brim.probing.merging import is_from_peer, merge_outcomes
from brim.probing.mixing import Mix, mixed
from brim.probing.trial import run_trial
from brim.probing.wrapping import wrapped
from brim.workload import Workload, load

_WATCH_SECONDS = 0.1
# How long ranks that were asked to end may take; they have nothing to save.
_SHUTDOWN_SECONDS = 1
# How long a rank that lost a peer lets the launcher see first how the peer ended.
_PEER_SECONDS = 5 * _WATCH_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedProbe:
    """What every rank of a job is told.

    Attributes:
        workload: The class, or its address where ranks are started afresh.
        device_type: `cpu` or `cuda`.
        limits_bytes: What each rank of this node may use.
        events: Where to tell of phases: a path, because a rank that is started afresh inherits no pipe.
    """

    workload: type[Workload] | str
    case: Mapping[str, Any]
    microbatch: int
    steps: int
    mix: Mix
    race: Race | None
    device_type: str
    limits_bytes: tuple[int, ...]
    folder: str = ""
    events: str = ""
    launcher_pid: int = 0


def run_ranked(
    probe: RankedProbe,
    *,
    event_fd: int,
    can_fork: bool,
    scratch: str | None,
    rendezvous: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> dict[str, Any]:
    """Run a probe on as many ranks as there are limits, and return one outcome for all.

    Args:
        probe: What every rank is told.
        event_fd: Where ranks tell of phases.
        can_fork: Whether ranks may be forked from this process.
        scratch: A folder for what ranks write; None for one of the system's.
        rendezvous: Where the launchers of other nodes are, which run ranks of the same job; None for one node.
        run: What all launchers of the job call it.
    """
    kills_before = num_oom_kills()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # outcomes say more than its warnings
    where = rendezvous or {"endpoint": "localhost:0", "num_nodes": 1, "local_address": None}
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        config = LaunchConfig(
            min_nodes=where["num_nodes"],
            max_nodes=where["num_nodes"],
            nproc_per_node=len(probe.limits_bytes),
            run_id=run or uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=where["endpoint"],
            rdzv_configs={} if rendezvous is None else {"is_host": False},
            local_addr=where["local_address"],
            max_restarts=0,
            monitor_interval=_WATCH_SECONDS,
            start_method="fork" if can_fork else "spawn",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
        told = replace(probe, folder=folder, events=f"/proc/{os.getpid()}/fd/{event_fd}", launcher_pid=os.getpid())
        died = None
        try:
            elastic_launch(config, _run_rank)(told)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            if failure.exitcode < 0:
                died = f"was ended by {signal_name(-failure.exitcode)}"
        outcomes = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.json")]
    called = "rank" if rendezvous is None else "local rank"
    merged = merge_outcomes(outcomes, num_ranks=len(probe.limits_bytes), died=died, called=called)
    if merged["verdict"] == Verdict.UNCLEAR.value and (num_oom_kills() or 0) > (kills_before or 0):
        return {**merged, "verdict": Verdict.OOM.value, "detail": "the kernel killed a rank: the host's memory ran out"}
    return merged


def _run_rank(probe: RankedProbe) -> None:
    die_with_parent(probe.launcher_pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's own handler came with the fork
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun has it
    device_name = "cpu"
    if probe.device_type == "cuda":
        device_name = f"cuda:{local_rank}"
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if probe.device_type == "cuda" else "gloo")
    workload_class = load(probe.workload) if isinstance(probe.workload, str) else probe.workload
    events = os.open(probe.events, os.O_WRONLY)

    def report(phase: str) -> None:
        os.write(events, (json.dumps({"say": "phase", "phase": phase, "rank": rank}) + "\n").encode())

    outcome = run_trial(
        mixed(wrapped(workload_class), probe.mix),
        Case(probe.case),
        probe.microbatch,
        steps=probe.steps,
        meter=make_meter(device_name),
        limit_bytes=probe.limits_bytes[local_rank],
        race=probe.race,
        report=report,
        owns_process=True,
    )
    path = Path(probe.folder, f"rank{rank}.json")
    written = {**outcome, "rank": rank, "local_rank": local_rank, "time": time.time()}
    path.with_suffix(".new").write_text(json.dumps(written))
    path.with_suffix(".new").rename(path)
    sys.stdout.flush()
    sys.stderr.flush()
    if outcome["verdict"] != Verdict.FITS.value:
        if is_from_peer(outcome["detail"]):
            time.sleep(_PEER_SECONDS)
        os._exit(1)
    dist.barrier()  # nobody leaves while another still needs it
    dist.destroy_process_group()
