"""Findings as people and programs read them: tables, log lines, a live view, JSON."""
