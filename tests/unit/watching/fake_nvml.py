"""A driver with two GPUs, as far as `GpuSampler` asks one; it obeys the same contract test as the real one."""

from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    pass


class FakeNvml:
    NVMLError = NVMLError

    def __init__(self, *, processes=()):
        self.lost = set()
        self.processes = list(processes)
        self.is_open = True

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle):
        return "Fake RTX"

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle in self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=6 * GIB, total=24 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=73)

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == 1:
            raise NVMLError("Not Supported")
        return 240_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 350_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes] if handle == 0 else []

    def nvmlShutdown(self):
        self.is_open = False
