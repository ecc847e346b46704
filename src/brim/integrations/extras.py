"""What is said where a package is missing or too old."""

from __future__ import annotations

import importlib.metadata
import re

from brim.errors import InputError


def missing_extra(name: str, option: str) -> InputError:
    """Return the error for an option whose package is not installed.

    >>> str(missing_extra("mlflow", "--mlflow"))
    "--mlflow needs a package that is not installed. Install it with: pip install 'brim[mlflow]'"
    """
    return InputError(f"{option} needs a package that is not installed. Install it with: pip install 'brim[{name}]'")


def require(package: str, at_least: str) -> None:
    """Refuse a framework that is missing or too old.

    >>> require("rich", "999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brim.errors.InputError: rich ... is installed, and 999.0 or newer is needed. Install it with: pip install ...
    """
    remedy = f"Install it with: pip install '{package}>={at_least}'"
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"{package} is not installed, and {at_least} or newer is needed. {remedy}") from error
    if _release(installed) < _release(at_least):
        raise InputError(f"{package} {installed} is installed, and {at_least} or newer is needed. {remedy}")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
