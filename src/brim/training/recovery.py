"""A window that ran out of memory, begun again with smaller microbatches, on all ranks alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from brim.devices.pressure import num_retries
from brim.errors import BrimError, InputError, OutOfMemoryError, WorkloadError
from brim.planning.step_down import StepDown
from brim.probing.in_process import release_memory
from brim.tracing.checkpointing import checkpoint_blocks, refusal
from brim.training.failures import Failure
from brim.training.rewinding import Rewind
from brim.training.splitting import count_samples, split
from brim.training.telling import log_line, tell_at_exit
from brim.training.window import Ending, RankReport

# After this many windows in a row in which the allocator had to give memory back and try again, microbatches get
# smaller. Source: a choice; one such window is usual where a longer text comes, and each costs a device's standstill.
NUM_THRASHED_WINDOWS = 3


class Recovery:
    """What a run does about an out-of-memory.

    Args:
        model: Whose buffers go back to the window's start, and in which checkpointing may be switched on.
        sizes: The sizes to step down by; None to halve.
        checkpointing: Whether checkpointing may be switched on at their end.
        is_telling: Whether this rank writes the lines of all.

    Attributes:
        way: Where on the way down the run is.
        is_again: Whether the window was begun again.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sizes: Sequence[int] | None,
        checkpointing: bool,
        is_telling: bool,
    ) -> None:
        problem = refusal(model) if checkpointing else None
        if problem is not None:
            raise InputError(f"checkpointing=True does not work with this model: {problem}. Leave it out.")
        self.way = StepDown(sizes=None if sizes is None else tuple(sizes), checkpointing=checkpointing)
        self.is_again = False
        self._model = model
        self._device_name = str(next((parameter.device for parameter in model.parameters()), "cpu"))
        self._is_telling = is_telling
        self._start = Rewind(model)
        self._num_retries = num_retries(self._device_name)
        self._num_thrashed = 0
        self._num_samples = 0
        self._batch_samples = 0
        self._accumulation = 1

    @property
    def advice(self) -> str | None:
        """What to set next time; None where nothing failed."""
        if self.way.limit is None:
            return None
        num_parts = self.way.num_parts(self._num_samples, at_least=self._accumulation)
        checkpointed = " and checkpointing switched on" if self.way.is_checkpointed else ""
        return (
            f"Next time begin with accumulation={num_parts} for batches of {self._num_samples} samples "
            f"(microbatches of at most {self.way.limit}){checkpointed}."
        )

    def begin(self) -> None:
        """Remember the start of a window."""
        self.is_again = False
        self._start.mark()

    def cut(self, batch: Any, accumulation: int) -> list[Any]:
        """Cut a batch into as many microbatches as fit now."""
        num_samples = self._batch_samples = count_samples(batch)
        self._num_samples, self._accumulation = max(self._num_samples, num_samples), accumulation
        return split(batch, self.way.num_parts(num_samples, at_least=accumulation))

    def judge(self, error: Exception) -> Failure:
        """Return what a failure was."""
        failure = Failure.of(error, self._device_name)
        is_cut = self.way.limit is not None and self._batch_samples > 1  # else it was too small from the start
        return replace(failure, is_too_small=failure.is_too_small and is_cut)

    def make_room(self, failure: Failure) -> None:
        """Give back all that a failure of memory holds: talking to other ranks takes some as well."""
        if failure.is_oom:
            failure.let_go()
            release_memory()

    def is_thrashing(self) -> bool:
        """Return whether the allocator had to try again since this was last asked."""
        before, self._num_retries = self._num_retries, num_retries(self._device_name)
        return self._num_retries > before

    def settle(self, reports: Sequence[RankReport], *, window: int, failure: Failure | None) -> bool:
        """Decide with all ranks' reports whether a window is whole; step down, and back to its start, where not.

        Raises:
            OutOfMemoryError: There is no smaller microbatch.
            WorkloadError: Another rank failed for another reason than memory.
        """
        broken = [rank for rank, report in enumerate(reports) if report.ending is Ending.FAILED]
        if broken:
            if failure is not None and not failure.is_oom:
                raise failure.error
            raise WorkloadError(
                f"Rank {broken[0]} failed in window {window} for another reason than memory: its own message tells. "
                "Nothing was updated.",
                phase="step",
            )
        failed = [rank for rank, report in enumerate(reports) if report.ending is Ending.OUT_OF_MEMORY]
        is_too_small = any(report.ending is Ending.TOO_SMALL for report in reports)
        if not failed and not is_too_small:
            self._watch_thrash(reports, window)
            return True
        self._start.restore()
        self.is_again = True
        if is_too_small:
            self._step_back(window, failure)
            return False
        microbatch = min(reports[rank].microbatch for rank in failed)
        where = f" on rank {', '.join(map(str, failed))}" if len(reports) > 1 else ""
        reason = f"Window {window}: out of memory with microbatches of {microbatch}{where}"
        if not self._step_down(microbatch, reason):
            raise self._end(reason, microbatch) from (None if failure is None else failure.error)
        return False

    def refuse_update(self, window: int) -> OutOfMemoryError:
        """Return what to raise where the update of a window does not fit."""
        return OutOfMemoryError(
            f"Window {window}: out of memory in the update, which no smaller microbatch changes. Use an optimizer with "
            "smaller states or a smaller model; brim plan shows what would save memory.",
            microbatch=0,
        )

    def to_state(self) -> dict[str, Any]:
        """Return where on the way down the run is, as plain values."""
        return asdict(self.way)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where `to_state` was called."""
        if state["is_checkpointed"] and not self.way.is_checkpointed:
            checkpoint_blocks("model", self._model, keep_random=True)
        self.way = replace(
            self.way,
            limit=state["limit"],
            num_steps=state["num_steps"],
            is_checkpointed=self.way.is_checkpointed or state["is_checkpointed"],
        )

    def _watch_thrash(self, reports: Sequence[RankReport], window: int) -> None:
        """Step down for the next window where the allocator keeps trying again."""
        if any(report.is_thrashing for report in reports):
            self._num_thrashed += 1
        else:
            self._num_thrashed = 0
        if self._num_thrashed < NUM_THRASHED_WINDOWS:
            return
        self._num_thrashed = 0
        microbatch = max(report.microbatch for report in reports)
        self._step_down(
            microbatch,
            f"Window {window}: the allocator had to try again in {NUM_THRASHED_WINDOWS} windows in a row with "
            f"microbatches of {microbatch}",
        )

    def _step_down(self, microbatch: int, reason: str) -> bool:
        """Take the next step and say so in one line; return whether there was one."""
        following = self.way.after(microbatch)
        if following is None:
            return False
        if self.way.limit is None and self._is_telling:
            tell_at_exit(self)
        if following.is_checkpointed and not self.way.is_checkpointed:
            checkpoint_blocks("model", self._model, keep_random=True)
            change = f"switching checkpointing on, with microbatches of {following.limit}"
        else:
            change = f"going on with {following.limit}"
        self.way = following
        if self._is_telling:
            log_line(f"{reason}; {change}. The effective batch stays the same.")
        return True

    def _step_back(self, window: int, failure: Failure | None) -> None:
        """Go back to two samples, which ran out of memory, with checkpointing; raise where that is no way."""
        self.way = replace(self.way, smallest=2)
        reason = f"Window {window}: BatchNorm cannot train on a microbatch of one sample, and larger ones did not fit"
        if not self._step_down(2, reason):
            raise OutOfMemoryError(
                f"{reason}. Nothing was updated. Use even batches, shorter samples, GroupNorm instead{self._last_hope}",
                microbatch=1,
            ) from (None if failure is None else failure.error)

    @property
    def _last_hope(self) -> str:
        return "." if self.way.checkpointing or refusal(self._model) else ", or pass checkpointing=True."

    def _end(self, reason: str, microbatch: int) -> BrimError:
        return OutOfMemoryError(
            f"{reason}, and that is the end of the way down. Nothing was updated. Use a smaller model or shorter "
            f"samples, see what would save memory with brim plan{self._last_hope}",
            microbatch=microbatch,
        )
