"""A project's plans with their history, as values: add one, judge it, go back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from brim.errors import InputError
from brim.planning.batch_plan import BatchPlan
from brim.planning.expectation import Expectation

PASSED = "passed"
FAILED = "failed"
SCHEMA = "brim.plans/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A plan, where it came from, and how it ran.

    Attributes:
        number: From 1, in the order in which plans were kept.
        source: The command that made it.
        expected: What its job should be seen to use, where that is known.
        verdict: `passed` or `failed`; None where it was not judged yet.
        step_seconds: The median time of an optimizer step when it last ran well, where it was reported.
    """

    number: int
    made: datetime
    plan: BatchPlan
    source: str = ""
    profile: str | None = None
    expected: Expectation | None = None
    verdict: str | None = None
    judged: datetime | None = None
    step_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        expected = self.expected
        return {
            "number": self.number,
            "made": self.made.isoformat(),
            "microbatch": self.plan.microbatch,
            "accumulation": self.plan.accumulation,
            "ranks": self.plan.ranks,
            "effective": self.plan.effective,
            "source": self.source,
            "profile": self.profile,
            "memory_bytes": expected.memory_bytes if expected else None,
            "peak_bytes": [expected.peak_low_bytes, expected.peak_high_bytes] if expected else None,
            "verdict": self.verdict,
            "judged": self.judged.isoformat() if self.judged else None,
            "step_seconds": self.step_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBook:
    """All plans of a project, oldest first, and the one that is used."""

    plans: tuple[KeptPlan, ...] = ()
    active_number: int | None = None

    @property
    def active(self) -> KeptPlan | None:
        """The plan that is used; None where there is none."""
        return next((plan for plan in self.plans if plan.number == self.active_number), None)

    def with_plan(
        self, plan: BatchPlan, *, made: datetime, source: str, profile: str | None, expected: Expectation | None
    ) -> PlanBook:
        """Return the book with a plan more, which is the one that is used."""
        number = max((each.number for each in self.plans), default=0) + 1
        kept = KeptPlan(number=number, made=made, plan=plan, source=source, profile=profile, expected=expected)
        return PlanBook(plans=(*self.plans, kept), active_number=number)

    def with_verdict(
        self, number: int, verdict: str, *, judged: datetime, step_seconds: float | None = None
    ) -> PlanBook:
        """Return the book in which a plan ran well or did not; the step time of a good run is kept."""

        def changed(plan: KeptPlan) -> KeptPlan:
            seconds = step_seconds if verdict == PASSED and step_seconds is not None else plan.step_seconds
            return replace(plan, verdict=verdict, judged=judged, step_seconds=seconds)

        return replace(self, plans=tuple(changed(plan) if plan.number == number else plan for plan in self.plans))

    def fallback(self) -> KeptPlan | None:
        """Return the newest plan before the one that is used that ran well; None where there is none."""
        before = [plan for plan in self.plans if plan.number < (self.active_number or 0)]
        return next((plan for plan in reversed(before) if plan.verdict == PASSED), None)

    def rolled_back(self, to: int | None = None) -> PlanBook:
        """Return the book with an earlier plan in use: the last that ran well, or the one with a number."""
        if to is None:
            fallback = self.fallback()
            if fallback is None:
                raise InputError(self._no_fallback())
            to = fallback.number
        if to not in [plan.number for plan in self.plans]:
            raise InputError(f"There is no plan {to}. {self._known()}")
        return replace(self, active_number=to)

    def to_dict(self, path: str) -> dict[str, Any]:
        """Return the document `brim.plans/1`."""
        return {
            "schema": SCHEMA,
            "path": path,
            "active": self.active_number,
            "plans": [plan.to_dict() for plan in self.plans],
        }

    def _no_fallback(self) -> str:
        if self.active_number is None:
            return "No plan is kept, so there is none to go back to. Keep one: brim plan --effective 256 … --save"
        return (
            f"No plan before plan {self.active_number} is known to have run well: `brim watch -- COMMAND` judges the "
            f"one in use. Name one all the same: brim plan rollback --to NUMBER. {self._known()}"
        )

    def _known(self) -> str:
        listed = ", ".join(f"{plan.number} ({plan.verdict or 'not judged'})" for plan in self.plans)
        return f"Kept are: {listed or 'none'}."
