"""A sweep file of one of the trials in `tests/workloads/trials.py`, and what a run of it tells."""

import json
import time

import pytest
import yaml
from tests.conftest import WORKLOADS

import brim


class Told:
    """Remembers what an observer hears."""

    def __init__(self):
        self.notes, self.warnings, self.started_trials, self.outlook = [], [], [], None

    def started(self, outlook):
        self.outlook = outlook

    def trial_started(self, trial, attempt):
        self.started_trials.append((dict(trial.config), attempt))

    def trial_ended(self, result, following):
        pass

    def ended(self):
        pass

    def note(self, message):
        self.notes.append(message)

    def warn(self, message):
        self.warnings.append(message)


@pytest.fixture
def write(tmp_path):
    """Write a sweep file of one of the trials and return its path."""

    def write_file(name, product, base=None, file="grid.yaml", **document):
        whole = {
            "function": f"trials.py:{name}",
            "workdir": str(WORKLOADS),
            "base": {"dir": str(tmp_path), "value": 0, **(base or {})},
            "sweep": {"product": product},
            **document,
        }
        (tmp_path / file).write_text(yaml.safe_dump(whole, sort_keys=False))
        return tmp_path / file

    return write_file


def run(path, **options):
    told = Told()
    return brim.sweep(path, observer=told, **options), told


def journal_of(path):
    lines = (path.with_suffix(".sweep") / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found
