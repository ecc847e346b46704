"""The search on several nodes: the same command on each of them, one of which leads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from brim import errors
from brim.devices import Device
from brim.errors import BrimError, DeviceError, InputError
from brim.finding.observer import Observer
from brim.findings import Findings
from brim.probing import PairedProber, Prober
from brim.probing.joining import Place
from brim.probing.meeting import Meeting
from brim.probing.shared import SharedProber

# Where nodes meet if no port is given. Source: torchrun's default.
DEFAULT_PORT = 29400


def find_place(
    *, ranks: int, nodes: int | None, endpoint: str | None, environment: Mapping[str, str] | None = None
) -> Place | None:
    """Return where nodes meet that search together; None where this one is alone.

    Args:
        ranks: How many ranks there are over all nodes.
        nodes: How many nodes; None for what Slurm or torchrun says.
        endpoint: `HOST[:PORT]`; None for torchrun's own store.
        environment: Of this process.

    >>> slurm = {"SLURM_NNODES": "2"}
    >>> str(find_place(ranks=8, nodes=None, endpoint="head:29500", environment=slurm))
    'head:29500'
    >>> find_place(ranks=8, nodes=None, endpoint=None, environment=slurm) is None
    True
    """
    seen = os.environ if environment is None else environment
    is_torchrun = "TORCHELASTIC_RUN_ID" in seen and (ranks > 1 or endpoint is not None)
    if is_torchrun and int(seen["LOCAL_WORLD_SIZE"]) > 1:
        raise InputError(
            f"torchrun has started {seen['LOCAL_WORLD_SIZE']} processes of brim on this node. Use "
            "--nproc-per-node 1: brim starts the ranks itself."
        )
    if nodes is None:
        nodes = _num_nodes(seen, is_torchrun=is_torchrun, is_meeting=endpoint is not None)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise InputError(f"nodes is {nodes!r}. Use a whole number of at least 1.")
    if nodes == 1:
        return None
    if int(seen.get("SLURM_LOCALID", 0)) > 0:
        raise InputError("srun has started several processes of brim on this node. Use --ntasks-per-node=1.")
    if ranks % nodes:
        near = max(nodes, ranks - ranks % nodes)
        raise InputError(f"{ranks} ranks do not divide over {nodes} nodes. Use {near} or {near + nodes} ranks in all.")
    host, port = _parse(endpoint) if endpoint is not None else _torchruns_store(seen, nodes)
    if not is_torchrun:
        return Place(host=host, port=port, num_nodes=nodes)
    attempt = int(seen.get("TORCHELASTIC_RESTART_COUNT", 0))
    return Place(host=host, port=port, num_nodes=nodes, node=int(seen["GROUP_RANK"]), attempt=attempt)


def find_together(
    meeting: Meeting,
    search: Callable[[Device, Prober], Findings],
    *,
    address: str,
    device: Device,
    limits_bytes: tuple[int, ...],
    ranks: int,
    timeout_seconds: float | None,
    observer: Observer,
) -> Findings:
    """Search if this node leads, else take part in its probes; return or raise the same on every node."""
    device = _agree(meeting, device, ranks=ranks, observer=observer)
    limits_bytes = tuple(min(limit, device.limit_bytes) for limit in limits_bytes)
    paired = PairedProber(
        address, device, limits_bytes=limits_bytes, timeout_seconds=timeout_seconds, rendezvous=meeting.rendezvous
    )
    prober = SharedProber(paired, meeting, ranks=ranks)
    try:
        _load_everywhere(meeting, prober)
        if meeting.leads:
            return _lead(meeting, lambda: search(device, prober))
        return _follow(meeting, prober)
    finally:
        prober.close()


def _num_nodes(seen: Mapping[str, str], *, is_torchrun: bool, is_meeting: bool) -> int:
    if is_torchrun:
        return int(seen["GROUP_WORLD_SIZE"])
    if not is_meeting:
        return 1  # in a job of Slurm's with many nodes, one of them may well search alone
    told = seen.get("SLURM_STEP_NUM_NODES") or seen.get("SLURM_NNODES")
    if told is None:
        raise InputError("How many nodes meet is not known outside of Slurm and torchrun. Add it: --nodes 2.")
    return int(told)


def _parse(endpoint: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.path:
        raise InputError(f"{endpoint!r} is no address for nodes to meet. Use HOST:PORT, e.g. head:29500.")
    return host, port or DEFAULT_PORT


def _torchruns_store(seen: Mapping[str, str], nodes: int) -> tuple[str, int]:
    if "TORCHELASTIC_RUN_ID" not in seen:
        raise InputError(f"{nodes} nodes need an address to meet. Add --rdzv-endpoint HOST:PORT, the same on each.")
    return seen["MASTER_ADDR"], int(seen["MASTER_PORT"])


def _agree(meeting: Meeting, device: Device, *, ranks: int, observer: Observer) -> Device:
    """Return the device of the node with the least memory."""
    seen = meeting.exchange("device", {"ranks": ranks, **asdict(device)})
    for name in ("ranks", "name"):
        values = [each[name] for each in seen]
        if len(set(values)) > 1:
            what = {"ranks": "--ranks", "name": "--device"}[name]
            raise InputError(f"The nodes have {what} {', '.join(map(str, values))}. Start the same command on each.")
    if not meeting.leads:
        observer.note(f"node {meeting.node} of {len(seen)}: runs its ranks of the probes that node 0 asks for")
    devices = [Device(**{name: value for name, value in each.items() if name != "ranks"}) for each in seen]
    return min(devices, key=lambda each: each.limit_bytes)


def _load_everywhere(meeting: Meeting, prober: Prober) -> None:
    """Wait until every node has loaded the workload; raise on all of them why one could not."""
    problem: BrimError | None = None
    try:
        loaded: dict[str, Any] = {"kind": prober.kind}
    except BrimError as error:
        problem, loaded = error, {"error": _pack(error)}
    for node, each in enumerate(meeting.exchange("loaded", loaded)):
        if problem is None and "error" in each:
            raise _unpack(each["error"], prefix=f"Node {node}: ")
    if problem is not None:
        raise problem


def _lead(meeting: Meeting, search: Callable[[], Findings]) -> Findings:
    try:
        findings = search()
    except BaseException as error:
        told = error if isinstance(error, BrimError) else DeviceError(f"Node 0 ended early: {type(error).__name__}.")
        with contextlib.suppress(DeviceError):  # where nobody can be told any more, the first error says more
            meeting.tell({"do": "raise", "error": _pack(told)})
        raise
    meeting.tell({"do": "return", "findings": findings.to_dict()})
    return findings


def _follow(meeting: Meeting, prober: SharedProber) -> Findings:
    while True:
        message = meeting.hear()
        if message["do"] == "probe":
            prober.take_part(message["request"])
        elif message["do"] == "raise":
            raise _unpack(message["error"])
        else:
            return Findings.from_dict(message["findings"])


def _pack(error: BrimError) -> dict[str, Any]:
    """Return an error as plain data."""
    data = {name: value for name, value in vars(error).items() if name != "findings"}
    findings = None if error.findings is None else error.findings.to_dict()
    return {"type": type(error).__name__, "message": str(error), "data": data, "findings": findings}


def _unpack(packed: Mapping[str, Any], *, prefix: str = "") -> BrimError:
    """Return the error that was packed on another node, with all that it carries."""
    kind: type[BrimError] = getattr(errors, packed["type"], DeviceError)
    error = kind.__new__(kind)
    error.args = (prefix + packed["message"],)
    vars(error).update(packed["data"])
    if packed["findings"] is not None:
        error.findings = Findings.from_dict(packed["findings"])
    return error
