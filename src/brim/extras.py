"""What is said where a package is missing or too old."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager

from brim.errors import InputError, MissingPackageError


def missing_extra(name: str, option: str) -> MissingPackageError:
    """Return the error for an option whose package is not installed, with the extra that brings it.

    >>> print(missing_extra("mlflow", "--mlflow"))
    --mlflow needs a package that is not installed. Install it from brim's folder with: pip install '.[mlflow]'
    """
    remedy = f"Install it from brim's folder with: pip install '.[{name}]'"
    return MissingPackageError(f"{option} needs a package that is not installed. {remedy}")


@contextmanager
def needed(package: str, at_least: str) -> Iterator[None]:
    """Answer a framework that is missing or too old, where it is imported in the block, with what to install."""
    require(package, at_least)
    try:
        yield
    except ModuleNotFoundError as error:
        # A framework that is there and lacks a part says so better itself.
        if error.name != package.replace("-", "_"):
            raise
        raise _missing(package, at_least) from error


def require(package: str, at_least: str) -> None:
    """Refuse a framework that is missing or too old.

    >>> require("rich", "999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brim.errors.InputError: rich ... is installed, and 999.0 or newer is needed. Install it with: pip install ...
    """
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing(package, at_least) from error
    if _release(installed) < _release(at_least):
        raise InputError(f"{package} {installed} is installed, and {_remedy(package, at_least)}")


def _missing(package: str, at_least: str) -> MissingPackageError:
    return MissingPackageError(f"{package} is not installed, and {_remedy(package, at_least)}")


def _remedy(package: str, at_least: str) -> str:
    return f"{at_least} or newer is needed. Install it with: pip install '{package}>={at_least}'"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
