"""From the batch that fits to the batch that learns: plans, the memory ladder and advice; pure, without torch."""

from brim.planning.batch_plan import BatchPlan, plan

__all__ = ["BatchPlan", "plan"]
