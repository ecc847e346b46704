"""Workloads: what the user runs, and how its address is resolved."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import keyword
import os
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from brim.cases import Case
from brim.errors import BrimError, InputError, WorkloadError, WorkloadNotFoundError

KINDS = ("train", "eval", "generate")
WRAPS = (None, "ddp", "fsdp")
DEFAULT_NUM_STEPS = {"train": 3, "eval": 3, "generate": 1}


class Workload:
    """Something to build once and a step to repeat.

    Subclass it and fill in `build`, `batch` and `step`. A new instance is made for every case; `device` and `case`
    are set before `build` is called.

    Attributes:
        kind: What a step does: `train` (forward, backward, optimizer), `eval` (forward) or `generate`.
        wrap: What goes around the modules that `build` makes, where there are several ranks: `ddp`, `fsdp` or None.
        device: The torch device to build on.
        case: The setting of the input shape.
    """

    kind: ClassVar[str] = "train"
    wrap: ClassVar[str | None] = None
    device: Any
    case: Case

    def build(self) -> None:
        """Make the model and, for training, its optimizer, on `self.device`."""
        raise NotImplementedError(f"{type(self).__name__} has no build(self): make the model and its optimizer there.")

    def batch(self, size: int) -> Any:
        """Return `size` samples of the worst case on `self.device`."""
        raise NotImplementedError(f"{type(self).__name__} has no batch(self, size): return `size` samples there.")

    def step(self, batch: Any) -> None:
        """Run one whole step."""
        raise NotImplementedError(f"{type(self).__name__} has no step(self, batch): run one whole step there.")


def prepare(workload_class: type[Workload], case: Case, device: Any) -> Workload:
    """Make an instance with `case` and `device` set, not yet built."""
    workload = workload_class()
    workload.case = case
    workload.device = device
    return workload


def address_of(workload: str | type[Workload]) -> str:
    """Return the address under which another process can load the workload.

    Files get an absolute path, so that the address means the same from every directory.
    """
    if isinstance(workload, str):
        target, name = _split(workload)
        return f"{Path(target).resolve()}:{name}" if target.endswith(".py") else workload
    check_class(workload, repr(workload))
    advice = "Move it to the top level of a file, or pass isolate=False to probe in this process."
    if "<locals>" in workload.__qualname__:
        raise InputError(f"{workload.__name__} is defined inside a function: another process cannot load it. {advice}")
    try:
        path = inspect.getfile(workload)
    except (TypeError, OSError):
        path = ""
    if not path.endswith(".py") or not Path(path).is_file():
        raise InputError(f"{workload.__name__} is not defined in a file: another process cannot load it. {advice}")
    module = sys.modules.get(workload.__module__)
    if workload.__module__ != "__main__" and module is not None and module.__package__:
        return f"{workload.__module__}:{workload.__qualname__}"
    return f"{Path(path).resolve()}:{workload.__qualname__}"


def load(address: str) -> type[Workload]:
    """Import the workload at `file.py:Name` or `package.module:Name`."""
    return check_class(load_object(address), address)


def load_here(address: str) -> type[Workload]:
    """Import a workload into this process; what its file raises is a `WorkloadError` with the file's own traceback.

    What it prints goes to standard error.
    """
    try:
        with redirect_stdout(sys.stderr):
            return load(address)
    except BrimError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's module may raise anything
        message = f"Loading {address} failed: {describe_error(error)}"
        failure = WorkloadError(message, phase="load", traceback=users_traceback(error))
        raise failure from failure.__cause__


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with its type."""
    return f"{type(error).__name__}: {error}".strip()


def users_traceback(error: BaseException) -> str:
    """Return the traceback of a failed import from the user's module on, without the frames that imported it."""
    trace = error.__traceback__
    own = (str(Path(__file__).parent), "<frozen importlib", str(Path(os.__file__).parent / "importlib"))
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def load_object(address: str) -> Any:
    """Import whatever is at `file.py:Name` or `package.module:Name`."""
    target, name = _split(address)
    module = _import_file(Path(target)) if target.endswith(".py") else _import_module(target, address)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise WorkloadNotFoundError(f"{target} has no {name!r}.{_names_in(module, name)}")
        found = getattr(found, part)
    return found


def check_address(address: str) -> None:
    """Refuse, without importing anything, an address that cannot be right."""
    target, _ = _split(address)
    if target.endswith(".py") and not Path(target).is_file():
        raise WorkloadNotFoundError(f"There is no file {target}. Give a workload as file.py:Name.")


def check_class(found: object, address: str) -> type[Workload]:
    """Return `found` when it is a usable Workload subclass; refuse it otherwise."""
    if isinstance(found, Workload):
        name = type(found).__name__
        raise WorkloadNotFoundError(f"{name}() is an instance. Pass the class {name}: every probe makes its own.")
    name = address.rpartition(":")[2]
    if not (isinstance(found, type) and issubclass(found, Workload)) or found is Workload:
        raise WorkloadNotFoundError(
            f"{address} is not a brim.Workload. Write `class {_class_name(name)}(brim.Workload)` "
            "with build, batch and step."
        )
    if found.kind not in KINDS:
        raise InputError(f"{found.__name__}.kind is {found.kind!r}. Use one of: {', '.join(KINDS)}.")
    if found.wrap not in WRAPS:
        raise InputError(f'{found.__name__}.wrap is {found.wrap!r}. Use "ddp", "fsdp" or None.')
    return found


def _class_name(name: str) -> str:
    """Return a name if a class can have it, else one that stands for any."""
    return name if name.isidentifier() and not keyword.iskeyword(name) else "Name"


def _split(address: str) -> tuple[str, str]:
    target, _, name = address.rpartition(":")
    if not target or not name or not all(part.isidentifier() for part in name.split(".")):
        hint = ""
        if address.endswith(".py"):
            hint = f" Did you mean {address}:Name, or the script as it is, -- python {address} --batch_size {{batch}}?"
        raise WorkloadNotFoundError(
            f"{address!r} is not the address of a workload. Use file.py:Name or package.module:Name.{hint}"
        )
    return target, name


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise WorkloadNotFoundError(f"There is no file {path}. Give a workload as file.py:Name.")
    path = path.resolve()
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"brim_workload_{path.stem}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python file.py` does, so that its neighbours can be imported
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(target: str, address: str) -> ModuleType:
    if not all(part.isidentifier() for part in target.split(".")):
        raise WorkloadNotFoundError(
            f"{target!r} in {address} is neither a Python file nor a module. Use file.py:Name or package.module:Name."
        )
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and (target == error.name or target.startswith(error.name + ".")):
            raise WorkloadNotFoundError(
                f"There is no module {error.name!r} for {address}. Run brim where it can be imported, "
                "or give the workload as file.py:Name."
            ) from error
        raise


def _names_in(module: ModuleType, name: str) -> str:
    """Return a sentence on what is there instead of a name."""
    public = [each for each in vars(module) if not each.startswith("_")]
    near = difflib.get_close_matches(name, public, n=1)
    if near:
        return f" Did you mean {near[0]}?"
    workloads = sorted(_workloads_in(module))
    return f" Workloads defined there: {', '.join(workloads)}." if workloads else ""


def _workloads_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Workload) and value.__module__ == module.__name__
    ]
