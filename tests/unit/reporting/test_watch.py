import io
from dataclasses import replace
from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from brim.planning import BatchPlan
from brim.planning.expectation import Expectation
from brim.project import KeptPlan
from brim.reporting.watch import WatchView, log_line
from brim.watching.samples import DeviceSample, ProcessSample

GIB = 2**30
LONG = "python train.py --learning-rate 1e-3 --epochs 12 --out somewhere/far/away --seed 17"
GPU = DeviceSample(
    name="cuda:0",
    title="Fake RTX [bold]",
    used_bytes=12 * GIB,
    total_bytes=24 * GIB,
    utilization=0.73,
    watts=240.0,
    most_watts=350.0,
    processes=(ProcessSample(pid=42, name="python [x]", used_bytes=None),),
)
GONE = DeviceSample(name="cuda:1", title="Fake RTX", used_bytes=0, total_bytes=0, is_gone=True)
CPU = DeviceSample(name="cpu", title="8 cores", used_bytes=GIB, total_bytes=64 * GIB, utilization=0.1)
PLAN = KeptPlan(
    number=2,
    made=datetime(2026, 11, 16, tzinfo=timezone.utc),
    plan=BatchPlan(effective=64),
    expected=Expectation(memory_bytes=24 * GIB, peak_low_bytes=18 * GIB, peak_high_bytes=22 * GIB, gpu="rtx-3090"),
)


def drawn(width, devices=(GPU, GONE, CPU), plan=PLAN, height=25, note="q leaves", job=""):
    view = WatchView(plan=plan, note=note)
    view.update(devices, job=job)
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(view)
    return console.file.getvalue()


def test_a_device_shows_what_it_holds_does_and_draws():
    text = drawn(100)
    assert "cuda:0  Fake RTX [bold]   73% busy  240 of 350 W" in text
    assert "50%  12.0 GiB of 24.0 GiB" in text
    assert "42" in text
    assert "not told  python [x]" in text
    assert "cuda:1  Fake RTX  does not answer any more" in text


def test_the_plans_peak_is_marked_on_the_kind_of_device_it_is_for():
    marked = [line for line in drawn(100).splitlines() if "┃" in line]
    assert len(marked) == 2
    assert "12.0 GiB of 24.0 GiB" in marked[0]
    assert "plan 2 fills 18.0 GiB to 22.0 GiB" in marked[1]
    assert "┃" not in drawn(100, devices=(CPU,))
    assert "┃" not in drawn(100, plan=None)


@given(width=st.integers(12, 200))
def test_no_line_is_longer_than_the_terminal(width):
    assert max(map(len, drawn(width).splitlines())) <= width


@given(width=st.integers(33, 69))
def test_a_narrow_terminal_wraps_and_cuts_nothing(width):
    text = " ".join(drawn(width).split())
    assert "…" not in text
    for words in (
        "240 of 350 W",
        "12.0 GiB of 24.0 GiB",
        "plan 2 fills 18.0 GiB to 22.0 GiB",
        "does not answer any more",
    ):
        assert words in text


BUSY = replace(CPU, processes=tuple(ProcessSample(pid=n, name="p", used_bytes=GIB, command=LONG) for n in range(5)))


def test_processes_are_shown_on_narrow_terminals_too_and_while_a_job_runs():
    for settings in ({"width": 34}, {"width": 90, "note": "", "job": "the job holds 1 GiB"}):
        text = drawn(devices=(BUSY,), **settings)
        assert text.count("python train.") + text.count("python tr") >= 5
        assert max(map(len, text.splitlines())) <= settings["width"]


def test_few_rows_keep_the_foot_and_the_bars_and_cut_processes_first():
    note = "q leaves  No NVIDIA driver answers here, so this is the CPU alone."
    text = drawn(40, devices=(BUSY,), height=8, note=note)
    assert len(text.splitlines()) == 8
    assert "CPU alone." in text
    assert "1.00 GiB of 64.0 GiB" in text
    assert 0 < text.count("python") < 5
    many = [replace(GPU, name=f"cuda:{n}") for n in range(8)]
    text = drawn(100, devices=many, height=8)
    assert len(text.splitlines()) <= 8
    assert "and 5 more: too few rows" in text
    assert "q leaves" in text


def test_the_line_of_a_job_leaves_room_for_what_the_terminal_writes_on_ctrl_c():
    text = drawn(40, devices=(CPU,), note="", job="x" * 40)
    assert max(map(len, text.splitlines()[-2:])) == 38


def test_a_plan_that_would_be_marked_in_the_first_cell_is_only_told_of():
    small = replace(PLAN, expected=Expectation(memory_bytes=GIB, peak_low_bytes=GIB // 4, peak_high_bytes=GIB // 2))
    text = drawn(100, devices=(CPU,), plan=small)
    assert "┃" not in text
    assert "plan 2 fills 256 MiB to 512 MiB" in text


def test_a_terminal_too_narrow_is_told_so_in_one_line():
    assert drawn(25) == "25 columns; needs 33\n"


def test_a_log_has_one_line():
    line = log_line((GPU, GONE, CPU), "step 3")
    assert line == (
        "cuda:0 12.0 GiB of 24.0 GiB (50%), 73% busy, 240 W · cuda:1 does not answer any more · "
        "cpu 1.00 GiB of 64.0 GiB (2%), 10% busy · step 3"
    )
