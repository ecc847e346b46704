"""Which microbatch to try next: pure ask/tell, no torch, no device."""

from brim.searching.among import Among
from brim.searching.bounds import Bounds
from brim.searching.curve import MemoryCurve
from brim.searching.doubling import Doubling
from brim.searching.estimate import Estimate, ScaleTable
from brim.searching.fastest import Fastest, fastest_fit, steps_to_time
from brim.searching.guided import Guided
from brim.searching.known import Known
from brim.searching.search import Ask, Search, Strategy

__all__ = [
    "Among",
    "Ask",
    "Bounds",
    "Doubling",
    "Estimate",
    "Fastest",
    "Guided",
    "Known",
    "MemoryCurve",
    "ScaleTable",
    "Search",
    "Strategy",
    "fastest_fit",
    "steps_to_time",
]
