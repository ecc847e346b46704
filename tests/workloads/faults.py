"""Workloads that go wrong, each in its own way."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch
from simple import Train


class BuildRaises(Train):
    def build(self):
        raise KeyError("no such checkpoint")


class BatchRaises(Train):
    def batch(self, size):
        raise ValueError("the data is gone")


class StepRaises(Train):
    def step(self, batch):
        print("about to fail")
        raise ZeroDivisionError("loss divided by nothing")


class StepExits(Train):
    def step(self, batch):
        sys.exit("enough")


class StepInterrupts(Train):
    def step(self, batch):
        raise KeyboardInterrupt("no more")


class WrongBatch(Train):
    def batch(self, size):
        return super().batch(7 if size > 1 else 1)


class DoesNothing(Train):
    def step(self, batch):
        pass


class NoBackward(Train):
    def step(self, batch):
        self.model(batch)


class NoOptimizer(Train):
    def step(self, batch):
        self.model(batch).sum().backward()


class Sigkilled(Train):
    def step(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)


class EndedInRealTime(Train):
    """Dies of a signal that has no name."""

    def step(self, batch):
        os.kill(os.getpid(), signal.SIGRTMIN + 6)


class WritesAnywhere(Train):
    """Writes into every file that it finds open, brim's own pipe among them."""

    def step(self, batch):
        for descriptor in range(3, 40):
            with contextlib.suppress(OSError):
                os.write(descriptor, b"nonsense\n[1]\n")
        super().step(batch)


class SaysMuch(Train):
    def step(self, batch):
        raise ValueError("much " * 4_000_000)


class Segfaults(Train):
    def step(self, batch):
        ctypes.string_at(0)


class Hangs(Train):
    def step(self, batch):
        threading.Event().wait()


class HangsWithAChild(Hangs):
    def step(self, batch):
        subprocess.Popen(["sleep", "1000"])
        super().step(batch)


class DiesOnce(Train):
    """Dies the first time it runs for real."""

    def step(self, batch):
        marker = Path(os.environ["BRIM_CACHE_DIR"]) / "died"
        if not marker.exists() and not isinstance(batch, torch._subclasses.FakeTensor):
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(batch)


class PythonMemory(Train):
    """Runs out in Python's own allocator, not in torch's."""

    def step(self, batch):
        kept = [bytes(8 * 2**20) for _ in range(len(batch))]
        super().step(batch)
        del kept


class LeavesChildren(Train):
    """Starts two processes, one in a session of its own, and forgets them."""

    def build(self):
        for alone in (False, True):
            subprocess.Popen(["sleep", "1000"], start_new_session=alone)
        super().build()


class MakesArrays(Train):
    """Makes an array that is no tensor, of 64 MiB a sample: a trace makes it as well."""

    def step(self, batch):
        self.array = bytearray(len(batch) * 2**26)
        super().step(batch)


class CallsItMemory(Train):
    """A plain error whose text speaks of memory."""

    def step(self, batch):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class FailsForLongRows(Train):
    def step(self, batch):
        if self.case["rows"] > 128:
            raise ValueError("rows are too long")
        super().step(batch)


class HangsForLongRows(Train):
    def step(self, batch):
        if self.case["rows"] > 128 and not isinstance(batch, torch._subclasses.FakeTensor):
            threading.Event().wait()
        super().step(batch)
