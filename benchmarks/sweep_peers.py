"""Run one sweeper over a grid of trials that do nothing, in this process, and tell what it took on the last line.

python benchmarks/sweep_peers.py SWEEPER NUM_TRIALS FOLDER
python benchmarks/sweep_peers.py --million SWEEPER FOLDER
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Two dimensions whose product is the number of trials, and six whose product is a million.
_WIDTH = 10
MILLION = {f"k{index}": list(range(10)) for index in range(6)}


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Do nothing: brim's trial."""
    return {"score": config["x"]}


def grid(num_trials: int) -> dict[str, list[int]]:
    """Return a grid of so many trials."""
    return {"x": list(range(num_trials // _WIDTH)), "y": list(range(_WIDTH))}


def brim_function(space: dict[str, list[int]], folder: Path) -> int:
    """Call a function in a fresh process for each trial, one at a time."""
    return _brim({"function": f"{Path(__file__).name}:run"}, space, folder, jobs=1)


def brim_function_parallel(space: dict[str, list[int]], folder: Path) -> int:
    """Call a function in a fresh process for each trial, one for each core."""
    return _brim({"function": f"{Path(__file__).name}:run"}, space, folder, jobs=None)


def brim_command(space: dict[str, list[int]], folder: Path) -> int:
    """Start a new Python for each trial, one at a time."""
    code = "import os; open(os.environ['BRIM_RESULT'], 'w').write('{\"score\": 1}')"
    return _brim({"command": ["python", "-S", "-c", code, "{config}"]}, space, folder, jobs=1)


def brim_ray(space: dict[str, list[int]], folder: Path) -> int:
    """Call a function in a fresh process for each trial, as tasks of a local Ray."""
    return _brim({"function": f"{Path(__file__).name}:run"}, space, folder, engine="ray")


def _brim(what: dict[str, Any], space: dict[str, list[int]], folder: Path, **settings: Any) -> int:
    import brim

    document = {**what, "workdir": str(Path(__file__).parent), "sweep": {"product": space}}
    results = brim.sweep(document, out=folder / "out", **settings)
    return sum(trial.status == "done" for trial in results)


def brim_of_a_million(space: dict[str, list[int]], folder: Path) -> int:
    """Run as many trials of a grid of a million as the other sweepers have in all."""
    limit = math.prod(map(len, space.values()))
    whole = {**MILLION, "x": [1]}
    return _brim({"function": f"{Path(__file__).name}:run"}, whole, folder, max_experiments=limit)


def optuna_memory(space: dict[str, list[int]], folder: Path) -> int:
    """Call an objective in this process; nothing is kept."""
    return _optuna(space, None)


def optuna_sqlite(space: dict[str, list[int]], folder: Path) -> int:
    """Call an objective in this process; results are kept in SQLite, so that a study can go on."""
    return _optuna(space, f"sqlite:///{folder}/study.db")


def _optuna(space: dict[str, list[int]], storage: str | None) -> int:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(space, seed=0), storage=storage)
    study.optimize(lambda trial: float(trial.suggest_int("x", 0, 10**6) + trial.suggest_int("y", 0, _WIDTH)))
    return sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)


def ray_tune(space: dict[str, list[int]], folder: Path) -> int:
    """Call a trainable in Ray's workers; results are kept in files."""
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        tune.report({"score": config["x"]})

    searched = {key: tune.grid_search(values) for key, values in space.items()}
    tuner = tune.Tuner(
        trainable, param_space=searched, run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0)
    )
    return tuner.fit().num_terminated


SWEEPERS: dict[str, Callable[[dict[str, list[int]], Path], int]] = {
    "brim function": brim_function,
    "brim function, one a core": brim_function_parallel,
    "brim command": brim_command,
    "brim on Ray": brim_ray,
    "brim, of a million": brim_of_a_million,
    "Optuna, in memory": optuna_memory,
    "Optuna, SQLite": optuna_sqlite,
    "Ray Tune": ray_tune,
}


def count_brim(folder: Path) -> Iterator[int]:
    """Count a million trials, then make the first."""
    from brim.sweeping.plan import make_plan
    from brim.sweeping.spec import read_spec

    exclude = [{"k0": 3, "k5": 4}, {"k1": 7}]
    plan = make_plan(read_spec({"function": "x.py:f", "sweep": {"product": MILLION, "exclude": exclude}}))
    yield len(plan)
    yield len(next(iter(plan)).config)


def count_optuna(folder: Path) -> Iterator[int]:
    """Make the sampler, which knows the count, then the first trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.GridSampler(MILLION, seed=0)
    yield math.prod(map(len, MILLION.values()))
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    yield len([trial.suggest_int(key, 0, 9) for key in MILLION])


COUNTERS = {"brim": count_brim, "Optuna": count_optuna}


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def main() -> None:
    """Run what the command line names."""
    if sys.argv[1] == "--million":
        _, _, name, folder = sys.argv
        importlib.import_module("brim.sweeping.plan" if name == "brim" else "optuna")
        before_bytes, started = _peak_bytes(), time.perf_counter()
        steps = COUNTERS[name](Path(folder))
        count, counted = next(steps), time.perf_counter()
        next(steps)
        told = {
            "count": count,
            "count_seconds": counted - started,
            "first_trial_seconds": time.perf_counter() - started,
            "grown_bytes": _peak_bytes() - before_bytes,
        }
    else:
        _, name, num_trials, folder = sys.argv
        started = time.perf_counter()
        num_done = SWEEPERS[name](grid(int(num_trials)), Path(folder))
        told = {"num_done": num_done, "seconds": time.perf_counter() - started, "peak_bytes": _peak_bytes()}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what a sweeper leaves running is not timed


if __name__ == "__main__":
    main()
