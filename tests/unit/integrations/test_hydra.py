"""The resolver in real OmegaConf configurations."""

import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from tests.conftest import WORKLOADS

from brim import extras
from brim.errors import InputError
from brim.findings import Finding
from brim.integrations import hydra

SIMPLE = f"{WORKLOADS}/simple.py:Train"


@pytest.fixture(autouse=True)
def own_resolver():
    OmegaConf.clear_resolver(hydra.RESOLVER)
    hydra.register()
    yield
    OmegaConf.clear_resolver(hydra.RESOLVER)


def test_a_batch_size_is_found_for_the_case_and_settings():
    text = f"batch_size: ${{brim:{SIMPLE},{{rows:2}},{{cap:6,device:cpu,memory:2GiB}}}}"
    assert OmegaConf.create(text).batch_size == 6


def test_what_was_found_is_not_searched_again(monkeypatch):
    calls = []

    def find(workload, **settings):
        calls.append((workload, settings))
        return (Finding(case={}, microbatch=7, stopped_by="memory", confirmed=True, probes=()),)

    monkeypatch.setattr(hydra, "find", find)
    config = OmegaConf.create({"a": "${brim:train.py:Finetune}", "b": "${brim:train.py:Finetune,{},{goal:fastest}}"})
    assert (config.a, config.a, config.b) == (7, 7, 7)
    assert calls == [
        ("train.py:Finetune", {"cases": None}),
        ("train.py:Finetune", {"cases": None, "goal": "fastest"}),
    ]


class Hydra:
    """Stands in for Hydra, of which one function is asked; it is no dependency of the tests."""

    def __init__(self, folder):
        self.utils, self._folder = self, folder

    def get_original_cwd(self):
        if self._folder is None:
            raise ValueError("get_original_cwd() must only be used after HydraConfig is initialized")
        return str(self._folder)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_file_is_looked_for_where_hydra_was_started(is_running, tmp_path, monkeypatch):
    found = Finding(case={}, microbatch=7, stopped_by="memory", confirmed=True, probes=())
    seen = []
    monkeypatch.setattr(hydra, "find", lambda workload, **settings: seen.append(workload) or (found,))
    monkeypatch.setitem(sys.modules, "hydra", Hydra(tmp_path if is_running else None))
    (tmp_path / "run").mkdir()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path / "run")
    addresses = ["train.py:Finetune", "other.py:Finetune", "package.module:Finetune", SIMPLE]
    for address in addresses:
        assert OmegaConf.create({"batch_size": f"${{brim:{address}}}"}).batch_size == 7
    expected = f"{tmp_path}/train.py:Finetune" if is_running else "train.py:Finetune"
    assert seen == [expected, *addresses[1:]]


@pytest.mark.parametrize("chdir", [pytest.param("true", marks=pytest.mark.long), "false"])
def test_hydra_itself_finds_the_batch_of_a_file_beside_its_script(chdir, tmp_path):
    shutil.copy(WORKLOADS / "simple.py", tmp_path)
    settings = "{rows: 16}, {cap: 3, device: cpu, memory: 640MiB, cache: false}"
    (tmp_path / "config.yaml").write_text(f'batch_size: "${{brim:simple.py:Evaluate, {settings}}}"\n')
    (tmp_path / "train.py").write_text(
        "import hydra\nfrom brim.integrations.hydra import register\n\nregister()\n\n\n"
        '@hydra.main(version_base=None, config_path=".", config_name="config")\n'
        "def main(config):\n    print(config.batch_size)\n\n\nmain()\n"
    )
    command = [sys.executable, "train.py", f"hydra.job.chdir={chdir}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "3"


def test_nothing_fits_is_an_error_of_the_configuration(monkeypatch):
    nothing = Finding(case={}, microbatch=None, stopped_by="memory", confirmed=False, probes=(), note="1 needs 9 GiB")
    monkeypatch.setattr(hydra, "find", lambda workload, **settings: (nothing,))
    with pytest.raises(InterpolationResolutionError, match="1 needs 9 GiB"):
        OmegaConf.create({"batch_size": "${brim:train.py:Finetune}"}).batch_size  # noqa: B018


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("", "The workload is missing"),
        ("null", "The workload is missing"),
        ("train.py:T,{},{cpa:4}", r"no setting 'cpa'\. Did you mean cap\? Use some of: device, memory"),
        ("train.py:T,{},{cases:[]}", "no setting 'cases'"),
        ("train.py:T,512", r"The case is 512\. Write names and values in braces"),
        ("train.py:T,{},64", "A setting is 64"),
        ("train.py:T,{},{},{}", "there are 4"),
    ],
)
def test_parts_that_cannot_be_used_are_refused_with_what_is_allowed(parts, said):
    config = OmegaConf.create({"batch_size": f"${{brim:{parts}}}"})
    with pytest.raises(InterpolationResolutionError, match=said):
        config.batch_size  # noqa: B018


def test_a_version_too_old_says_which_is_needed(monkeypatch):
    monkeypatch.setattr(extras.importlib.metadata, "version", lambda package: "2.0.6")
    with pytest.raises(InputError, match=r"omegaconf 2\.0\.6 is installed, and 2\.1 or newer is needed"):
        hydra.register()
