import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import InputError
from brim.watching.following import follow
from brim.watching.job import Job
from brim.watching.telling import ENVIRONMENT, Diary, StepTimes
from brim.watching.told import Told, read_told

MIB = 2**20


def watched(code, show=lambda devices, sample: None):
    printed = {"stdout": b"", "stderr": b""}

    def output(name, chunk):
        printed[name] += chunk

    with Job([sys.executable, "-c", code], output=output) as job:
        seen = follow(job, show, 0.1)
    return seen, printed


def test_samples_of_a_job_say_what_it_holds_and_how_it_gets_on(tmp_path):
    go, samples = tmp_path / "go", []

    def show(devices, sample):
        samples.append(sample)
        if sample.step_seconds is not None:
            go.touch()

    code = f"import brim, os\nheld = bytearray(50 * 2**20)\nwhile not os.path.exists({str(go)!r}): brim.log_step()"
    seen, _ = watched(code, show)
    assert seen.exit_code == 0
    assert 0 < samples[-1].num_steps <= seen.told.num_steps
    assert max(sample.host_bytes for sample in samples) > 50 * MIB  # the last may be of its end
    assert samples[-1].gpu_bytes is None
    assert f", step {samples[-1].num_steps:,}, " in samples[-1].describe()


def test_the_memory_of_the_job_and_its_children_is_seen(tmp_path):
    # Each child says when it holds its memory and then waits to be told to end, as the job does.
    child = "held = bytearray(150 * 2**20); print('held', flush=True); input()"
    go = tmp_path / "go"
    code = (
        "import os, subprocess, sys, time\n"
        f"run = lambda: subprocess.Popen([sys.executable, '-c', {child!r}], stdin=-1, stdout=-1, text=True)\n"
        "children = [run(), run()]\n"
        "assert all(child.stdout.readline() for child in children)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "[child.communicate('end') for child in children]\n"
    )

    def show(devices, sample):
        if sample.host_bytes >= 300 * MIB:
            go.touch()

    seen, _ = watched(code, show)
    assert seen.exit_code == 0
    assert seen.host_peak_bytes > 300 * MIB


def test_output_arrives_as_it_is_and_an_oom_in_it_is_seen():
    seen, printed = watched(
        "import sys; sys.stdout.write('50%\\r100%\\n'); sys.stderr.write('CUDA out of memory. Tried 2 GiB\\n'); exit(3)"
    )
    assert printed == {"stdout": b"50%\r100%\n", "stderr": b"CUDA out of memory. Tried 2 GiB\n"}
    assert seen.exit_code == 3
    assert seen.oom_lines == ("CUDA out of memory. Tried 2 GiB",)
    assert not seen.was_oom_killed


def test_what_brim_itself_recovered_from_is_an_oom():
    seen, _ = watched(
        "import brim, torch\n"
        "@brim.recover\n"
        "def evaluate(batch):\n"
        "    if len(batch) > 4: raise torch.OutOfMemoryError\n"
        "    return batch\n"
        "evaluate(torch.zeros(8))\n"
    )
    assert seen.exit_code == 0
    assert len(seen.oom_lines) == 1
    assert "evaluate: out of memory with a batch of 8; going on with 4" in seen.oom_lines[0]


def test_steps_that_the_job_tells_are_counted():
    seen, _ = watched("import brim\nfor _ in range(4): brim.log_step()")
    assert seen.told.num_steps == 4
    assert seen.told.step_seconds > 0
    assert seen.told.allocator_retries is None


def test_a_program_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="no-such-program cannot be started: No such file"):
        Job(["no-such-program"], output=print).__enter__()


def test_a_job_that_is_interrupted_is_ended(monkeypatch):
    def interrupt(devices, sample):
        raise KeyboardInterrupt

    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); time.sleep(600)"
    monkeypatch.setattr("brim.watching.job._LEAVE_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        watched(code, interrupt)


def test_without_a_watch_a_step_is_told_to_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.chdir(tmp_path)
    brim.log_step()
    assert list(tmp_path.iterdir()) == []


def test_ranks_are_added_up(tmp_path: Path):
    for pid, retries, seconds in ((11, 1, 0.5), (12, 2, 0.7)):
        record = {"pid": pid, "rank": pid - 11, "num_steps": pid, "step_seconds": seconds, "oom_errors": []}
        record |= {"allocator_retries": retries, "ooms": 0, "reserved_bytes": 10 * pid, "host_peak_bytes": 5 * pid}
        (tmp_path / f"{pid}.json").write_text(json.dumps(record))
    told = read_told(tmp_path)
    assert [process.rank for process in told.processes] == [0, 1]
    assert (told.num_steps, told.step_seconds, told.allocator_retries) == (12, 0.6, 3)
    assert (told.ooms, told.reserved_bytes, told.host_peak_bytes) == (0, 120, 60)
    assert read_told(tmp_path / "none") == Told()


def test_steps_that_a_job_tells_count_alone(tmp_path):
    diary = Diary(tmp_path)
    for _ in range(5):
        diary.see_step()
    for _ in range(3):
        diary.tell_step()
        diary.see_step()
    diary.write()
    assert read_told(tmp_path).num_steps == 3


@given(st.integers(min_value=1, max_value=20_000))
def test_kept_step_times_are_few_and_span_the_run(num_steps):
    times = StepTimes()
    for step in range(num_steps):
        times.add(float(step))
    assert abs(times.median() - (num_steps - 1) / 2) <= num_steps / 1000
    assert len(times._kept) <= 2000


PLAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
for _ in range(6):
    model(torch.randn(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def test_the_steps_of_a_script_that_knows_nothing_of_brim_are_seen_and_so_is_its_oom():
    seen, _ = watched(PLAIN + "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); torch.empty(2**60)")
    assert seen.told.num_steps == 6
    assert seen.told.step_seconds > 0
    (process,) = seen.told.processes
    assert process.host_peak_bytes > 50 * MIB
    assert "memory" in process.oom_errors[0]
    assert seen.oom_lines == ()


def test_a_hook_that_fails_leaves_the_job_alone_and_says_why(monkeypatch):
    monkeypatch.setattr("brim.watching.job.ONLOOKER", "brim.not_there")
    seen, printed = watched("import torch; print('ran')")
    assert printed["stdout"] == b"ran\n"
    assert seen.told == Told(hook_failure="ModuleNotFoundError: No module named 'brim.not_there'")


def test_telling_imports_no_torch():
    code = "import brim, sys; brim.log_step(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
class Data(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return {"x": torch.randn(4), "labels": torch.randn(1)}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}
arguments = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
                              report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
Trainer(Model(), arguments, train_dataset=Data()).train()
"""
LIGHTNING = """
import torch
import lightning.pytorch as pl
from torch.utils.data import DataLoader
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index): return self.layer(batch).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                     accumulate_grad_batches=2)
trainer.fit(Module(), DataLoader(torch.randn(24, 4), batch_size=2))
"""


@pytest.mark.long
@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_frameworks_are_seen_into_as_well(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen, printed = watched(script)
    assert seen.exit_code == 0, printed["stderr"].decode()
    assert seen.told.num_steps == 6
    assert seen.told.step_seconds > 0


@pytest.mark.long
def test_every_rank_of_a_launcher_is_seen(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    with Job(command, output=lambda name, chunk: None) as job:
        seen = follow(job, lambda devices, sample: None, 0.1)
    assert [(process.rank, process.num_steps) for process in seen.told.workers] == [(0, 6), (1, 6)]
