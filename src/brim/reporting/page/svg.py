"""Charts as SVG, drawn by Vega-Lite while the page is written, so that the page carries no library."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from brim.extras import missing_extra
from brim.reporting.page.section import ChartSpec

# The grammar that charts.py is written in; vl-convert carries several.
VEGA_LITE = "5.20"
# Colours are the page's own CSS variables, so that a picture follows the light and the dark theme.
_CONFIG: dict[str, Any] = {
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--grid)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelOverlap": True,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "orient": "top",
        "title": None,
        "symbolOpacity": 1,
        "columnPadding": 14,
    },
    "text": {"fontSize": 12, "fill": "var(--ink)"},
    "aria": True,
}


def draw(spec: ChartSpec) -> Markup:
    """Return a chart as SVG; texts in it are escaped by the renderer."""
    try:
        import vl_convert
    except ImportError as error:
        raise missing_extra("report", "brim report") from error
    whole = {"background": None, "autosize": {"type": "fit-x", "contains": "padding"}, "config": _CONFIG, **spec}
    svg: str = vl_convert.vegalite_to_svg(whole, vl_version=VEGA_LITE)
    return Markup(svg)
