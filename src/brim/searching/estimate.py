"""Start from a rule of thumb on one key of the case, grow by half, bisect; at most five tries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.cases import Case
from brim.errors import InputError
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.searching.known import Known

GROWTH = 1.5
MAX_TRIES = 5
# Share of the cap to start at for a case value up to the key. Source: the multi-crop evaluations brim grew from.
CROP_SCALES: tuple[tuple[float, float], ...] = ((2, 1.0), (4, 0.8), (6, 0.6), (8, 0.5), (10, 0.4), (12, 0.3))
CROP_SCALE_ABOVE = 0.25
_CROPS = "max_crops"


@dataclass(frozen=True, slots=True)
class ScaleTable:
    """The share of the cap to start at, by the value of one key of the case.

    Attributes:
        key: The key to look at; None for `max_crops`, or else the case's only number.
        steps: Pairs of the largest value and its share, in rising order.
        above: The share for values above all steps.
    """

    key: str | None = None
    steps: tuple[tuple[float, float], ...] = CROP_SCALES
    above: float = CROP_SCALE_ABOVE

    def __post_init__(self) -> None:
        shares = [share for _, share in self.steps] + [self.above]
        limits = [limit for limit, _ in self.steps]
        if not all(0 < share <= 1 for share in shares):
            raise InputError(f"Scale table: every scale must be above 0 and at most 1, not {shares}.")
        if limits != sorted(set(limits)):
            raise InputError(f"Scale table: the limits must rise, not {limits}.")

    def scale(self, case: Case) -> float:
        """Return the share of the cap for this case; 1.0 for a case without numbers.

        >>> ScaleTable().scale(Case({"max_crops": 12})), ScaleTable().scale(Case({"max_crops": 13}))
        (0.3, 0.25)
        """
        numbers = {
            name: value
            for name, value in case.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        key = self.key or (_CROPS if _CROPS in numbers else None)
        if key is not None:
            if key not in numbers:
                raise InputError(f"The scale table is on {key!r}, but the case is {case}. Add --case {key}=…")
            value = numbers[key]
        elif len(numbers) > 1:
            raise InputError(
                f"The case {case} has several numbers: {', '.join(numbers)}. Name the one to scale by "
                "in a table file: `key: NAME` (--scale-table FILE.yaml)."
            )
        elif not numbers:
            return 1.0
        else:
            (value,) = numbers.values()
        return next((share for limit, share in self.steps if value <= limit), self.above)

    @classmethod
    def from_mapping(cls, data: Any) -> ScaleTable:
        """Read a table as it stands in a YAML file: `key`, `scales` (limit → share) and `above`."""
        form = "Use: {key: max_crops, scales: {2: 1.0, 4: 0.8}, above: 0.25}."
        if not isinstance(data, Mapping) or not isinstance(data.get("scales"), Mapping):
            raise InputError(f"A scale table is a mapping with `scales`. {form}")
        unknown = set(data) - {"key", "scales", "above"}
        if unknown:
            raise InputError(f"A scale table has no {', '.join(map(repr, sorted(unknown)))}. {form}")
        try:
            steps = tuple((float(limit), float(share)) for limit, share in data["scales"].items())
            above = float(data.get("above", min((share for _, share in steps), default=1.0)))
        except (TypeError, ValueError) as error:
            raise InputError(f"A scale table holds numbers only ({error}). {form}") from error
        if not all(math.isfinite(number) for pair in steps for number in pair):
            raise InputError(f"A scale table holds finite numbers only. {form}")
        key = data.get("key")
        return cls(key=None if key is None else str(key), steps=steps, above=above)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Start at `int(cap × scale)`, grow ×1.5 up to the cap, bisect after an OOM, at most five tries.

    >>> from brim.searching.bounds import Bounds
    >>> from brim.searching.search import Search
    >>> search = Search(Estimate(scale=0.3), Bounds(cap=64, tries=MAX_TRIES), confirm=False)
    >>> while (ask := search.ask()) is not None:
    ...     search.tell(ask.microbatch, fits=True)
    >>> [trial.microbatch for trial in search.known.trials]
    [19, 28, 42, 63, 64]
    """

    scale: float = 1.0
    name: str = field(default="estimate")

    def propose(self, known: Known) -> int | None:
        """Return the next size of the rule of thumb."""
        bounds, low = known.bounds, known.largest_fit
        if not known.trials:
            if bounds.cap >= LARGEST_MICROBATCH:
                raise InputError("The strategy `estimate` starts from a share of the cap. Pass cap=64 (--cap 64).")
            return bounds.clamp(bounds.cap * self.scale)
        if known.smallest_oom is not None:
            return known.middle
        assert low is not None
        if low == bounds.largest:
            return None
        return max(bounds.clamp(low * GROWTH), low + bounds.multiple_of)
