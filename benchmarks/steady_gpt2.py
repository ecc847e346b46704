"""The GPT-2 of `throughput.py`, on one thread and timed by its CPU time, as in `steady_workloads.py`."""

import time

import torch

from gpt2 import Gpt2

__all__ = ["Gpt2"]

torch.set_num_threads(1)
time.perf_counter = time.process_time
