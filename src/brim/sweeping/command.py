"""What a trial runs: a command with places for its configuration, or a function."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.sweeping.outcome import RESULT_FILE

CONFIG_FILE = "config.yaml"
# Taken for the interpreter that runs brim, which has the packages that brim was installed beside.
_PYTHONS = ("python", "python3")


def read_command(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the words of `command:`; None where there is none."""
    command, function = document.get("command"), document.get("function")
    if command is not None and function is not None:
        raise InputError("The sweep has both `command:` and `function:`. Leave out one of them.")
    if function is not None and (not isinstance(function, str) or not function.rpartition(":")[0]):
        raise InputError(f"function is {function!r}. Use package.module:name or file.py:name.")
    if command is None:
        return None
    if not isinstance(command, (str, list)):
        raise InputError(f"command is {command!r}. Use a text, or a list of words.")
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise InputError(f"The command `{command}` cannot be split into words: {error}.") from error
    if not any("{config}" in word for word in words):
        raise InputError(
            f"The command `{shlex.join(words)}` has no {{config}}: no trial would learn of its configuration. "
            "Write for example `python train.py --config {config}`."
        )
    return tuple(words)


def check_runnable(command: tuple[str, ...] | None, function: str | None, workdir: Path) -> None:
    """Refuse what could not start, before a trial tries: nothing to run, or a missing program, script or folder."""
    if command is None and function is None:
        raise InputError(
            "The sweep says nothing to run. Write `command: python train.py --config {config}` or "
            "`function: train.py:train` into its file, or pass --command."
        )
    if not workdir.is_dir():
        raise InputError(f"There is no folder {workdir} to run in. Set `workdir:`, relative to the sweep file.")
    script = function.rpartition(":")[0] if function is not None else _script(command or ())
    if script.endswith(".py") and not (workdir / script).is_file():
        raise InputError(
            f"There is no file {script} to run. Paths are relative to {workdir}; set `workdir:` in the sweep file."
        )
    if command is None or command[0] in _PYTHONS:
        return
    program = command[0]
    if shutil.which(workdir / program if "/" in program else program) is None:
        raise InputError(
            f"There is no program {program!r} for the command `{shlex.join(command)}`. Install it, or mend the command."
        )


def fill_in(command: tuple[str, ...], directory: Path, trial_id: str) -> tuple[str, ...]:
    """Return the words of a command with its places filled in; `python` is the one that runs brim.

    >>> fill_in(("train", "--config", "{config}", "--tag={id}"), Path("out"), "1f")
    ('train', '--config', 'out/config.yaml', '--tag=1f')
    """
    places = {
        "{config}": str(directory / CONFIG_FILE),
        "{result}": str(directory / RESULT_FILE),
        "{dir}": str(directory),
        "{id}": trial_id,
    }
    words = list(command)
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    if words[0] in _PYTHONS:
        words[0] = sys.executable
    return tuple(words)


def _script(command: tuple[str, ...]) -> str:
    """Return the file that Python is given to run; empty where there is none."""
    if not command or command[0] not in _PYTHONS:
        return ""
    for word in command[1:]:
        if not word.startswith("-"):
            return word
        if word in ("-m", "-c"):
            return ""
    return ""
