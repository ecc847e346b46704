"""What a failure in the user's loop was, without holding on to the memory that it used."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from brim.devices.pressure import is_nearly_full
from brim.errors import OutOfMemoryError
from brim.findings import Verdict
from brim.probing.verdicts import classify

# How torch's BatchNorm refuses one sample without further dimensions, of which no variance can be taken.
_TOO_SMALL_TEXT = "Expected more than 1 value per channel when training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception of the user's code.

    Attributes:
        is_oom: Whether memory was the reason.
        is_too_small: Whether a microbatch had too few samples for BatchNorm.
    """

    error: Exception
    is_oom: bool
    is_too_small: bool = False

    @classmethod
    def of(cls, error: Exception, device_name: str) -> Failure:
        """Judge an exception."""
        if isinstance(error, OutOfMemoryError):  # who raised it has already gone down to the end
            return cls(error=error, is_oom=False)
        if _TOO_SMALL_TEXT in str(error):
            return cls(error=error, is_oom=False, is_too_small=True)
        return cls(error=error, is_oom=classify(error, nearly_full=is_nearly_full(device_name)) is Verdict.OOM)

    def let_go(self) -> None:
        """Drop all that the frames of the exception hold: the tensors that did not fit are among it."""
        error: BaseException | None = self.error
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
