"""Computes while it is imported, so that a thread pool is running before any probe."""

import torch

torch.ones(2**20).sum()

from simple import Train  # noqa: E402, F401
