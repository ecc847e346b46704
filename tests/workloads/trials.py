"""Trials that end in every way there is; `config["dir"]` is a folder where they leave traces."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def leave_trace(config, name):
    """Note, whole or not at all, that something was reached."""
    path = Path(config["dir"]) / f"{name}-{os.getpid()}"
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), "config": config}))
    path.with_suffix(".new").replace(path)


def succeed(config):
    print("working on", config["value"])
    leave_trace(config, f"ran-{config['value']}")
    return {"score": config["value"] * 2, "nested": {"batch": config.get("batch")}}


def return_number(config):
    return config["value"] / 2


def fail(config):
    raise ValueError(f"cannot learn from {config['value']}")


def report_and_fail(config):
    """Report a score, and fail where the value is a bad one."""
    Path(os.environ["BRIM_RESULT"]).write_text(json.dumps({"score": config["value"]}))
    if config["value"] == config["bad"]:
        raise ValueError("bad")
    return {"score": config["value"]}


def run_out(config):
    raise MemoryError


def run_out_above_batch(config):
    if config["hp"]["batch_size"] > config["room"]:
        raise MemoryError(f"{config['hp']['batch_size']} samples")
    return {"batch": config["hp"]["batch_size"]}


def exit_137(config):
    leave_trace(config, "ran")
    os._exit(137)


def be_killed(config):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(config):
    """Run for ever, deaf to requests to end, with a child in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    leave_trace({**config, "child": child.pid}, "hangs")
    time.sleep(3600)


def leave_orphan(config):
    """End, and leave a daemon behind."""
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(3600)"
    subprocess.run([sys.executable, "-c", code], check=True)
    return {"score": 1}


def meet(config):
    """Wait until as many trials as there should be are here at the same time."""
    leave_trace(config, "here")
    while len(list(Path(config["dir"]).glob("here-*[0-9]"))) < config["num"]:
        time.sleep(0.01)
    return {"score": 1}


def hang_once(config):
    """Run for ever the first time, and to the end the next."""
    first = not list(Path(config["dir"]).glob(f"started-{config['value']}-*"))
    leave_trace(config, f"started-{config['value']}")
    if first and config["value"] == config["hanging"]:
        time.sleep(3600)
    return {"score": config["value"]}


NOT_A_FUNCTION = 3

if __name__ == "__main__":
    import yaml

    name, path = sys.argv[1:]
    returned = globals()[name](yaml.safe_load(Path(path).read_text()))
    Path(os.environ["BRIM_RESULT"]).write_text(json.dumps(returned))
