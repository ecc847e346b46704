"""The page's parts, without a browser."""

import contextlib
import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.reporting import documents as made

from brim.errors import InputError, RecordError
from brim.reporting.page import Document, read_documents, render_page
from brim.reporting.page.page import sections_of


def section(data):
    (found,) = sections_of([Document(source="x.json", schema=data["schema"], data=data)])
    return found


def page(*data):
    return render_page([Document(source="x.json", schema=each["schema"], data=each) for each in data])


def test_findings_read_back_are_what_was_written():
    from brim.findings import Findings

    written = made.findings()
    assert Findings.from_dict(written).to_dict() == written


def test_the_answer_is_the_first_thing_said_and_an_oom_is_on_the_chart():
    found = section(made.findings())
    assert dict(found.facts)["fits every case"] == "none"
    assert dict(found.facts)["OOMs"] == "2"
    assert found.tables[0].rows[0][1] == "64"
    assert found.tables[0].rows[1][1] == "nothing fits"
    (dots,) = [layer for layer in found.parts[0].charts[0].wide["layer"] if layer["mark"]["type"] == "point"]
    verdicts = [point["verdict"] for point in dots["data"]["values"]]
    assert verdicts == ["fits", "fits", "oom", "fits", "fits"]


def test_the_rate_has_its_line_and_its_knee_where_that_was_timed():
    data = made.findings()
    (_, rates) = section(data).parts[0].charts
    # 0.04 s + 0.005 s a sample: half of the rate at 8 samples, nine tenths at 72, which was not reached.
    assert "40 ms + 5 ms a sample" in rates.summary
    assert "knee lies beyond 64" in rates.summary
    data["findings"][0]["probes"].append({**data["findings"][0]["probes"][0], "microbatch": 128, "step_seconds": 0.68})
    (_, rates) = section(data).parts[0].charts
    assert "from microbatch 72 on that line runs at 90%" in rates.summary


def marks(chart, kind):
    """Return the values of the layers of a chart that are drawn as a kind of mark."""
    layers = [layer for layer in chart.wide["layer"] if layer["mark"]["type"] == kind]
    return [value for layer in layers for value in layer["data"]["values"]]


def test_the_rates_show_their_spread_the_answer_and_what_is_near_the_best():
    data = made.findings()
    for probe in data["findings"][0]["probes"]:
        if probe["microbatch"] == 64:
            probe["timings"] = [0.32, 0.36, 0.40]
    (_, rates) = section(data).parts[0].charts
    assert {"x": 64, "label": "answer 64", "is_left": True, "is_answer": True} in marks(rates, "rule")
    (spread,) = [value for value in marks(rates, "rule") if "high" in value]
    assert spread["x"] == 64
    assert spread["low"] < 64 / 0.36 < spread["high"]
    (band,) = marks(rates, "rect")
    assert band["low"] == pytest.approx(0.95 * band["high"])
    assert band["label"] == "within 5% of the best"
    assert dict(zip(rates.table.columns, rates.table.rows[0], strict=True))["spread"] == "spread not known"


def test_step_times_that_are_no_line_get_no_curve():
    data = made.findings()
    probe = data["findings"][0]["probes"][0]
    times = {1: 0.01, 8: 0.012, 32: 0.3, 64: 0.31}
    data["findings"][0]["probes"] = [{**probe, "microbatch": size, "step_seconds": times[size]} for size in times]
    (_, rates) = section(data).parts[0].charts
    assert "The step times are no line" in rates.summary
    assert not marks(rates, "line")


def test_step_times_of_near_sizes_make_no_curve():
    data = made.findings()
    finding = data["findings"][0]
    finding["probes"] = [each for each in finding["probes"] if each["microbatch"] in (64, 80)]
    finding["probes"][0] |= {"verdict": "fits", "step_seconds": 0.1}
    (_, rates) = section(data).parts[0].charts
    assert "too near for a curve" in rates.summary


def test_a_device_on_which_larger_is_slower_is_said_to_be_one():
    data = made.findings()
    finding = data["findings"][0]
    finding["probes"] = [
        {**finding["probes"][0], "microbatch": size, "step_seconds": seconds}
        for size, seconds in ((8, 0.1), (16, 0.09))
    ]
    (_, rates) = section(data).parts[0].charts
    assert rates.summary == "The step times do not grow with the size."
    finding["probes"][1]["step_seconds"] = 0.5
    (_, rates) = section(data).parts[0].charts
    assert "larger is slower here" in rates.summary


def test_the_advice_of_a_plan_is_given_without_its_key():
    data = made.plan()
    data["advice"] = [{"topic": "gradients", "text": "Accumulation holds the gradients."}]
    assert "Accumulation holds the gradients." in section(data).notes


def test_a_plan_shows_its_arithmetic_and_what_to_paste():
    found = section(made.plan())
    assert found.title == "12 + 8 × 11 = 100"
    assert "--per_device_train_batch_size" in {each.title: each.text for each in found.snippets}["transformers"]


def test_the_peak_of_a_step_is_explained_by_its_module():
    memory, step, modules = section(made.prediction()).charts
    assert "microbatch 800 is the largest" in memory.summary
    assert step.summary == "Tensors peak at 928 MiB in the forward pass, in train.py:Finetune."
    assert modules.table.rows[1] == ("(the step itself)", "100 MiB")


def test_a_size_that_is_only_fragmented_is_not_said_to_fit():
    data = made.prediction()
    data["curve"][2]["fits"] = False  # though its tensors stay below the line
    shown = section(data)
    assert "drawn without the memory that lies idle" in shown.charts[0].summary
    rows = shown.parts[0].tables[0].rows
    assert [row[-1] for row in rows] == ["fits", "fits", "does not fit: fragmented", "does not fit"]
    assert [row[2] == "–" for row in rows] == [False, False, True, True], "what would be reserved is not known"
    data["fill"] = 0.9
    assert section(data).parts[0].tables[0].rows[2][-1] == "does not fit", "it is above what may be used"


def test_an_older_prediction_without_a_timeline_is_shown_as_well():
    data = made.prediction()
    del data["timeline"], data["curve"]
    assert len(section(data).charts) == 2


def test_a_sweep_shows_the_best_first_and_what_was_used_instead():
    found = section(made.sweep())
    assert dict(found.facts) == {"trials": "4", "done": "3", "oom": "1"}
    assert found.charts[0].summary == "The best of 3 is batch_size=8: 0.3."
    assert "8 → 2" in found.tables[0].rows[2]


def test_nothing_of_a_user_is_markup_and_nothing_is_loaded():
    text = page(made.findings(made.TROUBLE, note=made.TROUBLE), made.prediction(made.TROUBLE), made.sweep(made.TROUBLE))
    assert text.count("<script") == 1
    assert "<img" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{\n 'a': 1}", "line 2, is not JSON"),
        ("[1, 2]", "no document of brim's"),
        ("{}", "has no schema of brim's"),
        ('{"schema": "brim.findings/7"}', "this brim knows brim.findings/1. Write it again with this brim"),
        ('{"schema": "brim.report/1"}', "which no report shows"),
        ('{"schema": "brim.error/1", "error": {"message": "No GPU."}}', "says that brim failed: .*No GPU."),
        (b"\xff\xfe\x00", "is no text"),
        ("[" * 100_000, "is not JSON that brim writes"),
    ],
)
def test_what_is_no_document_is_refused_with_what_to_do(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_documents([str(path)])


@pytest.mark.parametrize(
    ("document", "path", "value", "message"),
    [
        (
            made.findings,
            ["findings", 0, "probes", 2, "peak_bytes"],
            "much",
            r'findings[0].probes[2].peak_bytes is "much"',
        ),
        (made.findings, ["findings", 0, "microbatch"], "many", 'findings[0].microbatch is "many"'),
        (made.findings, ["findings", 1, "probes"], 3, "findings[1].probes is 3, expected a list."),
        (made.findings, ["device", "fill"], 0, "device.fill is 0, expected a number above 0 and at most 1."),
        (made.findings, ["findings", 0, "probes", 0, "verdict"], "so", "expected one of fits, oom, error, unclear."),
        (made.prediction, ["peaks", 0, "device_bytes"], None, "peaks[0].device_bytes is null, expected a whole number"),
        (made.prediction, ["timeline", "points"], [], "timeline.points is [], expected a list that is not empty."),
        (made.plan, ["accumulation"], True, "accumulation is true, expected a whole number of at least 1, or null."),
        (made.sweep, ["trials", 1, "metrics"], [0.5], "trials[1].metrics is [0.5], expected an object."),
    ],
)
def test_a_field_of_another_type_is_named_with_what_was_expected(document, path, value, message):
    data = document()
    change(data, path, value)
    with pytest.raises(RecordError, match=re.escape(message)) as caught:
        section(data)
    assert str(caught.value).startswith("x.json: ")
    assert "write it again: brim " in str(caught.value)


def test_a_document_that_was_cut_by_hand_is_refused_by_what_it_lacks():
    data = made.findings()
    del data["device"]
    with pytest.raises(RecordError, match=r"x\.json: device is missing, expected an object"):
        section(data)


def test_what_the_contract_leaves_out_may_be_missing_and_what_it_does_not_know_is_passed_over():
    data = made.findings()
    for finding in data["findings"]:
        for name in ("note", "seconds", "throughput"):
            del finding[name]
        for probe in finding["probes"]:
            for name in ("timings", "calls", "memory"):
                del probe[name]
            probe["of_tomorrow"] = 1
    assert section(data).kind == "findings"


def test_several_predictions_in_one_document_are_a_section_each(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": "brim.prediction/1", "predictions": [made.prediction(), made.prediction()]}))
    assert len(sections_of(read_documents([str(path)]))) == 2


def change(document, path, value):
    *way, key = path
    for step in way:
        document = document[step]
    document[key] = value


def leaves(value, path=()):
    """Yield the path of everything in a document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from leaves(child, (*path, key))


@given(data=st.data())
def test_a_document_edited_by_hand_is_shown_or_refused(data):
    document = data.draw(st.sampled_from([made.findings, made.plan, made.prediction, made.sweep]))()
    path = data.draw(st.sampled_from([path for path in leaves(document) if path and path[0] != "schema"]))
    value = data.draw(st.sampled_from([None, True, -1, 0, 1e300, float("nan"), "<b>", [], {}, [None], {"a": 1}]))
    change(document, path, value)
    # Whatever else is raised fails the test.
    with contextlib.suppress(InputError):
        assert section(document).kind in document["schema"]


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"from brim's folder with: pip install '\.\[report\]'"):
        page(made.findings())
