"""The page: sections into one HTML file, with its style and its script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from brim.errors import InputError
from brim.reporting.page.documents import COMMANDS, Document
from brim.reporting.page.findings_section import findings_section
from brim.reporting.page.plan_section import plan_section
from brim.reporting.page.prediction_section import prediction_section
from brim.reporting.page.section import Section
from brim.reporting.page.sweep_section import sweep_section

_SECTIONS: dict[str, Callable[[dict[str, Any]], Section]] = {
    "brim.findings/1": findings_section,
    "brim.prediction/1": prediction_section,
    "brim.plan/1": plan_section,
    "brim.sweep/1": sweep_section,
}


def sections_of(documents: Sequence[Document]) -> list[Section]:
    """Return a section for each document."""
    return [_section(document) for document in documents]


def render_page(documents: Sequence[Document], *, title: str = "brim report") -> str:
    """Return the HTML page of documents; it loads nothing, and no other script can run in it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from brim.reporting.page.svg import draw

    folder = files(__package__)
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        sections=sections_of(documents),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        draw=draw,
    )


def _section(document: Document) -> Section:
    document.check()
    try:
        return _SECTIONS[document.schema](document.data)
    except InputError as error:
        raise InputError(f"{document.source}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        # Each field is as it should be, and yet they do not go together.
        raise InputError(
            f"{document.source} calls itself {document.schema}, but its fields contradict each other "
            f"({type(error).__name__}: {error}). Write it again: {COMMANDS[document.schema]}."
        ) from error
