import logging

from brim.cases import Case
from brim.finding.observer import LogObserver, describe_finding, describe_probe
from brim.findings import Finding, Probe, Verdict
from brim.searching import Ask

LIMIT = 1449551462


def test_a_line_for_each_verdict():
    fits = Probe(microbatch=28, verdict=Verdict.FITS, peak_bytes=1299227607)
    oom = Probe(microbatch=42, verdict=Verdict.OOM)
    unclear = Probe(microbatch=4, verdict=Verdict.UNCLEAR, detail="was ended by SIGKILL during step")
    assert describe_probe(fits, LIMIT, Ask(42)) == "✓ microbatch 28 fits (1.21 GiB of 1.35 GiB), trying 42"
    assert describe_probe(oom, LIMIT, Ask(28, confirms=True)) == "✗ microbatch 42 is out of memory, confirming 28"
    assert describe_probe(unclear, LIMIT, Ask(4)).endswith("(was ended by SIGKILL during step), trying 4 again")
    assert describe_probe(fits, LIMIT, None).endswith("of 1.35 GiB)")


def test_a_line_for_each_finding():
    probe = Probe(microbatch=28, verdict=Verdict.FITS, peak_bytes=5)
    found = Finding(case=Case(), microbatch=28, stopped_by="cap", confirmed=True, probes=(probe,), seconds=2)
    nothing = Finding(case=Case(), microbatch=None, stopped_by="memory", confirmed=False, probes=(), note="too big")
    assert describe_finding(found) == "= microbatch 28 in 1 probe, 2.00 s (stopped by cap)"
    assert describe_finding(nothing) == "nothing fits: too big"


def test_warnings_are_logged_as_warnings(caplog):
    observer = LogObserver(logging.getLogger("brim.test"))
    observer.warn("the disk is full")
    assert caplog.records[0].levelname == "WARNING"
