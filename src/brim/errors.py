"""Everything brim raises on purpose.

The tree, with the built-in each class also is and the exit code of the command line::

    BrimError                                      1
    ├── InputError (ValueError)                    2   a value that cannot be used
    │   ├── WorkloadNotFoundError (LookupError)    2   no such file, module or name; not a Workload
    │   ├── MissingPackageError (ImportError)      2   a package that is not installed, with its pip install
    │   ├── LengthError                            2   a sample longer than what fits
    │   ├── RecordError                            2   a field of a document that is not as brim writes it
    │   └── PlanFileError                          2   a brim.toml that makes no sense, with the line
    ├── WorkloadError (RuntimeError)               1   the user's code failed; carries its traceback
    │   └── IdleStepError                          1   a step ran and did no work
    ├── UnclearError (RuntimeError)                1   a probe died or hung three times for no known reason
    ├── NonFiniteLossError (ArithmeticError)       1   a microbatch of training has a loss of NaN or infinity
    ├── OutOfMemoryError (MemoryError)             1   not even the smallest microbatch of a run fits
    ├── DeviceError (RuntimeError)                 1   the machine cannot do what was asked
    ├── NothingFitsError (RuntimeError)            3   not even the smallest batch fits, inside a running job
    ├── SweepStoppedError (RuntimeError)           1   going on with a sweep would only fail again
    └── TraceError (RuntimeError)                  1   the workload cannot run on fake tensors

`nothing fits` is an answer, not an error: it is a finding, and exit code 3. Only a job that cannot go on without a
batch raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from brim.findings import Findings


class BrimError(Exception):
    """The root of everything brim raises on purpose.

    Attributes:
        findings: What had been found when the error came up, or None.
        is_printed: Whether a document that was printed tells of it.
    """

    exit_code = 1
    findings: Findings | None = None
    is_printed: bool = False


class InputError(BrimError, ValueError):
    """A value that cannot be used; the message says which would do."""

    exit_code = 2


class WorkloadNotFoundError(InputError, LookupError):
    """The address of a workload leads nowhere."""


class MissingPackageError(InputError, ImportError):
    """A package that is not installed; the message says how to install it."""


class LengthError(InputError):
    """Samples are longer than what fits.

    Attributes:
        indices: The samples that are too long.
        longest: The longest length that fits.
    """

    def __init__(self, message: str, *, indices: tuple[int, ...], longest: int) -> None:
        super().__init__(message)
        self.indices = indices
        self.longest = longest


class RecordError(InputError):
    """A document has a field that is not as brim writes it.

    Attributes:
        where: The path of the field, e.g. `findings[0].probes[2].peak_bytes`; empty for the whole document.
        found: What is there.
        expected: What should be.
    """

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(f"{where or 'the document'} is {found}, expected {expected}")
        self.where = where
        self.found = found
        self.expected = expected

    def told_of(self, source: str, remedy: str) -> RecordError:
        """Return the error with the file that it was found in, and what to do."""
        error = RecordError(self.where, self.found, self.expected)
        error.args = (f"{source}: {self}. {remedy}",)
        return error


class PlanFileError(InputError):
    """A `brim.toml` that makes no sense.

    Attributes:
        path: The file.
        line: Where in it, from 1.
    """

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}, line {line}: {what}. Mend the line, or restore the file from version control.")
        self.path = path
        self.line = line


class UsersTraceback(Exception):  # noqa: N818  it is shown, never raised
    """The traceback of another process, shown by Python above the error that it led to."""

    def __str__(self) -> str:
        """Return it as the process would have printed it."""
        return f"\n\n{self.args[0]}"


class WorkloadError(BrimError, RuntimeError):
    """The user's own code failed for another reason than memory.

    Attributes:
        phase: Where it failed: `load`, `build`, `batch` or `step`.
        traceback: The user's own traceback as text, or None where there is none.
        log_tail: The last lines that the workload printed.
    """

    def __init__(self, message: str, *, phase: str, traceback: str | None = None, log_tail: str = "") -> None:
        super().__init__(message)
        self.phase = phase
        self.traceback = traceback
        self.log_tail = log_tail
        if traceback is not None:
            self.__cause__ = UsersTraceback(traceback)


class IdleStepError(WorkloadError):
    """A step came back without having done the work its kind asks for."""


class UnclearError(BrimError, RuntimeError):
    """A probe died or hung, again and again, and nothing says that memory was the reason.

    Attributes:
        microbatch: The size that was tried.
        log_tail: The last lines that the workload printed.
    """

    def __init__(self, message: str, *, microbatch: int, log_tail: str = "") -> None:
        super().__init__(message)
        self.microbatch = microbatch
        self.log_tail = log_tail


class NonFiniteLossError(BrimError, ArithmeticError):
    """A microbatch has a loss of NaN or infinity, and no update was made of its window.

    Attributes:
        loss: The loss.
        microbatch: Which microbatch of its window, from 1.
        window: Which window of the run, from 1.
        rank: On which rank.
    """

    def __init__(self, message: str, *, loss: float, microbatch: int, window: int, rank: int) -> None:
        super().__init__(message)
        self.loss = loss
        self.microbatch = microbatch
        self.window = window
        self.rank = rank


class OutOfMemoryError(BrimError, MemoryError):
    """A run went down to its smallest microbatch, and that does not fit either.

    Attributes:
        microbatch: The samples of that microbatch; 0 where the update failed, which no microbatch changes.
    """

    def __init__(self, message: str, *, microbatch: int) -> None:
        super().__init__(message)
        self.microbatch = microbatch


class DeviceError(BrimError, RuntimeError):
    """The machine cannot do what was asked of it."""


class NothingFitsError(BrimError, RuntimeError):
    """Not even the smallest batch fits, and the job that asked cannot go on."""

    exit_code = 3


class TraceError(BrimError, RuntimeError):
    """The workload cannot be run on fake tensors."""


class SweepStoppedError(BrimError, RuntimeError):
    """A sweep stopped because its trials fail for a reason that the next ones share."""
