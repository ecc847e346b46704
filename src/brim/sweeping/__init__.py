"""Sweeps: paired and product grids of trials that survive whatever ends them, on one machine or on Ray.

Nothing is imported here: every trial starts a process of this package, which should cost little.
"""
