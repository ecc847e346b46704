"""Inside the user's loop: accumulation whose gradient is the big batch's, and an audit of other loops."""

from brim.training.accumulator import Accumulator
from brim.training.auditing import AuditReport, audit

__all__ = ["Accumulator", "AuditReport", "audit"]
