"""Memory without running: the real step on fake tensors, and a ledger of its live bytes."""

from brim.tracing.curves import TracedCurve, trace_curve
from brim.tracing.traces import Trace, trace

__all__ = ["Trace", "TracedCurve", "trace", "trace_curve"]
