"""What is said where an extra is missing."""

from __future__ import annotations

from brim.errors import InputError


def missing_extra(name: str, option: str) -> InputError:
    """Return the error for an option whose package is not installed.

    >>> str(missing_extra("mlflow", "--mlflow"))
    "--mlflow needs a package that is not installed. Install it with: pip install 'brim[mlflow]'"
    """
    return InputError(f"{option} needs a package that is not installed. Install it with: pip install 'brim[{name}]'")
