import sys

import pytest
from tests.conftest import WORKLOADS

import brim
from brim.errors import InputError, WorkloadNotFoundError
from brim.workload import address_of, check_address, check_class, load


@pytest.fixture(autouse=True)
def import_state(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("simple", "faults"):
            del sys.modules[name]


def test_a_relative_name_is_neither_a_file_nor_a_module():
    with pytest.raises(WorkloadNotFoundError, match=r"'./w' in ./w:X is neither a Python file nor a module"):
        load("./w:X")


def test_a_file_is_loaded_with_its_neighbours_importable():
    assert load(f"{WORKLOADS}/faults.py:StepRaises").__mro__[1].__name__ == "Train"


def test_a_module_is_loaded_by_name():
    assert load("brim.demo_workload:MultiCropCaptioning").kind == "generate"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere.py:Name", "There is no file nowhere.py"),
        ("train.py", "Did you mean train.py:Name"),
        ("no_such_package.module:Name", "There is no module 'no_such_package'"),
        (f"{WORKLOADS}/simple.py:Nothing", "has no 'Nothing'. Workloads defined there: Evaluate"),
        (f"{WORKLOADS}/simple.py:NotAWorkload", "is not a brim.Workload"),
        ("brim:Workload", "is not a brim.Workload"),
        (":Name", "is not the address of a workload"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(address, message):
    with pytest.raises(WorkloadNotFoundError, match=message):
        load(address)


def test_an_address_is_checked_without_importing_it():
    with pytest.raises(WorkloadNotFoundError, match=r"There is no file gone\.py"):
        check_address("gone.py:Name")


def test_an_unknown_kind_is_refused():
    class Wrong(brim.Workload):
        kind = "dance"

    with pytest.raises(InputError, match="Use one of: train, eval, generate"):
        check_class(Wrong, "Wrong")


def test_a_class_inside_a_function_has_no_address():
    class Local(brim.Workload):
        pass

    with pytest.raises(InputError, match="isolate=False"):
        address_of(Local)


def test_the_address_of_a_loaded_class_loads_it_again():
    loaded = load("brim.demo_workload:MultiCropCaptioning")
    assert address_of(loaded) == "brim.demo_workload:MultiCropCaptioning"


def test_an_unfinished_workload_says_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"has no step\(self, batch\)"):
        brim.Workload().step(None)
