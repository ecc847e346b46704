"""Nodes that meet: threads of one process stand for them, with a real store between."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from brim.errors import DeviceError
from brim.probing import meeting as module
from brim.probing.joining import Place
from brim.probing.meeting import Meeting


@pytest.fixture
def place() -> Place:
    with socket.create_server(("", 0)) as free:
        return Place(host="localhost", port=free.getsockname()[1], num_nodes=2)


@pytest.fixture
def nodes(place: Place):
    with ThreadPoolExecutor(2) as threads:
        met = sorted(threads.map(lambda _: Meeting(place, timeout_seconds=30), range(2)), key=lambda met: met.node)
        yield met
        list(threads.map(Meeting.close, met))
    with socket.create_server(("", place.port)):
        pass  # nobody listens there any more


def test_one_leads_and_all_hear_the_same(nodes):
    assert [met.node for met in nodes] == [0, 1]
    assert [met.leads for met in nodes] == [True, False]
    with ThreadPoolExecutor(2) as threads:
        heard = list(threads.map(lambda met: met.exchange("name", {"node": met.node}), nodes))
    assert heard == [[{"node": 0}, {"node": 1}]] * 2
    for number in range(2):
        nodes[0].tell({"number": number})
    assert [nodes[1].hear() for _ in range(2)] == [{"number": 0}, {"number": 1}]


def test_a_node_that_failed_ends_what_the_others_run(nodes, monkeypatch):
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)
    ended = threading.Event()
    with nodes[1].watching("run", ended.set):
        assert [nodes[0].fail("run"), nodes[1].fail("run")] == [0, 1]
        assert ended.wait(30)


def test_who_waits_for_a_node_that_left_or_fell_silent_is_told_so(nodes, monkeypatch):
    monkeypatch.setattr(module, "LOST_SECONDS", 2.0)
    nodes[1]._closing.set()  # no more signs of life, as of a process that was killed
    with pytest.raises(DeviceError, match=r"Node 1 was not heard of for 2 s. Look at its output"):
        nodes[0].exchange("never", {})
    nodes[0].close()
    with pytest.raises(DeviceError, match=r"at localhost:.* is gone: the node that hosts it has ended"):
        nodes[1].exchange("never", {})


def test_a_meeting_that_does_not_complete_says_who_came_where(place):
    with pytest.raises(DeviceError, match=f"1 of 2 nodes came to localhost:{place.port} within 0.2 s. Start the same"):
        Meeting(place, timeout_seconds=0.2)


def test_an_address_where_nobody_answers_is_named_with_the_reason():
    place = Place(host="no-such-host.invalid", port=1, num_nodes=3)
    with pytest.raises(DeviceError, match=r"No meeting of 3 nodes at no-such-host.invalid:1 within 0.2 s: \w+"):
        Meeting(place, timeout_seconds=0.2)


def test_an_address_that_something_else_answers_at_is_named_with_the_reason():
    with socket.create_server(("localhost", 0)) as other:
        place = Place(host="localhost", port=other.getsockname()[1], num_nodes=2)
        with pytest.raises(DeviceError, match=r"what answers there is no store of torch.distributed"):
            Meeting(place, timeout_seconds=1)


def test_one_node_too_many_is_told_so(nodes, place):
    with pytest.raises(DeviceError, match="2 nodes had come before this one"):
        Meeting(place, timeout_seconds=0.2)
