"""The workloads of `throughput.py`, on one thread and timed by its CPU time: other jobs on the machine do not count."""

import time

import torch

from workloads import ConvNet, EmbeddingMlp, LongAttention

__all__ = ["ConvNet", "EmbeddingMlp", "LongAttention"]

torch.set_num_threads(1)
time.perf_counter = time.process_time
