"""How a node comes to the place where nodes meet: it hosts the store there, or connects to it."""

from __future__ import annotations

import importlib
import ipaddress
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from brim.errors import DeviceError

# How often to try again.
_PAUSE_SECONDS = 0.1
REMEDY = (
    "Start the same command once on every node (srun --ntasks-per-node=1, or torchrun --nproc-per-node=1), and check "
    "that --nodes is right and that all can reach that address."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where nodes meet.

    Attributes:
        num_nodes: How many of them.
        node: Which of them this is, where something else has numbered them; None to number them as they come.
        attempt: How often their launcher had to start them again.
    """

    host: str
    port: int
    num_nodes: int
    node: int | None = None
    attempt: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node that has come.

    Attributes:
        store: Where all nodes read and write.
        node: The node's number.
        address: How other nodes reach this one.
        hosts: Whether the store lives in this process.
    """

    store: Any
    node: int
    address: str
    hosts: bool


def join(place: Place, *, timeout_seconds: float) -> Joined:
    """Come to a meeting that is not complete without this node."""
    store_class, prefix_class = _store_classes()  # before the time runs: importing torch takes seconds
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            store, hosts = _open(place, store_class, timedelta(seconds=max(1.0, deadline - time.monotonic())))
            address = _own_address(place)
            shared = prefix_class(f"brim/{place.attempt}", store)
            node = _number(place, shared, hosts=hosts)
            if node < place.num_nodes:
                return Joined(store=shared, node=node, address=address, hosts=hosts)
            problem = f"{place.num_nodes} nodes had come before this one"
        except OSError as error:
            problem = error.strerror or str(error)
        except RuntimeError:
            problem = "what answers there is no store of torch.distributed"
        if time.monotonic() >= deadline:
            raise DeviceError(
                f"No meeting of {place.num_nodes} nodes at {place} within {timeout_seconds:g} s: {problem}. {REMEDY}"
            )
        time.sleep(_PAUSE_SECONDS)


def _open(place: Place, store_class: Any, timeout: timedelta) -> tuple[Any, bool]:
    listener = _listen(place)
    if listener is not None:
        options = {"timeout": timeout, "wait_for_workers": False, "master_listen_fd": listener.detach()}
        return store_class(place.host, place.port, is_master=True, **options), True
    # Asked beforehand, because the store itself complains on standard error as long as nobody answers.
    socket.create_connection((place.host, place.port), timeout=timeout.total_seconds()).close()
    return _in_time(lambda: store_class(place.host, place.port, is_master=False, timeout=timeout), timeout), False


def _number(place: Place, store: Any, *, hosts: bool) -> int:
    if place.node is not None:
        return place.node
    return 0 if hosts else int(store.add("followers", 1))


def _store_classes() -> tuple[Any, Any]:
    """Import torch's stores, which otherwise write a page of C++ frames whenever a peer is gone or no peer."""
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "FATAL")
    try:
        distributed: Any = importlib.import_module("torch.distributed")  # which does not say what it exports
    finally:
        if before is None:
            del os.environ[name]
    return distributed.TCPStore, distributed.PrefixStore


def _in_time(connect: Callable[[], Any], timeout: timedelta) -> Any:
    """Return what `connect` returns; raise where it does not come back, as with a server that never answers."""
    made: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            made.put(connect())
        except RuntimeError as error:
            made.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = made.get(timeout=timeout.total_seconds())
    except queue.Empty:
        raise RuntimeError("no answer") from None
    if isinstance(answer, RuntimeError):
        raise answer
    return answer


def _listen(place: Place) -> socket.socket | None:
    """Return a socket that listens at the place; None where it is another machine's, or taken."""
    if not any(_is_own(info) for info in socket.getaddrinfo(place.host, None, type=socket.SOCK_STREAM)):
        return None
    # On all interfaces: a machine's own name often leads to its loopback, where no other node could come in.
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", place.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", place.port))
    except OSError:
        return None


def _is_own(info: tuple[Any, ...]) -> bool:
    family, kind, _, _, address = info
    with socket.socket(family, kind) as trial:
        try:
            trial.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


def _own_address(place: Place) -> str:
    """Return how other nodes reach this one: as it is seen at the place, or by the place's own name."""
    with socket.create_connection((place.host, place.port)) as connection:
        address: str = connection.getsockname()[0]
    return place.host if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address
