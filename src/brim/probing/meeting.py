"""Nodes that probe together: how they find each other, talk, and notice that one of them is gone.

They meet in a store of `torch.distributed` at an address that all were given. The node that can bind it hosts the
store and leads; under torchrun the agent's own store serves, and the first node leads. The launchers of the ranks use
the same store for their rendezvous.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from brim.errors import DeviceError
from brim.probing.joining import REMEDY, Place, join

# How long nodes wait for each other at first, unless the user says otherwise.
MEETING_SECONDS = 300.0
# A node that was not heard of for this long is gone. Source: a choice; it is ten of its signs of life.
LOST_SECONDS = 10.0
_BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.1
# How long the ranks of a node have to end by themselves after another node failed: they may have a reason of their own.
_GRACE_SECONDS = 1.0
_LEFT = b"left"
_LOOK_THERE = "Look at its output and at the network, and start brim again on every node."


class Meeting:
    """Nodes that have met. A thread of each gives signs of life and looks for those of the others.

    Attributes:
        node: Which node this is; node 0 leads.
    """

    def __init__(self, place: Place, *, timeout_seconds: float | None = None) -> None:
        self._place = place
        seconds = timeout_seconds or MEETING_SECONDS
        joined = join(place, timeout_seconds=seconds)
        self._store, self.node, self._hosts = joined.store, joined.node, joined.hosts
        self._address = joined.address
        self._store.set_timeout(timedelta(seconds=LOST_SECONDS))
        self._num_messages = 0
        self._num_beats = 0
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._silent: set[int] = set()
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._running: tuple[str, Callable[[], None]] | None = None
        self._failed_since: float | None = None
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="brim-meeting", daemon=True)
        try:
            self._await_all(seconds)
        except BaseException:
            self._leave()
            raise
        self._keeper.start()

    @property
    def leads(self) -> bool:
        """Whether this node searches, and the others serve it."""
        return self.node == 0

    @property
    def rendezvous(self) -> dict[str, Any]:
        """What the launcher of this node's ranks is told."""
        return {
            "endpoint": str(self._place),
            "num_nodes": self._place.num_nodes,
            "local_address": self._address,
        }

    def exchange(self, name: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what every node has to say under this name, in their order."""
        with self._talking():
            self._store.set(f"{name}/{self.node}", json.dumps(value))
        return [self._await(f"{name}/{node}") for node in range(self._place.num_nodes)]

    def tell(self, message: Mapping[str, Any]) -> None:
        """Say something to the nodes that follow."""
        with self._talking():
            self._store.set(f"message/{self._num_messages}", json.dumps(message))
        self._num_messages += 1

    def hear(self) -> dict[str, Any]:
        """Wait for what the leading node says next."""
        self._num_messages += 1
        return self._await(f"message/{self._num_messages - 1}")

    def fail(self, run: str) -> int:
        """Say that this node's part of a run failed, so that the others end theirs; return how many did so before."""
        with self._talking():
            return int(self._store.add(f"failed/{run}", 1)) - 1

    @contextlib.contextmanager
    def watching(self, run: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end`, in another thread, when another node's part of a run fails or a node is gone."""
        with self._lock:
            self._running, self._failed_since = (run, end), None
        try:
            yield
        finally:
            with self._lock:
                self._running = None

    def close(self) -> None:
        """Leave; who leads or hosts the store, which may be with it, leaves last. A second call does nothing."""
        if self._store is None:
            return
        self._closing.set()
        self._keeper.join()
        self._leave()

    def _await_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._talking():
            self._beat()
            num_came = int(self._store.add("came", 1))
        while num_came < self._place.num_nodes:
            if time.monotonic() >= deadline:
                raise DeviceError(
                    f"{num_came} of {self._place.num_nodes} nodes came to {self._place} within {seconds:g} s. {REMEDY}"
                )
            time.sleep(_LOOK_SECONDS)
            with self._talking():
                num_came = int(self._store.add("came", 0))

    def _await(self, key: str) -> dict[str, Any]:
        while True:
            lost = self._lost  # before looking: who leaves has said before what there was to say
            with self._talking():
                if self._store.check([key]):
                    value: dict[str, Any] = json.loads(self._store.get(key))
                    return value
            if lost is not None:
                raise DeviceError(lost)
            time.sleep(_LOOK_SECONDS)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise DeviceError(self._lost or self._store_is_gone()) from error

    def _store_is_gone(self) -> str:
        return f"The meeting at {self._place} is gone: the node that hosts it has ended. {_LOOK_THERE}"

    def _keep(self) -> None:
        """Give signs of life and look for those of others until the meeting is closed."""
        next_beat = 0.0
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + _BEAT_SECONDS
                    self._beat()
                    self._look_for_others()
                self._look_at_run()
            except RuntimeError:
                self._lost = self._lost or self._store_is_gone()
            with self._lock:
                since = self._failed_since
                if self._running and (self._lost or (since and time.monotonic() - since > _GRACE_SECONDS)):
                    self._running[1]()

    def _beat(self) -> None:
        self._num_beats += 1
        self._store.set(f"beat/{self.node}", str(self._num_beats))

    def _look_for_others(self) -> None:
        for node in range(1, self._place.num_nodes) if self.leads else (0,):
            beat = self._store.get(f"beat/{node}")
            before, since = self._heard.get(node, (b"", 0.0))
            if beat == _LEFT:
                self._lost = self._lost or f"Node {node} left before the end: its own message says why."
            elif beat != before:
                self._heard[node] = (beat, time.monotonic())
            elif time.monotonic() - since > LOST_SECONDS:
                self._silent.add(node)
                self._lost = self._lost or f"Node {node} was not heard of for {LOST_SECONDS:g} s. {_LOOK_THERE}"

    def _look_at_run(self) -> None:
        with self._lock:
            if self._running and not self._failed_since and self._store.check([f"failed/{self._running[0]}"]):
                self._failed_since = time.monotonic()

    def _leave(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._store.set(f"beat/{self.node}", _LEFT)
            deadline = time.monotonic() + LOST_SECONDS
            while (self._hosts or self.leads) and self._others_are_here() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        self._store = None

    def _others_are_here(self) -> bool:
        keys = [f"beat/{node}" for node in range(self._place.num_nodes) if node not in {self.node, *self._silent}]
        return any(self._store.check([key]) and self._store.get(key) != _LEFT for key in keys)
