"""`brim phantom` as it is typed: one run of a real job on GPUs that are not there."""

import fcntl
import json
import os
import pickle
import pty
import signal
import struct
import subprocess
import sys
import termios

import psutil
import pytest
from tests.phantoms import with_cuda_torch

GIB = 2**30
# A training loop that says how far it is, and reads a line before it ends.
TRAIN = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
print("read", input(), flush=True)
"""
# A script that goes on where memory runs out.
CAUGHT = """
import torch
held = torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(7 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("caught")
"""
# A job that takes more than half of the card, and waits.
HOLDS = """
import torch
held = torch.empty(9 * 2**30, dtype=torch.uint8, device="cuda")
free, total = torch.cuda.mem_get_info()
print("holds", total - free, flush=True)
input()
"""
RANKS = """
import os, torch
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def phantom(brim_cli, tmp_path):
    """Run `brim phantom` as a user whose torch has CUDA; a script is given as its text."""

    def run(*words, **options):
        return brim_cli(*_words(tmp_path, words), env=with_cuda_torch(), **options)

    return run


@pytest.fixture
def started(tmp_path):
    """Start `brim phantom` in a process group of its own and return the process."""

    def start(*words, **options):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [sys.executable, "-m", "brim", *_words(tmp_path, words)]
        return subprocess.Popen(
            command, text=True, cwd=tmp_path, env=with_cuda_torch(), start_new_session=True, **streams
        )

    return start


def _words(folder, words):
    script = folder / "train.py"
    command = [word for word in words if "\n" not in word]
    for text in (word for word in words if "\n" in word):
        script.write_text(text)
        command[command.index("--") + 1 : command.index("--") + 1] = [sys.executable, str(script)]
    return ["phantom", *command]


def test_output_input_and_exit_code_pass_through_and_a_job_without_a_gpu_is_told_so(phantom):
    run = phantom("--gpu", "t4", "--", "sh", "-c", "echo out; echo err >&2; cat; exit 7", input="given")
    assert (run.returncode, run.stdout) == (7, "out\ngiven")
    assert run.stderr.startswith("err\n")
    assert "had not used the GPU yet" in run.stderr
    assert "exit code 7" in run.stderr


def test_a_job_that_a_signal_ended_has_the_exit_code_of_a_shell(phantom):
    run = phantom("--gpu", "t4", "--json", "--snapshot", "memory.pickle", "--", "sh", "-c", "kill -9 $$")
    assert run.returncode == 128 + signal.SIGKILL
    told = json.loads(run.stdout)
    assert told["exit_code"] == -signal.SIGKILL
    assert "No snapshot was written" in told["remarks"][0]


@pytest.mark.slow
def test_a_job_that_ends_itself_is_told_by_process_kind_and_module(phantom):
    run = phantom("--gpu", "t4", "--", TRAIN, "2", input="a line\n")
    assert (run.returncode, run.stdout) == (0, "step 0\nstep 1\nread a line\n"), run.stderr
    assert "exit code 0" in run.stderr
    assert "2 training steps" in run.stderr
    assert "cuda:0" in run.stderr
    assert "At the peak: " in run.stderr
    assert "optimizer 16." in run.stderr
    assert "(optimizer state)" in run.stderr


@pytest.mark.slow
def test_a_module_may_run_on_the_host_before_the_gpu_is_used(phantom):
    on_host = "import torch\nnet = torch.nn.Linear(2, 2)\nprint(net(torch.ones(1, 2)).shape)\n"
    run = phantom("--gpu", "t4", "--", on_host + TRAIN, "2", input="\n")
    assert run.returncode == 0, run.stderr
    assert "2 training steps" in run.stderr
    run = phantom("--gpu", "t4", "--", on_host)
    assert (run.returncode, run.stdout) == (0, "torch.Size([1, 2])\n"), run.stderr
    assert "never used the GPU" in run.stderr


@pytest.mark.slow
def test_a_job_is_ended_after_its_steps_and_writes_torch_s_snapshot(phantom, tmp_path, still_running):
    run = phantom("--gpu", "t4", "--steps", "3", "--snapshot", "memory.pickle", "--", TRAIN, "1000")
    assert run.returncode == 0, run.stderr
    assert "step 1\n" in run.stdout
    assert "step 3\n" not in run.stdout
    assert "3 training steps" in run.stderr
    assert "snapshot: memory.pickle" in run.stderr
    snapshot = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert snapshot["segments"]
    frames = [frame for trace in snapshot["device_traces"] for event in trace for frame in event.get("frames", ())]
    assert str(tmp_path / "train.py") in {frame["filename"] for frame in frames}
    assert not still_running()


@pytest.mark.slow
def test_where_memory_ran_out_the_line_is_named_and_what_held_the_rest(phantom):
    run = phantom("--memory", "2GiB", "--", TRAIN.replace("8, 1024", "2**18, 1024"), "1")
    assert run.returncode == 1
    assert "torch.OutOfMemoryError" in run.stderr
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("Memory ran out: ")]
    assert "asked for 1.00 GiB in train.py:6 (model(torch.ones(2**18, 1024" in line
    assert "while inputs held 1.00 GiB, parameters 8.0" in line
    assert "holds when memory ran out" in run.stderr


@pytest.mark.slow
def test_json_is_the_only_output_and_has_what_a_job_got_over(phantom, tmp_path):
    run = phantom("--gpu", "t4", "--json", "--snapshot", "memory.pickle", "--", CAUGHT)
    told = json.loads(run.stdout)
    assert "caught\n" in run.stderr
    assert (told["schema"], told["ended_by"], told["exit_code"]) == ("brim.phantom/1", "itself", 0)
    assert (told["kind"], told["steps"], told["remarks"]) == (None, 0, [])
    (process,) = told["processes"]
    assert process["peak"]["allocated_bytes"] == process["peak"]["reserved_bytes"] == 10 * GIB
    assert 10 * GIB < process["peak"]["device_bytes"] == told["gpus"][0]["peak_bytes"]
    assert process["num_retries"] == 1
    assert sum(process["breakdown"]["by_kind"].values()) == 10 * GIB
    assert process["refused"]["asked_bytes"] == 7 * GIB
    assert process["refused"]["line"].startswith("train.py:5 ")
    assert told["snapshots"] == ["memory.pickle"]
    assert "oom" in {
        event["action"] for event in pickle.loads((tmp_path / "memory.pickle").read_bytes())["device_traces"][0]
    }


@pytest.mark.slow
def test_every_rank_has_a_row_and_a_snapshot(phantom, tmp_path, still_running):
    (tmp_path / "ranks.py").write_text(RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "ranks.py"]
    run = phantom("--gpu", "t4:2", "--json", "--steps", "2", "--snapshot", "m.pickle", "--", *launcher)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert [(each["rank"], each["device"]) for each in told["processes"]] == [(0, 0), (1, 1)]
    assert told["snapshots"] == ["m.rank0.pickle", "m.rank1.pickle"]
    assert all((tmp_path / name).exists() for name in told["snapshots"])
    assert not still_running()


@pytest.mark.slow
@pytest.mark.parametrize("reaches_the_job", [True, False])
def test_ctrl_c_ends_the_job_which_is_told_all_the_same(started, tmp_path, still_running, reaches_the_job):
    run = started("--gpu", "t4", "--snapshot", "memory.pickle", "--", HOLDS)
    assert run.stdout.readline().startswith("holds")
    if reaches_the_job:
        os.killpg(run.pid, signal.SIGINT)
    else:
        run.send_signal(signal.SIGTERM)
    assert run.wait() == 130  # its input stays open, so that nothing else can end it
    _, errors = run.communicate()
    assert errors.count("KeyboardInterrupt") == 1
    assert ": interrupted after" in errors
    assert "9.00 GiB" in errors
    assert (tmp_path / "memory.pickle").exists()
    assert not still_running()


def test_a_killed_brim_leaves_nothing_running(started, still_running):
    job = "import os; os.setsid(); print('started', flush=True); input()"
    run = started("--gpu", "t4", "--", sys.executable, "-c", job)
    assert run.stdout.readline() == "started\n"
    run.kill()
    assert run.wait() == -signal.SIGKILL
    psutil.wait_procs(still_running(), timeout=20)
    assert not still_running()
    for stream in (run.stdin, run.stdout, run.stderr):
        stream.close()


@pytest.mark.slow
def test_two_phantoms_at_once_do_not_see_each_other(started):
    runs = [started("--gpu", "t4", "--", HOLDS) for _ in range(2)]
    held = {run.stdout.readline() for run in runs}
    ends = [run.communicate("\n") for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends
    assert len(held) == 1


@pytest.mark.slow
def test_on_a_terminal_a_line_below_the_output_says_what_is_held(started):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))

    def own_the_terminal():
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    run = started(
        *("--gpu", "t4", "--", HOLDS.replace("input()", "print(input(), flush=True)")),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=own_the_terminal,
    )
    os.close(theirs)
    shown = b""
    while b"brim t4 cuda:0" not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"typed\n")
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how a terminal says that nobody has it any more
        os.close(ours)
    assert run.wait() == 0
    before, _, after = shown.partition(b"\x1b[1;29r")
    assert b"holds" in before + after
    assert b"9.32 GiB of 14.8 GiB" in after
    assert b"typed\r\ntyped\r\n" in after
    assert after.index(b"\x1b[r") < after.index(b"on a phantom GPU (t4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "t4"], "Nothing stands after --. Name the command: brim phantom --gpu"),
        (["--", "true"], "Which GPU? Pass --gpu"),
        (["--gpu", "voodoo", "--", "true"], "There is no GPU 'voodoo'"),
        (["--gpu", "mi300x", "--", "true"], "ROCm"),
        (["--gpu", "t4:17", "--", "true"], "A machine of phantoms has 1 to 16"),
        (["--gpu", "t4", "--memory", "2GiB", "--", "true"], "Pass one --gpu or --memory"),
        (["--gpu", "t4", "--steps", "0", "--", "true"], "--steps is 0"),
        (["--gpu", "t4", "--", "no-such-program"], "There is no program 'no-such-program'"),
        (["--gpu", "t4", "--", "python", "absent.py"], "There is no file absent.py"),
        (["--gpu", "t4", "--", "true", "{batch}"], "brim predict --gpu NAME -- true {batch}"),
        (["--gpu", "t4", "--snapshot", "absent/memory.pickle", "--", "true"], "Name a file in a folder that is there"),
    ],
)
def test_bad_input_is_told_with_what_to_do(phantom, words, said):
    run = phantom(*words)
    assert run.returncode == 2
    assert said in run.stderr


@pytest.mark.parametrize("words", [["phantom", "--gpu", "t4", "--", "true"], ["demo", "--gpu", "t4"]])
def test_torch_without_cuda_has_no_phantom(brim_cli, words):
    run = brim_cli(*words)
    assert (run.returncode, run.stdout) == (2, "")
    assert "built without CUDA" in run.stderr
    assert "pip install torch" in run.stderr


@pytest.mark.long
def test_the_demo_predicts_its_workload_for_a_gpu_that_is_not_there(brim_cli):
    run = brim_cli("demo", "--gpu", "rtx-4090", "--json", env=with_cuda_torch())
    assert run.returncode == 0, run.stderr
    few, many = json.loads(run.stdout)["predictions"]
    assert few["engine"] == many["engine"] == "phantom"
    assert few["largest"] > many["largest"] > 0
