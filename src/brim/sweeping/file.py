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
# How many values a file may have once every alias stands for what it names, and how deep they may lie.
_MOST_VALUES = 1_000_000
_DEEPEST = 50


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
        document = _load(text, what)
    except RecursionError:  # the parser itself calls itself for every level
        raise InputError(f"The {what} is nested too deeply. Use at most {_DEEPEST} levels.") from None
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


def _load(text: str, what: str) -> Any:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _count(root, what, {}, depth=0) > _MOST_VALUES:
            raise InputError(f"The {what} has more than {_MOST_VALUES:,} values once its aliases are written out.")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _count(node: yaml.Node, what: str, known: dict[int, int | None], *, depth: int) -> int:
    """Return how many values a node holds, with those of its aliases; `known` has None for one that is looked at."""
    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise InputError(f"The {what} is nested too deeply in line {line}. Use at most {_DEEPEST} levels.")
    if id(node) not in known:
        known[id(node)] = None
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [each for pair in inner for each in pair]
        known[id(node)] = 1 + sum(_count(each, what, known, depth=depth + 1) for each in inner)
    found = known[id(node)]
    if found is None:
        raise InputError(f"The {what} has a value in line {line} that holds itself. Leave out the alias in it.")
    return found


def check_names(document: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse names that mean nothing, with the nearest that does."""
    from brim.sweeping.config import nearest

    for name in document:
        if name not in known:
            raise InputError(f"{where} has an unknown name {name!r}. {nearest(str(name), known)}")
