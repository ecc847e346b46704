"""Memory without running: the real step on fake tensors, and a ledger of its live bytes."""

from brim.tracing.traces import Trace, trace, trace_curve

__all__ = ["Trace", "trace", "trace_curve"]
