"""The plans of a project: `brim.toml`, which is committed with the code that it is for."""

from brim.project.active import active_plan
from brim.project.plan_book import KeptPlan, PlanBook
from brim.project.plan_file import FILE_NAME, find_file, read_book, write_book

__all__ = ["FILE_NAME", "KeptPlan", "PlanBook", "active_plan", "find_file", "read_book", "write_book"]
