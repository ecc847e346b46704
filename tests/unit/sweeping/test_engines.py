"""The contract of every engine: on this machine, and on a real Ray cluster of three nodes."""

import json
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tests.conftest import WORKLOADS

from brim.errors import DeviceError
from brim.sweeping.jobs import MARK
from brim.sweeping.local import LocalEngine
from brim.sweeping.outcome import ExitKind
from brim.sweeping.ray_engine import RayEngine
from brim.sweeping.resources import Resources
from brim.sweeping.sweep import sweep
from brim.sweeping.trial import TrialRequest

LONGEST_SECONDS = 60
# The least that Ray accepts, nearly.
OBJECT_STORE_BYTES = 80 * 2**20


@pytest.fixture(scope="module")
def run_id():
    """A mark in the environment of everything that these tests start, on a cluster too."""
    os.environ["BRIM_TEST_RUN"] = str(os.getpid())
    yield str(os.getpid())
    del os.environ["BRIM_TEST_RUN"]


@pytest.fixture(autouse=True)
def nothing_left_behind(run_id):
    """Look for trials, not for the processes that a cluster keeps for its next task."""
    yield
    found = [(process, process.info["environ"] or {}) for process in psutil.process_iter(["environ"])]
    left = [process for process, marks in found if marks.get("BRIM_TEST_RUN") == run_id and MARK in marks]
    assert not left, f"trials left behind: {left}"


@pytest.fixture(scope="module")
def cluster(run_id):
    import ray
    from ray.cluster_utils import Cluster

    # The head runs no trials: the node that a test kills is never the one that knows the others.
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES})
    for _ in range(2):
        made.add_node(num_cpus=2, memory=10**9, object_store_memory=OBJECT_STORE_BYTES)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(params=["local", "ray"])
def make_engine(request):
    """Return a function that makes an engine; every engine is closed."""
    made = []
    if request.param == "ray":
        request.getfixturevalue("cluster")

    def make(**resources):
        if request.param == "ray":
            engine = RayEngine(Resources(**resources), workdir=WORKLOADS)
        else:
            engine = LocalEngine(Resources(**resources), jobs=2 if not resources else None)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def request_for(name, folder, **options):
    config = {"dir": str(folder), "value": 21, **options.pop("config", {})}
    settings = {"function": f"trials.py:{name}", "command": None, **options}
    return TrialRequest(trial_id="00000000000000aa", attempt=1, config=config, workdir=str(WORKLOADS), **settings)


def run(engine, request, directory):
    engine.start(request, directory)
    (outcome,) = wait_for(engine, 1)
    return outcome


def wait_for(engine, num_trials):
    deadline = time.monotonic() + LONGEST_SECONDS
    outcomes = []
    while len(outcomes) < num_trials:
        assert time.monotonic() < deadline, f"{len(outcomes)} of {num_trials} trials ended"
        outcomes += [outcome for _, outcome in engine.wait(1.0)]
    return outcomes


def wait_until(condition):
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_what_a_function_returns_is_its_result_and_its_directory_has_everything(make_engine, tmp_path):
    outcome = run(make_engine(), request_for("succeed", tmp_path), tmp_path / "trial")
    assert outcome.kind is ExitKind.DONE, outcome.detail
    assert outcome.metrics == {"score": 42, "nested.batch": None}
    assert outcome.seconds > 0
    assert outcome.peak_bytes > 2**20
    assert outcome.where
    assert "value: 21" in (tmp_path / "trial" / "config.yaml").read_text()
    assert (tmp_path / "trial" / "log.txt").read_text() == "working on 21\n"
    assert json.loads((tmp_path / "trial" / "result.json").read_text())["score"] == 42


def test_a_command_writes_its_result_to_the_path_it_is_told(make_engine, tmp_path):
    command = ("python", "trials.py", "return_number", "{config}")
    request = request_for("", tmp_path, command=command, function=None)
    outcome = run(make_engine(), request, tmp_path / "trial")
    # A number is no object: what a command writes is taken as it is.
    assert outcome.kind is ExitKind.ERROR
    assert "must hold an object" in outcome.detail
    request = request_for("", tmp_path, command=("python", "trials.py", "succeed", "{config}"), function=None)
    outcome = run(make_engine(), request, tmp_path / "trial")
    assert (outcome.kind, outcome.metrics["score"]) == (ExitKind.DONE, 42)


def test_a_trial_that_raises_is_an_error_with_its_last_line(make_engine, tmp_path):
    outcome = run(make_engine(), request_for("fail", tmp_path), tmp_path / "trial")
    assert (outcome.kind, outcome.exit_code) == (ExitKind.ERROR, 1)
    assert outcome.detail == "ValueError: cannot learn from 21"
    assert "Traceback" in (tmp_path / "trial" / "log.txt").read_text()
    command = ("python", "trials.py", "fail", "{config}")
    outcome = run(make_engine(), request_for("", tmp_path, command=command, function=None), tmp_path / "other")
    assert (outcome.kind, outcome.detail) == (ExitKind.ERROR, "ValueError: cannot learn from 21")


def test_a_trial_that_exits_137_is_an_error_and_is_not_run_again(make_engine, tmp_path):
    outcome = run(make_engine(), request_for("exit_137", tmp_path), tmp_path / "trial")
    assert (outcome.kind, outcome.exit_code) == (ExitKind.ERROR, 137)
    assert outcome.detail == "exit code 137, as after SIGKILL"
    assert len(list(tmp_path.glob("ran-*"))) == 1


def test_out_of_memory_is_told_apart_from_errors(make_engine, tmp_path):
    assert run(make_engine(), request_for("run_out", tmp_path), tmp_path / "trial").kind is ExitKind.OOM
    command = ("python", "trials.py", "run_out", "{config}")
    request = request_for("", tmp_path, command=command, function=None)
    assert run(make_engine(), request, tmp_path / "other").kind is ExitKind.OOM


def test_a_trial_that_takes_too_long_is_ended_with_all_it_started(make_engine, tmp_path):
    engine = make_engine()
    for seconds in (1.0, 4.0, 16.0, 64.0):  # longer where it was ended before it could start anything
        request = request_for("hang", tmp_path, timeout_seconds=seconds)
        assert run(engine, request, tmp_path / f"trial-{seconds}").kind is ExitKind.TIMEOUT
        if traces := list(tmp_path.glob("hangs-*[0-9]")):
            break
    (trace,) = traces
    hung = json.loads(trace.read_text())
    assert not psutil.pid_exists(hung["pid"])
    wait_until(lambda: not psutil.pid_exists(hung["config"]["child"]))


def test_what_a_trial_leaves_behind_is_ended(make_engine, tmp_path):
    # The fixture looks for it.
    assert run(make_engine(), request_for("leave_orphan", tmp_path), tmp_path / "trial").kind is ExitKind.DONE


def test_stopping_ends_trials_as_interrupted(make_engine, tmp_path):
    engine = make_engine()
    engine.start(request_for("hang", tmp_path), tmp_path / "trial")
    (trace,) = wait_until(lambda: list(tmp_path.glob("hangs-*[0-9]")))
    engine.stop()
    assert [outcome.kind for outcome in wait_for(engine, 1)] == [ExitKind.INTERRUPTED]
    child = json.loads(trace.read_text())["config"]["child"]
    wait_until(lambda: not psutil.pid_exists(child))


def test_trials_run_at_the_same_time(make_engine, tmp_path):
    engine = make_engine()
    for name in ("aa", "bb"):
        assert engine.has_room
        request = request_for("meet", tmp_path, config={"num": 2})
        engine.start(TrialRequest(**{**vars_of(request), "trial_id": name}), tmp_path / name)
    assert engine.num_running == 2
    assert [outcome.kind for outcome in wait_for(engine, 2)] == [ExitKind.DONE] * 2


def vars_of(request):
    return {name: getattr(request, name) for name in request.__slots__}


def test_gpus_that_are_not_there_are_refused_at_once(make_engine):
    with pytest.raises(DeviceError, match=r"A trial asks for .*3 GPUs.* Ask for"):
        make_engine(gpus=3)


def test_a_command_that_cannot_start_is_fatal(make_engine, tmp_path):
    request = request_for("", tmp_path, command=("no-such-program", "{config}"), function=None)
    outcome = run(make_engine(), request, tmp_path / "trial")
    assert outcome.is_fatal
    assert "no-such-program: No such file" in outcome.detail


def sweep_document(name, folder, **keys):
    return {
        "function": f"trials.py:{name}",
        "workdir": str(WORKLOADS),
        "base": {"dir": str(folder), **keys},
        "sweep": {"product": {"value": [1, 2, 3]}},
    }


def test_a_cluster_gets_a_copy_of_the_sweeps_folder(cluster, tmp_path):
    (tmp_path / "train.py").write_text("import os\ndef train(config): return {'cwd': os.getcwd(), 'x': config['x']}\n")
    (tmp_path / "grid.yaml").write_text("function: train.py:train\nsweep: {product: {x: [1, 2]}}\n")
    arguments = ["sweep", "grid.yaml", "--engine", "ray", "--ray-address", cluster.address, "--json"]
    run = subprocess.run([sys.executable, "-m", "brim", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    trials = json.loads(run.stdout)["trials"]
    assert [(trial["status"], trial["metrics"]["x"]) for trial in trials] == [("done", 1), ("done", 2)]
    assert all(trial["metrics"]["cwd"] != str(tmp_path) for trial in trials)


def test_a_lost_node_runs_its_trial_again_elsewhere(cluster, tmp_path):
    killer = threading.Thread(target=kill_the_node_that_runs, args=(cluster, tmp_path, "started-2-*[0-9]"))
    killer.start()
    document = sweep_document("hang_once", tmp_path, value=0, hanging=2)
    results = sweep(document, out=tmp_path / "out", engine="ray")
    killer.join()
    assert [(trial.status, trial.metrics["score"]) for trial in results] == [("done", 1), ("done", 2), ("done", 3)]
    assert [trial.attempt for trial in results] == [1, 2, 1]
    journal = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    kinds = [event["outcome"]["kind"] for event in journal if event["event"] == "ended"]
    assert sorted(kinds) == ["done", "done", "done", "node_lost"]


def kill_the_node_that_runs(cluster, folder, pattern):
    (trace,) = wait_until(lambda: list(folder.glob(pattern)))
    raylet = int(psutil.Process(json.loads(trace.read_text())["pid"]).environ()["RAY_RAYLET_PID"])
    (node,) = [each for each in cluster.worker_nodes if each.all_processes["raylet"][0].process.pid == raylet]
    cluster.remove_node(node, allow_graceful=False)
