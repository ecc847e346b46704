"""Two nodes that search together: two real `brim find` on this machine, gloo between them."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from tests.conftest import WORKLOADS

from brim.errors import InputError, WorkloadError
from brim.finding.nodes import _pack, _unpack, find_place
from brim.findings import Findings

RANKED = f"{WORKLOADS}/ranked.py"
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job",
    "GROUP_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29511",
}


@pytest.mark.parametrize(
    ("settings", "environment", "told"),
    [
        ({"nodes": 2, "endpoint": "head:29500"}, {}, ("head:29500", 2, None)),
        ({"nodes": 2, "endpoint": "head"}, {}, ("head:29400", 2, None)),
        ({"nodes": 2, "endpoint": "[::1]:29500"}, {}, ("[::1]:29500", 2, None)),
        ({"endpoint": "head:29500"}, {"SLURM_NNODES": "4"}, ("head:29500", 4, None)),
        ({"endpoint": "head:29500"}, {"SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "2"}, ("head:29500", 2, None)),
        ({}, TORCHRUN, ("head:29511", 2, 1)),
        ({"endpoint": "other:1"}, TORCHRUN, ("other:1", 2, 1)),
    ],
)
def test_where_nodes_meet_is_told_or_known_from_the_launcher(settings, environment, told):
    place = find_place(**{"ranks": 8, "nodes": None, "endpoint": None, **settings}, environment=environment)
    assert (str(place), place.num_nodes, place.node) == told


@pytest.mark.parametrize(
    ("ranks", "environment"), [(8, {"SLURM_NNODES": "2"}), (1, TORCHRUN), (2, {**TORCHRUN, "GROUP_WORLD_SIZE": "1"})]
)
def test_one_node_searches_alone_unless_asked_otherwise(ranks, environment):
    assert find_place(ranks=ranks, nodes=None, endpoint=None, environment=environment) is None


@pytest.mark.parametrize(
    ("settings", "environment", "message"),
    [
        ({"nodes": 3, "endpoint": "head"}, {}, "8 ranks do not divide over 3 nodes. Use 6 or 9 ranks in all."),
        ({"nodes": 0, "endpoint": "head"}, {}, "nodes is 0. Use a whole number"),
        ({"nodes": 2}, {}, "2 nodes need an address to meet. Add --rdzv-endpoint HOST:PORT"),
        ({"endpoint": "head:29500"}, {}, "Add it: --nodes 2"),
        ({"nodes": 2, "endpoint": "head:port"}, {}, "'head:port' is no address for nodes to meet. Use HOST:PORT"),
        ({"nodes": 2, "endpoint": "head", }, {"SLURM_LOCALID": "1"}, "Use --ntasks-per-node=1"),
        ({}, {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "4 processes of brim on this node. Use --nproc-per-node 1"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_are_refused(settings, environment, message):
    with pytest.raises(InputError, match=message):
        find_place(**{"ranks": 8, "nodes": None, "endpoint": None, **settings}, environment=environment)


def test_an_error_is_the_same_on_another_node():
    error = WorkloadError("step failed", phase="step", traceback="line 1", log_tail="the end")
    error.findings = Findings(
        workload="w", kind="train", device_name="cpu", memory_bytes=8, fill=0.9, strategy="guided", findings=()
    )
    there = _unpack(json.loads(json.dumps(_pack(error))), prefix="Node 1: ")
    assert type(there) is WorkloadError
    assert str(there) == "Node 1: step failed"
    assert (there.phase, there.traceback, there.log_tail, there.findings) == (
        "step",
        "line 1",
        "the end",
        error.findings,
    )


class Pair:
    """Two nodes: the same command twice."""

    def __init__(self, folder, name, *options, memories=("640MiB", "640MiB"), launcher=()):
        with socket.create_server(("", 0)) as free:
            self.port = free.getsockname()[1]
        launch = [sys.executable, "-m", *(word.format(port=self.port) for word in launcher), *(["-m"] * bool(launcher))]
        where = [] if launcher else ["--nodes", "2", "--rdzv-endpoint", f"localhost:{self.port}"]
        common = ["--ranks", "2", "--device", "cpu", "--no-cache", "--steps", "1", "--json", *where, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.nodes = [
            subprocess.Popen(
                [*launch, "brim", "find", f"{RANKED}:{name}", "--memory", memory, *common],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment,
            )
            for memory in memories
        ]  # fmt: skip

    def results(self):
        """Wait for both; return their exit codes, what they printed, and what they said."""
        said = [node.communicate(timeout=200) for node in self.nodes]
        with socket.create_server(("", self.port)):
            pass  # nobody listens there any more
        return [node.returncode for node in self.nodes], [out for out, _ in said], [err for _, err in said]


@pytest.fixture
def start(tmp_path):
    pairs = []

    def start_pair(*arguments, **settings):
        pairs.append(Pair(tmp_path, *arguments, **settings))
        return pairs[-1]

    yield start_pair
    for pair in pairs:
        for node in pair.nodes:
            node.kill()
            node.wait()


@pytest.mark.long
def test_both_nodes_print_what_fits_the_smaller(start):
    codes, printed, said = start("Train", "--cap", "64", memories=("640MiB", "480MiB")).results()
    assert codes == [0, 0], said
    findings = json.loads(printed[0])
    assert printed[0] == printed[1]
    assert findings["ranks"] == 2
    assert findings["device"]["memory_bytes"] == 480 * 2**20
    (finding,) = findings["findings"]
    assert finding["confirmed"]
    assert 0 < finding["peak_bytes"] <= 0.9 * 480 * 2**20


@pytest.mark.long
def test_an_oom_on_one_node_is_an_oom_of_both(start):
    codes, printed, said = start("BackwardFails", "--start", "4", "--cap", "4").results()
    assert codes == [0, 0], said
    (finding,) = json.loads(printed[1])["findings"]
    assert finding["microbatch"] == 3
    assert finding["probes"][0]["verdict"] == "oom"
    assert "rank 0: " in finding["probes"][0]["detail"]


@pytest.mark.long
def test_an_error_on_one_node_is_the_same_error_on_both(start):
    codes, printed, said = start("Raises", "--cap", "1").results()
    assert codes == [1, 1]
    assert printed[0] == printed[1]
    assert all("ranked.py" in text and "rank 1: ZeroDivisionError: only here" in text for text in said)


@pytest.mark.long
def test_nodes_under_torchrun_meet_in_its_store(start):
    launcher = ["torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    launcher += ["--rdzv-endpoint=localhost:{port}"]
    codes, printed, said = start("Train", "--cap", "2", launcher=launcher).results()
    assert codes == [0, 0], said
    assert printed[0] == printed[1]
    assert json.loads(printed[0])["findings"][0]["microbatch"] == 2


@pytest.mark.parametrize("victim", ["leads", "follows"])
@pytest.mark.long
def test_a_node_that_is_killed_ends_the_other_with_a_reason(start, victim):
    pair = start("Hangs", "--start", "1", "--cap", "1")
    leader = _who_listens(pair)
    killed = leader if victim == "leads" else 1 - leader
    _await_ranks(pair.nodes[killed])
    pair.nodes[killed].send_signal(signal.SIGKILL)
    codes, _, said = pair.results()
    assert codes[1 - killed] == 1
    reason = "is gone: the node that hosts it has ended" if victim == "leads" else "Node 1 was not heard of for 10 s"
    assert reason in said[1 - killed]


@pytest.mark.slow
def test_a_node_that_waits_in_vain_says_so(brim_cli):
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    where = ["--ranks", "2", "--nodes", "2", "--rdzv-endpoint", f"localhost:{port}", "--timeout", "1s"]
    run = brim_cli("find", f"{RANKED}:Train", "--device", "cpu", *where)
    assert run.returncode == 1
    assert f"1 of 2 nodes came to localhost:{port} within 1 s. Start the same command" in run.stderr
    assert not run.stdout


def _who_listens(pair):
    while True:
        for number, node in enumerate(pair.nodes):
            assert node.poll() is None, node.communicate()
            connections = psutil.Process(node.pid).net_connections("tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == pair.port for c in connections):
                return number


def _await_ranks(node):
    """Wait until the node's launcher has started its rank: server, launcher, rank below brim itself."""
    while not any(_depth(child, node.pid) == 3 for child in psutil.Process(node.pid).children(recursive=True)):
        assert node.poll() is None, node.communicate()


def _depth(process, ancestor):
    try:
        return [parent.pid for parent in process.parents()].index(ancestor) + 1
    except (psutil.NoSuchProcess, ValueError):
        return 0
