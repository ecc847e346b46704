import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import InputError, PlanFileError
from brim.planning import BatchPlan
from brim.planning.expectation import Expectation
from brim.project import FILE_NAME, PlanBook, find_file, read_book, write_book

NOON = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
GIB = 2**30


def keep(book, effective=256, accumulation=22, ranks=1, **settings):
    plan = BatchPlan(effective=effective, accumulation=accumulation, ranks=ranks)
    return book.with_plan(plan, **{"made": NOON, "source": "brim plan", "profile": None, "expected": None, **settings})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / ".git").mkdir()
    return tmp_path / FILE_NAME


plans = st.builds(
    lambda microbatch, accumulation, ranks: BatchPlan(
        effective=microbatch * accumulation * ranks, accumulation=accumulation, ranks=ranks
    ),
    st.integers(1, 10_000),
    st.integers(1, 100),
    st.integers(1, 64),
)


@given(kept=st.lists(st.tuples(plans, st.text(st.characters(codec="utf-8"), max_size=40)), min_size=1, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory, kept):
    path = tmp_path_factory.mktemp("project") / FILE_NAME
    book = PlanBook()
    for plan, source in kept:
        expected = Expectation(memory_bytes=24 * GIB, peak_low_bytes=18 * GIB, peak_high_bytes=22 * GIB)
        book = book.with_plan(plan, made=NOON, source=source, profile="balanced", expected=expected)
        write_book(path, book)
    assert read_book(path) == book


def test_comments_and_other_peoples_tables_survive(path):
    write_book(path, keep(PlanBook()))
    path.write_text(path.read_text() + '# the big cluster\n[tool]\nname = "x"\n')
    book = keep(read_book(path), effective=64, accumulation=2)
    write_book(path, book.with_verdict(1, "passed", judged=NOON))
    text = path.read_text()
    assert "# the big cluster" in text
    assert 'name = "x"' in text
    assert read_book(path).plans[0].verdict == "passed"
    assert read_book(path).active_number == 2


def test_a_file_that_others_began_is_taken_over(path):
    path.write_text('title = "x"\n\n[tool.lint]\nstrict = true  # always\n')
    book = keep(keep(PlanBook()))
    write_book(path, book)
    assert read_book(path) == book
    assert "strict = true  # always" in path.read_text()


def test_rolling_back_skips_what_failed_and_what_was_never_judged(path):
    book = PlanBook()
    for _ in range(4):
        book = keep(book)
    book = book.with_verdict(1, "passed", judged=NOON).with_verdict(2, "passed", judged=NOON)
    book = book.with_verdict(3, "failed", judged=NOON)
    assert book.rolled_back().active_number == 2
    assert book.rolled_back().rolled_back().active_number == 1
    assert book.rolled_back(to=3).active_number == 3


def test_without_a_plan_that_ran_well_it_says_which_there_are():
    book = keep(keep(PlanBook()))
    with pytest.raises(InputError, match=r"No plan before plan 2 .* Kept are: 1 \(not judged\), 2 \(not judged\)"):
        book.rolled_back()
    with pytest.raises(InputError, match="There is no plan 7"):
        book.rolled_back(to=7)
    with pytest.raises(InputError, match="No plan is kept"):
        PlanBook().rolled_back()


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        ("microbatch = 12", "microbatch = 13", "in 22 microbatches is microbatch 12, not 13"),
        ("microbatch = 12", 'microbatch = "12"', "microbatch is '12', and should be a whole number"),
        ("microbatch = 12", "micorbatch = 12", "there is no key 'micorbatch'"),
        ("microbatch = 12", "microbatch = 200", "over 1 rank in 22 microbatches is microbatch 12, not 200"),
        ("accumulation = 22", "accumulation = 0", "accumulation is 0"),
        ("accumulation = 22", "accumulation = ", "this is not TOML"),
        ("accumulation = 22", "accumulation = true", "accumulation is True"),
        ("accumulation = 22", "accumulation = 999", "microbatches leaves a microbatch without a sample"),
        ("effective = 256", "effective = -4", "effective is -4"),
        ("made = 2026-11-16T12:00:00Z", "made = 2026", "should be a date with its time"),
        ("active = 1", "active = 9", "active is 9, and the plans are 1"),
        ("[[plan]]", "[plan]", r"plans are written as \[\[plan\]\]"),
        ('source = "brim plan"', 'verdict = "fine"', "Use passed or failed"),
        ('source = "brim plan"', 'profile = "bold"', "There is no profile 'bold'"),
        ('source = "brim plan"', 'memory = "24GiB"\npeak = ["1GiB"]', r"should be \[least, most\]"),
        ('source = "brim plan"', 'memory = "9GiB"\npeak = ["2GiB", "1GiB"]', r"should be \[least, most\]"),
        ('source = "brim plan"', 'memory = "1GiB"\npeak = ["2GiB", "3GiB"]', "least no more than memory"),
        ('source = "brim plan"', 'memory = "1GiB"', "memory goes with peak, which is missing"),
        ('source = "brim plan"', 'memory = "lots"\npeak = ["1GiB", "2GiB"]', "'lots' is not a memory size"),
    ],
)
def test_nonsense_points_at_its_line(path, line, wrong, message):
    write_book(path, keep(PlanBook()))
    path.write_text(path.read_text().replace(line, wrong))
    with pytest.raises(PlanFileError, match=message) as caught:
        read_book(path)
    key = "effective" if "999" in wrong else "peak" if "least" in message else wrong.split(" ")[0]
    assert path.read_text().splitlines()[caught.value.line - 1].startswith(key)
    assert f"line {caught.value.line}: " in str(caught.value)


def test_a_wrong_accumulation_is_named_with_its_line_and_what_it_should_be(path):
    write_book(path, keep(PlanBook()))
    path.write_text(path.read_text().replace("accumulation = 22", "accumulation = 21"))
    with pytest.raises(PlanFileError, match=r"or accumulation, in line (\d+), should be 22") as caught:
        read_book(path)
    line = int(re.search(r"accumulation, in line (\d+)", str(caught.value))[1])
    assert path.read_text().splitlines()[line - 1] == "accumulation = 21"


def test_a_plan_that_lacks_something_points_at_the_plan(path):
    write_book(path, keep(keep(PlanBook())))
    path.write_text(path.read_text().replace("number = 2\n", ""))
    with pytest.raises(PlanFileError, match="this plan lacks number") as caught:
        read_book(path)
    assert path.read_text().splitlines()[caught.value.line - 1] == "[[plan]]"
    assert caught.value.line > 10


def test_two_plans_with_one_number_point_at_the_second(path):
    write_book(path, keep(keep(PlanBook())))
    path.write_text(path.read_text().replace("number = 2", "number = 1"))
    with pytest.raises(PlanFileError, match="a second plan has the number 1") as caught:
        read_book(path)
    assert path.read_text().splitlines()[caught.value.line - 1] == "number = 1"
    assert caught.value.line > 10


def test_a_script_reads_the_plan_from_a_folder_below(path, monkeypatch):
    write_book(path, keep(PlanBook(), effective=80, accumulation=4, ranks=5))
    below = path.parent / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    plan = brim.active_plan()
    assert (plan.microbatch, plan.accumulation, plan.ranks, plan.effective) == (4, 4, 5, 80)
    assert brim.active_plan(path) == brim.active_plan(path.parent) == plan


def test_another_number_of_ranks_is_refused(path, monkeypatch):
    write_book(path, keep(PlanBook(), effective=80, accumulation=4, ranks=5))
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert brim.active_plan().ranks == 5
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(InputError, match="is for 5 ranks, and this job has 8"):
        brim.active_plan()


def test_no_file_and_no_plan_say_how_to_keep_one(path):
    with pytest.raises(InputError, match=r"There is no brim\.toml .* --save"):
        brim.active_plan()
    path.write_text("# nothing yet\n")
    with pytest.raises(InputError, match="has no plan"):
        brim.active_plan()


def test_a_file_of_another_repository_is_not_taken(path):
    write_book(path, keep(PlanBook()))
    inner = path.parent / "inner"
    (inner / ".git").mkdir(parents=True)
    assert find_file(inner) is None
    assert find_file(path.parent) == path
