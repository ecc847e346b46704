"""Memory without running: the real step on fake tensors, and a ledger of its live bytes."""

from brim.tracing.curves import TracedCurve, predict_curve, trace_curve
from brim.tracing.prediction import MemoryPeak, Prediction, predict
from brim.tracing.traces import Trace, trace

__all__ = ["MemoryPeak", "Prediction", "Trace", "TracedCurve", "predict", "predict_curve", "trace", "trace_curve"]
