"""A loop of someone else's against the full batch: watch it, compute what it should have done, name the difference."""

from brim.training.auditing.audit import audit
from brim.training.auditing.causes import Cause
from brim.training.auditing.report import AuditedWindow, AuditReport

__all__ = ["AuditReport", "AuditedWindow", "Cause", "audit"]
