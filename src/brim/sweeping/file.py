"""The sweep file: YAML, safely loaded, with the mistakes that YAML would pass over in silence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from brim.errors import InputError

# YAML 1.1 takes 1e-3 for a text, because it has no point; people mean a number.
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*)(?:\.[\d_]*)?[eE][-+]?\d+")


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-3 as a number and refuses a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen and key != "<<":
                lines = f"lines {seen[key].start_mark.line + 1} and {key_node.start_mark.line + 1}"
                raise InputError(f"{key} is written twice, in {lines}. Leave out one of them.")
            if isinstance(key, str):
                seen[key] = key_node
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; tags of Python objects are refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"The {what} {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"The {what} {path} is not text in UTF-8.") from error
    return parse_yaml(text, f"{what} {path}")


def parse_yaml(text: str, what: str) -> dict[str, Any]:
    """Return the mapping that a YAML text holds.

    >>> parse_yaml("hp.learning_rate: [1e-3, 0.01]", "text")
    {'hp.learning_rate': [0.001, 0.01]}
    """
    try:
        document = yaml.load(text, _Loader)
    except yaml.constructor.ConstructorError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise InputError(
            f"The {what} has something in line {line} that is not plain data: {error.problem}. "
            "Tags such as !!python/object are not loaded."
        ) from error
    except yaml.YAMLError as error:
        raise InputError(f"The {what} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        found = "empty" if document is None else f"a {type(document).__name__}"
        raise InputError(f"The {what} must be a mapping at its top, but is {found}. Write `key: value` lines.")
    return document


def check_names(document: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse names that mean nothing, with the nearest that does."""
    from brim.sweeping.config import nearest

    for name in document:
        if name not in known:
            raise InputError(f"{where} has an unknown name {name!r}. {nearest(str(name), known)}")
