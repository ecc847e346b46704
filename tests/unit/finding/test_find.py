"""brim.find on real child processes under a real kernel limit."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from tests.conftest import WORKLOADS

import brim
from brim.cases import Case
from brim.devices import Device
from brim.errors import InputError, UnclearError, WorkloadError
from brim.finding import LogObserver
from brim.finding.case_search import CaseSearch
from brim.findings import Probe, Verdict
from brim.probing import Outcome
from brim.probing.outcome import Traced
from brim.searching import Bounds

SIMPLE = f"{WORKLOADS}/simple.py"
FAULTS = f"{WORKLOADS}/faults.py"
MEMORY = "640MiB"
MIB = 2**20


def find(address, **settings):
    return brim.find(address, **{"device": "cpu", "memory": MEMORY, "cache": False, **settings})


@pytest.mark.usefixtures("heap")
def test_the_largest_microbatch_is_found_and_one_half_as_large_again_does_not_fit():
    finding = find(f"{SIMPLE}:Train")[0]
    assert finding.status == "found"
    assert finding.confirmed
    assert finding.stopped_by == "memory"
    fitted = [probe for probe in finding.probes if probe.microbatch == finding.microbatch]
    assert [probe.verdict for probe in fitted] == ["fits", "fits"]
    assert all(probe.steps == 3 and probe.samples == 3 * finding.microbatch for probe in fitted)
    assert all(probe.calls == {"forward": 3, "backward": 3, "optimizer": 3} for probe in fitted)
    assert finding.peak_bytes <= 0.9 * 640 * 2**20
    bigger = find(f"{SIMPLE}:Train", start=int(finding.microbatch * 1.5), tries=1)[0]
    assert bigger.probes[0].verdict == "oom"


@pytest.mark.long
def test_every_case_has_an_answer_of_its_own_that_does_not_depend_on_the_others():
    alone = find(f"{SIMPLE}:Evaluate", cases=[{"rows": 256}])
    together = find(f"{SIMPLE}:Evaluate", cases=[{"rows": 128}, {"rows": 256}])
    assert together[{"rows": 128}].microbatch > 1.5 * together[{"rows": 256}].microbatch
    assert together[{"rows": 256}].microbatch == pytest.approx(alone[0].microbatch, rel=0.03)
    assert together.microbatch == together[{"rows": 256}].microbatch
    assert together.kind == "eval"


@pytest.mark.usefixtures("heap")
def test_a_workload_that_cannot_be_traced_is_searched_by_probes_alone(caplog):
    caplog.set_level("INFO", logger="brim")
    finding = find(f"{SIMPLE}:Untraceable")[0]
    assert finding.predicted is None
    assert finding.confirmed
    assert "searching by measured probes alone" in caplog.text


def test_a_name_that_the_workload_never_asks_for_is_warned_of_once(caplog):
    findings = find(f"{SIMPLE}:Evaluate", cases=[{"row": 128}, {"row": 256}], cap=2)
    assert len(findings.findings) == 2
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings.count("row in the case changes nothing in the workload, which asks for rows.") == 1


def test_a_trace_predicts_the_answer():
    finding = find(f"{SIMPLE}:Train")[0]
    assert finding.predicted["largest"] == pytest.approx(finding.microbatch, rel=0.5)
    assert len(finding.probes) <= 5


def test_a_gap_below_the_answer_is_told():
    class Prober:
        ranks = 1

        def trace(self, case, *, cap, steps):
            return Traced(points={10: 10 * MIB, 20: 20 * MIB}, gap_from=12)

        def probe(self, case, microbatch, *, steps, confirms=False, mix=(), race=None):
            ran = {"peak_bytes": microbatch * MIB, "steps": steps, "samples": steps * microbatch}
            return Outcome(probe=Probe(microbatch=microbatch, verdict=Verdict.FITS, **ran))

    device = Device(name="cpu", memory_bytes=20 * MIB, fill=1.0)
    settings = {"bounds": Bounds(), "steps": 3, "make_strategy": lambda case: None, "observer": LogObserver()}
    finding = CaseSearch(prober=Prober(), case=Case({}), device=device, **settings).run()
    assert finding.microbatch == 20
    assert "sizes from about 12 to shortly below this one need more memory" in finding.note


@pytest.mark.usefixtures("heap")
@pytest.mark.parametrize(("sample_bytes", "is_told"), [(2 * MIB, True), (MIB, False)])
def test_what_helps_is_told_where_the_heap_wastes_much(sample_bytes, is_told):
    class Prober:
        ranks = 1

        def trace(self, case, *, cap, steps):
            return Traced(points={10: 10 * MIB, 20: 20 * MIB}, slope=sample_bytes / MIB)

        def probe(self, case, microbatch, *, steps, confirms=False, mix=(), race=None):
            ran = {"peak_bytes": microbatch * sample_bytes, "steps": steps, "samples": steps * microbatch}
            return Outcome(probe=Probe(microbatch=microbatch, verdict=Verdict.FITS, **ran))

    device = Device(name="cpu", memory_bytes=40 * MIB, fill=1.0)
    settings = {"bounds": Bounds(cap=20), "steps": 3, "make_strategy": lambda case: None, "observer": LogObserver()}
    finding = CaseSearch(prober=Prober(), case=Case({}), device=device, **settings).run()
    assert ("MALLOC_MMAP_THRESHOLD_" in (finding.note or "")) is is_told


@pytest.mark.parametrize(("sample_bytes", "is_told"), [(MIB, True), (1.9 * MIB, False)])
def test_a_size_that_is_far_too_large_just_above_the_answer_means_that_steps_differ(sample_bytes, is_told):
    class Prober:
        ranks = 1

        def trace(self, case, *, cap, steps):
            return Traced(problem="it is a script")

        def probe(self, case, microbatch, *, steps, confirms=False, mix=(), race=None):
            if microbatch > 48:  # a rare long text met it
                return Outcome(probe=Probe(microbatch=microbatch, verdict=Verdict.OOM))
            ran = {"peak_bytes": int(microbatch * sample_bytes), "steps": steps, "samples": steps * microbatch}
            return Outcome(probe=Probe(microbatch=microbatch, verdict=Verdict.FITS, **ran))

    device = Device(name="cuda:0", memory_bytes=96 * MIB, fill=1.0)
    settings = {"bounds": Bounds(), "steps": 3, "make_strategy": lambda case: None, "observer": LogObserver()}
    finding = CaseSearch(prober=Prober(), case=Case({}), device=device, **settings).run()
    assert finding.microbatch == 48
    assert ("microbatch 49 was out of memory while 48 fills 50%" in (finding.note or "")) is is_told


def test_cap_start_and_multiple_hold():
    finding = find(f"{SIMPLE}:WithTies", memory="1GiB", cap=13, start=8, multiple_of=4)[0]
    assert (finding.microbatch, finding.stopped_by) == (12, "cap")
    assert finding.probes[0].microbatch == 8
    assert all(probe.microbatch % 4 == 0 for probe in finding.probes)


def test_nothing_fits_says_what_it_would_take():
    finding = find(f"{SIMPLE}:Huge")[0]
    assert (finding.status, finding.microbatch, finding.confirmed) == ("nothing_fits", None, False)
    assert finding.note.startswith("microbatch 1 needs about")
    assert finding.probes[-1].verdict == "oom"


@pytest.mark.parametrize(("start", "remedy"), [(None, "or a lower cap"), (16, "or a lower start or cap")])
def test_where_no_size_tried_fits_a_lower_start_is_named_if_one_was_given(start, remedy):
    finding = find(f"{SIMPLE}:Huge", strategy="estimate", cap=64, start=start, tries=1)[0]
    assert finding.answer == "none found"
    assert finding.note.startswith("no size tried fits into")
    assert finding.note.endswith(remedy)


def test_a_process_above_its_limit_is_out_of_memory_however_little_the_job_takes():
    finding = find(f"{SIMPLE}:Normalized", memory="180MiB", start=2)[0]
    assert finding.status == "nothing_fits"
    assert all(probe.verdict == "oom" for probe in finding.probes)
    assert "before the workload is built, above the limit of 162 MiB" in finding.probes[0].detail


def test_a_strategy_of_the_users_own_is_used():
    @dataclasses.dataclass
    class OnlySeven:
        name: str = "seven"

        def propose(self, known):
            return None if known.trials else 7

    findings = find(f"{SIMPLE}:Train", strategy=OnlySeven())
    assert findings.strategy == "seven"
    assert findings[0].microbatch == 7


@pytest.mark.parametrize(
    ("name", "message", "phase"),
    [
        ("BuildRaises", "build failed at microbatch .*KeyError: 'no such checkpoint'", "build"),
        ("BatchRaises", "batch failed at microbatch .*ValueError: the data is gone", "batch"),
        ("StepRaises", "step failed at microbatch .*ZeroDivisionError: loss divided by nothing", "step"),
        ("StepInterrupts", "step failed at microbatch .*KeyboardInterrupt: no more", "step"),
        ("StepExits", "step failed at microbatch .*SystemExit: enough", "step"),
        ("WrongBatch", r"batch failed .*batch\(.*\) returned tensors of shape \(7, 128, 4096\)", "batch"),
        ("CallsItMemory", "illegal memory access", "step"),
    ],
)
def test_an_error_of_the_workload_is_raised_once_and_never_read_as_an_oom(name, message, phase, caplog):
    caplog.set_level("INFO", logger="brim")
    with pytest.raises(WorkloadError, match=message) as caught:
        find(f"{FAULTS}:{name}", cap=16)
    assert caught.value.phase == phase
    assert "measured probes alone" not in caplog.text
    if name not in ("WrongBatch",):
        assert "faults.py" in caught.value.traceback
        assert "brim/probing" not in caught.value.traceback


@pytest.mark.parametrize(("address", "is_told"), [(f"{SIMPLE}:Normalized", True), (f"{FAULTS}:StepRaises", False)])
def test_a_higher_start_is_advised_only_where_batch_norm_refused_a_single_sample(address, is_told):
    with pytest.raises(WorkloadError, match="step failed at microbatch 1:") as caught:
        find(address, cap=16, start=1)
    assert ("--start 2" in str(caught.value)) is is_told


@pytest.mark.parametrize(
    ("name", "missing"),
    [("DoesNothing", "forward or backward pass"), ("NoBackward", "backward pass"), ("NoOptimizer", "optimizer step")],
)
def test_a_probe_that_did_not_do_its_work_is_an_error(name, missing):
    with pytest.raises(brim.BrimError, match=f"without a single {missing}"):
        find(f"{FAULTS}:{name}", cap=4)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Sigkilled", "was ended by SIGKILL.*memory. Run the workload by itself"),
        ("Segfaults", "was ended by SIGSEGV.*memory. Run the workload by itself"),
        ("EndedInRealTime", "was ended by signal 40.*memory. Run the workload by itself"),
        ("Hangs", "made no progress for 3 s.*memory. Raise --timeout if it is only slow, or run"),
    ],
)
def test_a_death_for_no_known_reason_is_tried_again_and_then_an_error(name, how):
    with pytest.raises(UnclearError, match=f"ended 3 times for no known reason.*{how}") as caught:
        find(f"{FAULTS}:{name}", cap=4, strategy="doubling", timeout=3)
    assert caught.value.microbatch == 1


def test_what_a_workload_writes_into_brims_own_pipe_is_passed_over():
    assert find(f"{FAULTS}:WritesAnywhere", cap=2)[0].microbatch == 2


def test_an_endless_message_is_told_in_part():
    with pytest.raises(WorkloadError, match="ValueError: much") as caught:
        find(f"{FAULTS}:SaysMuch", cap=2)
    assert len(str(caught.value)) < 1_000
    assert "characters are left out" in caught.value.traceback
    assert len(caught.value.traceback) < 30_000


def test_what_is_shown_of_a_death_is_that_of_the_last_probe_alone():
    with pytest.raises(UnclearError) as caught:
        find(f"{FAULTS}:Segfaults", cap=4)
    assert caught.value.log_tail.startswith("Fatal Python error: Segmentation fault")
    assert caught.value.log_tail.count("Fatal Python error") == 1


def test_a_probe_that_died_once_gets_another_chance():
    finding = find(f"{FAULTS}:DiesOnce", cap=4)[0]
    assert [probe.verdict for probe in finding.probes] == ["unclear", "fits", "fits"]
    assert finding.microbatch == 4


def test_a_memory_error_of_python_is_an_oom():
    finding = find(f"{FAULTS}:PythonMemory")[0]
    failed = find(f"{FAULTS}:PythonMemory", start=64, tries=1)[0]
    assert 1 <= finding.microbatch < 64
    assert failed.probes[0].verdict == "oom"
    assert failed.probes[0].detail.startswith("MemoryError")


def test_what_a_workload_starts_and_forgets_is_ended_with_it(still_running):
    find(f"{FAULTS}:LeavesChildren", cap=2)
    assert not still_running()


def test_a_trace_has_no_more_memory_than_the_job_and_some_for_itself(caplog):
    caplog.set_level("INFO", logger="brim")
    finding = find(f"{FAULTS}:MakesArrays")[0]
    assert 1 <= finding.microbatch < 9
    assert "MemoryError" in caplog.text  # of 32 samples


def test_a_module_that_starts_threads_gets_a_new_process_for_every_probe():
    finding = find(f"{WORKLOADS}/threads_at_import.py:Train", cap=4)[0]
    assert finding.microbatch == 4
    assert finding.predicted is not None, "a process that must not fork traces in itself"
    assert finding.confirmed


def test_ctrl_c_keeps_what_was_found_and_leaves_no_process(caplog):
    class InterruptSecondCase(brim.finding.LogObserver):
        def probe_started(self, case, ask):
            if case["rows"] == 256:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(5)

    with pytest.raises(KeyboardInterrupt) as caught:
        find(f"{SIMPLE}:Evaluate", cases=[{"rows": 128}, {"rows": 256}], cap=4, observer=InterruptSecondCase())
    assert [finding.microbatch for finding in caught.value.findings] == [4]


def test_findings_made_before_an_error_are_kept():
    with pytest.raises(WorkloadError) as caught:
        find(f"{FAULTS}:FailsForLongRows", cases=[{"rows": 128}, {"rows": 256}], cap=4)
    assert [finding.microbatch for finding in caught.value.findings] == [4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": 0}, "cap is 0. Use a whole number of at least 1"),
        ({"memory": "12parsecs"}, "'12parsecs' is not a memory size"),
        ({"fill": 1.7}, "fill is 1.7"),
        ({"cases": []}, "list of cases is empty"),
        ({"strategy": "guess"}, "Use one of: guided, estimate, doubling"),
        ({"strategy": "estimate"}, "Pass cap=64"),
        ({"strategy": None}, "The strategy is None. Use guided, estimate, doubling, or an object"),
        ({"device": None}, "The device is None. Use auto, cpu or cuda:N"),
        ({"cases": 3}, "`cases` must be a list of mappings, not 3"),
        ({"cases": [None]}, "`cases` must be a list of mappings"),
        ({"refine": True}, "refine goes with the strategy `doubling`"),
        ({"ranks": 0}, "ranks is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"time_limit": "0"}, "above zero"),
        ({"isolate": False, "timeout": 3}, "cannot be ended"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(settings, message):
    with pytest.raises(InputError, match=message):
        find(f"{SIMPLE}:Train", **settings)


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (type("Mine", (brim.Workload,), {})(), r"Mine\(\) is an instance. Pass the class Mine"),
        (None, "None is not a brim.Workload. Write `class Name"),
        (dict, r"dict is not a brim.Workload. Write `class dict\(brim.Workload\)`"),
    ],
)
def test_what_is_no_class_of_workloads_is_refused(given, message, isolate):
    with pytest.raises(InputError, match=message):
        brim.find(given, device="cpu", isolate=isolate)


def test_a_limit_above_what_the_machine_has_is_warned_of(caplog):
    find(f"{SIMPLE}:Evaluate", memory="900TiB", cap=1)
    assert "more than this machine has" in caplog.text


def test_pythons_own_traceback_shows_the_line_of_the_workload():
    with pytest.raises(WorkloadError) as caught:
        find(f"{FAULTS}:StepRaises", cap=1, strategy="doubling")
    shown = "".join(traceback.format_exception(caught.value))
    assert "faults.py" in shown
    assert "ZeroDivisionError: loss divided by nothing" in shown


def test_time_ends_a_search_with_the_largest_that_fitted():
    finding = find(f"{SIMPLE}:Train", strategy="doubling", refine=True, time_limit="10ms")[0]
    assert (finding.microbatch, finding.stopped_by, finding.confirmed) == (1, "time", True)


def test_a_call_without_a_main_guard_is_refused_where_the_file_is_loaded_again(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(SIMPLE).parent)!r})\n"
        "import brim\nfrom simple import Train\n\n\nclass Mine(Train):\n    pass\n\n\n"
        'brim.find(Mine, memory="640MiB", device="cpu", cap=2, cache=False)\n'
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert 'Put the call under `if __name__ == "__main__":`' in ended.stderr


def test_a_model_that_cannot_train_on_one_sample_is_searched_above_it():
    finding = find(f"{SIMPLE}:Normalized", memory="640MiB", device="cpu", cap=16, cache=False)[0]
    assert finding.microbatch == 16


def test_an_error_at_a_single_sample_says_where_to_start():
    with pytest.raises(WorkloadError, match="start=2"):
        find(f"{SIMPLE}:Normalized", memory="640MiB", device="cpu", cap=16, cache=False, start=1)
