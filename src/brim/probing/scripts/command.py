"""A command as a workload: its words, with places for the microbatch and the case."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.cases import Case
from brim.errors import InputError
from brim.history import hash_file

BATCH = "{batch}"
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
# Options after which a script writes: a probe runs the real script, which would write there too.
_OUTPUT_OPTION = re.compile(r"--?(output|out|save|checkpoint|ckpt|log|default_root)[\w-]*(dir|path|folder)?")
# How launchers are told how many processes to start on a machine.
_NUM_RANKS = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes)(?:=(\d+))?")


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a command, one of them with the place `{batch}`.

    >>> command = Command(("python", "eval.py", "--bs={batch}", "--crops", "{max_crops}"))
    >>> command.fill_in(Case({"max_crops": 12}), 64)
    ['python', 'eval.py', '--bs=64', '--crops', '12']
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words:
            raise InputError("The command after -- is empty. Write for example -- python train.py --batch_size {batch}")
        if not any(BATCH in word for word in self.words):
            raise InputError(
                f"The command `{self}` has no {{batch}}: every probe would be the same. Put {{batch}} where the "
                "microbatch belongs, for example --batch_size {batch}."
            )

    def __str__(self) -> str:
        return _shown(self.words)

    @property
    def label(self) -> str:
        """The command as tables name it: its script, or its program."""
        return next((Path(word).name for word in self.words if word.endswith(".py")), Path(self.words[0]).name)

    @property
    def num_ranks(self) -> int:
        """How many processes its launcher is told to start here; 1 where it is told nothing.

        >>> Command(("torchrun", "--nproc-per-node=2", "train.py", "{batch}")).num_ranks
        2
        """
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            match = _NUM_RANKS.fullmatch(word)
            number = (match[1] or following) if match else ""
            if number.isdigit():
                return max(1, int(number))
        return 1

    def check(self, cases: Sequence[Case]) -> None:
        """Refuse a command that cannot start, and places and cases that do not go together."""
        places = {name for word in self.words for name in _PLACE.findall(word)} - {"batch"}
        for case in cases:
            if "batch" in case:
                raise InputError("A case cannot be called 'batch': {batch} is the microbatch.")
            if unused := sorted(set(case) - places):
                raise InputError(
                    f"The case {unused[0]!r} has no place in the command `{self}`: its values would change nothing. "
                    f"Add for example --{unused[0]} {{{unused[0]}}}."
                )
        check_program(self.words)

    def unnamed_places(self, cases: Sequence[Case]) -> list[str]:
        """Return what stands in braces like a case, and is none: it stays as it is.

        >>> Command(("python", "eval.py", "{batch}", "{max_crops}", "${HOME}")).unnamed_places([Case({})])
        ['max_crops']
        """
        named = {name for case in cases for name in case} | {"batch"}
        # A shell's own ${name} is no place.
        places = [
            place[1]
            for word in self.words
            for place in _PLACE.finditer(word)
            if not word[: place.start()].endswith("$")
        ]
        return sorted(set(places) - named)

    def fill_in(self, case: Case, microbatch: int) -> list[str]:
        """Return the words with the microbatch and the case in their places; other braces stay as they are."""
        values = {**{name: str(value) for name, value in case.items()}, "batch": str(microbatch)}
        return [_PLACE.sub(lambda place: values.get(place[1], place[0]), word) for word in self.words]

    def sources(self) -> dict[str, str]:
        """Return the hash of every file that the command names: scripts, configurations."""
        files = [Path(word.rpartition("=")[2]) for word in self.words[1:]]
        found = {str(file.resolve()): hash_file(file) for file in files if file.is_file()}
        return {path: digest for path, digest in found.items() if digest is not None}

    def overwritten(self) -> list[str]:
        """Return the folders with something in them that the command seems to write to."""
        folders = []
        for option, value in zip(self.words, (*self.words[1:], ""), strict=True):
            name, _, joined = option.partition("=")
            folder = Path(joined or value)
            if _OUTPUT_OPTION.fullmatch(name) and (joined or value) and folder.is_dir() and any(folder.iterdir()):
                folders.append(str(folder))
        return folders


def check_program(words: Sequence[str]) -> None:
    """Refuse a command whose program or script is not there."""
    command = _shown(words)
    if find_program(words[0]) is None:
        raise InputError(f"There is no program {words[0]!r}. Install it, or mend the command `{command}`.")
    for word in words[1:]:
        if word.endswith(".py") and not Path(word).is_file() and "{" not in word:
            raise InputError(f"There is no file {word} for the command `{command}`. Mend its path.")


def _shown(words: Sequence[str]) -> str:
    return shlex.join(words).replace("'{", "{").replace("}'", "}")


def find_program(name: str) -> str | None:
    """Return the path of a program: on PATH, or beside the Python that runs brim."""
    return shutil.which(name) or shutil.which(name, path=os.fspath(Path(sys.executable).parent))
