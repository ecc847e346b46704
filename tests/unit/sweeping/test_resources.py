import pytest

from brim.errors import DeviceError, InputError
from brim.sweeping.local import LocalEngine
from brim.sweeping.resources import Resources, num_at_once

MACHINE = {"num_cores": 16, "num_gpus": 4, "free_bytes": 64 * 2**30, "peak_bytes": None, "jobs": None}


@pytest.mark.parametrize(
    ("needed", "machine", "number"),
    [
        (Resources(), {}, 16),
        (Resources(cpus=5), {}, 3),
        (Resources(gpus=1), {}, 4),
        (Resources(gpus=2), {}, 2),
        (Resources(memory_bytes=20 * 2**30), {}, 3),
        (Resources(), {"peak_bytes": 30 * 2**30}, 2),
        (Resources(memory_bytes=2**30), {"peak_bytes": 30 * 2**30}, 16),
        (Resources(), {"peak_bytes": 100 * 2**30}, 1),
        (Resources(), {"jobs": 3}, 3),
        (Resources(), {"jobs": 40}, 40),
        (Resources(gpus=1), {"jobs": 40}, 4),
    ],
)
def test_as_many_run_at_once_as_cores_memory_and_gpus_allow(needed, machine, number):
    assert num_at_once(needed, **{**MACHINE, **machine}) == number


def test_the_command_line_goes_before_the_file():
    asked = Resources.read({"cpus": 2, "gpus": 1, "memory": "8GiB"})
    assert asked.override(cpus=4, gpus=None, memory="1GiB") == Resources(cpus=4, gpus=1, memory_bytes=2**30)
    assert str(asked) == "2 CPUs, 1 GPU, 8.00 GiB"


def test_gpus_are_handed_out_one_trial_each(monkeypatch, tmp_path):
    from brim.devices.nvml import Gpu
    from brim.sweeping import local
    from brim.sweeping.trial import TrialRequest

    monkeypatch.setattr(local, "visible_gpus", lambda: [Gpu(name="x", total_bytes=1, free_bytes=1)] * 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-aa")
    engine = LocalEngine(Resources(), jobs=8)
    seen = []
    try:
        assert engine.num_slots == 2
        command = ("/bin/sh", "-c", 'printf "$CUDA_VISIBLE_DEVICES"', "{config}")
        for name in ("aa", "bb"):
            request = TrialRequest(
                trial_id=name, attempt=1, config={}, command=command, function=None, workdir=str(tmp_path)
            )
            engine.start(request, tmp_path / name)
        assert not engine.has_room
        while engine.num_running:
            seen += [outcome.where.split("GPU ", 1)[1] for _, outcome in engine.wait(1.0)]
    finally:
        engine.close()
    assert sorted(seen) == ["5", "GPU-aa"]
    assert sorted((tmp_path / name / "log.txt").read_text() for name in ("aa", "bb")) == ["5", "GPU-aa"]


def test_what_the_machine_does_not_have_is_refused():
    with pytest.raises(DeviceError, match="A trial asks for 9999 CPUs, but this machine has"):
        LocalEngine(Resources(cpus=9999))
    with pytest.raises(InputError, match="hands out whole CPUs and GPUs"):
        LocalEngine(Resources(cpus=0.5))
