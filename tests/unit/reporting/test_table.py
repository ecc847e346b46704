import io
from dataclasses import replace

import pytest
from rich.console import Console

from brim.cases import Case
from brim.findings import FASTEST, LARGEST, Finding, Findings, Probe, Verdict
from brim.history import Remembered
from brim.planning.throughput import measure_throughput
from brim.reporting.live import LiveObserver
from brim.reporting.table import findings_table, history_table, notes_of
from brim.searching import Ask

FITS = Probe(microbatch=28, verdict=Verdict.FITS, peak_bytes=800, step_seconds=0.5)
FOUND = Finding(case=Case({"name": "[red]x"}), microbatch=28, stopped_by="memory", confirmed=True, probes=(FITS,))
NOTHING = Finding(
    case=Case({"name": "big"}), microbatch=None, stopped_by="memory", confirmed=False, probes=(), note="needs 2 GiB"
)
FINDINGS = Findings(
    workload="a[b]c.py:T",
    kind="eval",
    device_name="cpu",
    memory_bytes=1000,
    fill=1.0,
    strategy="guided",
    findings=(FOUND, NOTHING),
)


def shown(renderable, width=150):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def shown_findings(findings, width=150):
    return shown(findings_table(findings, Console(file=io.StringIO(), width=width)), width)


def test_the_table_shows_the_answer_its_fill_and_its_rate():
    text = shown_findings(FINDINGS)
    assert "28" in text
    assert "80%" in text
    assert "56.0" in text
    assert "nothing fits" in text


def test_the_rate_in_the_table_is_that_of_the_curve_which_the_note_under_it_speaks_of():
    laps = {14: (0.4, 0.4), 28: (0.7, 0.7)}
    curve = measure_throughput([replace(FITS, laps=laps)])
    raced = replace(FOUND, throughput=curve.to_dict(), note=curve.describe())
    assert "best rate 40.0/s at 28" in raced.note
    text = shown_findings(replace(FINDINGS, findings=(raced,)))
    assert "40.0" in text
    assert "56.0" not in text
    assert raced.to_dict()["samples_per_second"] == 56


@pytest.mark.parametrize(
    ("width", "kept", "dropped"), [(80, ["samples/s", "stopped by"], ["fill"]), (45, [], ["fill", "OOMs", "time"])]
)
def test_a_narrow_table_drops_columns_and_keeps_the_answers_whole(width, kept, dropped):
    found, nothing = (
        replace(finding, case=Case({"seq": seq})) for finding, seq in ((FOUND, 900001), (NOTHING, 900002))
    )
    text = shown_findings(replace(FINDINGS, findings=(found, nothing)), width)
    rows = text.splitlines()
    assert any("seq=900001" in row and " 28 " in row and "800 B" in row for row in rows)
    assert any("seq=900002" in row and "nothing fits" in row for row in rows)
    assert any(all(name in row for name in ["case", "microbatch", "peak", *kept]) for row in rows)
    assert not any(name in text for name in dropped)
    assert "…" not in text
    assert max(map(len, rows)) <= width


def test_a_case_wider_than_the_terminal_goes_on_in_the_next_line():
    case = Case({"name": "x" * 50})
    text = shown_findings(replace(FINDINGS, findings=(replace(FOUND, case=case), NOTHING)), 45)
    assert text.count("x") == 50
    assert "nothing fits" in text


def test_the_history_names_goals_only_where_they_differ():
    largest, fastest = (
        Remembered(created=0, workload="t.py:T", device="cpu", limit_bytes=2**30, goal=goal, finding=FOUND)
        for goal in (LARGEST, FASTEST)
    )
    assert "goal" not in shown(history_table([largest], now=1))
    told = shown(history_table([largest, fastest], now=1))
    assert "largest" in told
    assert "fastest" in told


def test_text_from_users_is_not_taken_for_markup():
    text = shown_findings(FINDINGS)
    assert "name=[red]x" in text
    assert "a[b]c.py:T" in text


def test_notes_name_their_cases():
    assert notes_of(FINDINGS) == ["name=big: needs 2 GiB"]


def test_the_live_view_keeps_to_half_the_screen_around_the_current_case():
    console = Console(file=io.StringIO(), width=100, height=10, force_terminal=True)
    observer = LiveObserver(console)
    cases = [Case({"n": n}) for n in range(50)]
    observer.started(cases, limit_bytes=1000)
    observer.case_started(cases[30])
    observer.probe_started(cases[30], Ask(7))
    text = shown(observer._draw(), width=100)
    assert "n=30" in text
    assert "probing 7" in text
    assert "n=49" not in text
    assert "and 45 more cases" in text


def test_the_live_view_says_that_the_workload_is_loaded_until_a_case_starts_or_a_note_comes():
    case = Case({"seq": 64})
    ends = [
        lambda observer: observer.case_started(case),
        lambda observer: observer.probe_started(case, Ask(7)),
        lambda observer: observer.note("waiting for other nodes"),
    ]
    for end in ends:
        observer = LiveObserver(Console(file=io.StringIO(), width=100, force_terminal=True))
        observer.started([case], limit_bytes=1000)
        assert "loading the workload" in shown(observer._draw())
        end(observer)
        assert "loading the workload" not in shown(observer._draw())


def test_equal_notes_are_one_line_and_many_cases_are_counted():
    found = [replace(FINDINGS[0], case=Case({"n": n}), note="alike" if n < 4 else None) for n in range(5)]
    assert notes_of(replace(FINDINGS, findings=tuple(found))) == ["4 cases: alike"]
    assert notes_of(replace(FINDINGS, findings=tuple(found[:4]))) == ["alike"]
    assert notes_of(replace(FINDINGS, findings=tuple(found[3:]))) == ["n=3: alike"]
