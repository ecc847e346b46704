import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.cases import Case
from brim.findings import Finding, Findings, Probe, Verdict

probes = st.builds(
    Probe,
    microbatch=st.integers(1, 10**6),
    verdict=st.sampled_from(Verdict),
    peak_bytes=st.none() | st.integers(0, 2**50),
    step_seconds=st.none() | st.floats(0.001, 1000),
    steps=st.integers(0, 9),
    samples=st.integers(0, 10**7),
    detail=st.none() | st.text(),
    calls=st.dictionaries(st.sampled_from(["forward", "backward"]), st.integers(0, 9)),
)
findings = st.builds(
    Finding,
    case=st.builds(Case, st.dictionaries(st.text(), st.integers() | st.booleans() | st.text())),
    microbatch=st.none() | st.integers(1, 10**6),
    stopped_by=st.sampled_from(["memory", "cap", "tries", "time"]),
    confirmed=st.booleans(),
    probes=st.lists(probes, max_size=3).map(tuple),
    predicted=st.none() | st.just({"largest": 3, "peak_bytes": 9}),
    note=st.none() | st.text(),
    seconds=st.floats(0, 1e6),
)


@given(findings)
def test_a_finding_survives_json(finding):
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding


def make(*sizes):
    probe = Probe(microbatch=4, verdict=Verdict.FITS, peak_bytes=100, step_seconds=0.5, steps=3, samples=12)
    listed = tuple(
        Finding(case=Case({"n": n}), microbatch=size, stopped_by="memory", confirmed=True, probes=(probe,))
        for n, size in enumerate(sizes)
    )
    return Findings(
        workload="w", kind="train", device_name="cpu", memory_bytes=1000, fill=0.9, strategy="guided", findings=listed
    )


def test_the_microbatch_for_all_cases_is_the_smallest():
    assert make(4, 9).microbatch == 4
    assert make(4, None).microbatch is None
    assert make().microbatch is None


def test_a_finding_is_had_by_position_or_by_case():
    found = make(4, 9)
    assert found[1] is found[{"n": 1}]
    with pytest.raises(KeyError, match="n=7"):
        found[{"n": 7}]


def test_the_answers_figures_come_from_its_last_probe():
    finding = make(4)[0]
    assert (finding.peak_bytes, finding.samples_per_second) == (100, 8.0)
    assert make(9)[0].peak_bytes is None


def test_findings_show_their_answers_and_not_their_probes():
    shown = make(4, None)
    assert repr(shown).splitlines() == ["w (train) on cpu, limit 900 B", "n=0  4  peak 100 B", "n=1  nothing fits"]
    assert "<td>4</td>" in shown._repr_html_()
