"""Charts in the grammar of Vega-Lite; every mark that can be pointed at carries its numbers as a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Spec = dict[str, Any]

WIDE_PIXELS = 960
NARROW_PIXELS = 330
_HEIGHT_PIXELS = 260
_BAR_PIXELS = 24
# Colours and shapes of verdicts, told apart without colour as well.
_VERDICTS = {
    "fits": ("var(--fits)", "circle"),
    "oom": ("var(--oom)", "cross"),
    "error": ("var(--error)", "triangle-up"),
    "unclear": ("var(--unclear)", "diamond"),
}
_DOT_AREA = 90
# Room above the highest point for names, as a share of it.
_HEADROOM = 1.2


def both_widths(build: Any, *arguments: Any, **settings: Any) -> dict[str, Spec]:
    """Return a chart for a screen and for a phone, as `Chart` takes them."""
    return {
        "wide": build(*arguments, width=WIDE_PIXELS, **settings),
        "narrow": build(*arguments, width=NARROW_PIXELS, **settings),
    }


def dots(
    points: Sequence[Row],
    *,
    x_title: str,
    y_title: str,
    lines: Sequence[Row] = (),
    curve: Sequence[Row] = (),
    ranges: Sequence[Row] = (),
    bands: Sequence[Row] = (),
    width: int,
) -> Spec:
    """Return dots coloured by verdict, over an optional curve, with named lines across or upright.

    Args:
        points: `x`, `y`, `verdict` and `tip` of each.
        x_title: What lies along.
        y_title: What goes up.
        lines: `y` or `x`, and `label`, of each; `is_left` puts the name of an upright one to its left, and
            `is_answer` marks what was answered.
        curve: `x` and `y` of each.
        ranges: `x`, `low` and `high` of each: how far a dot may be off.
        bands: `low`, `high` and `label` of each, across.
        width: In pixels.
    """
    found = [verdict for verdict in _VERDICTS if any(point["verdict"] == verdict for point in points)]
    color = {"domain": found, "range": [_VERDICTS[verdict][0] for verdict in found]}
    shape = {"domain": found, "range": [_VERDICTS[verdict][1] for verdict in found]}
    legend: Spec | None = None if found == ["fits"] else {}
    heights = [line["y"] for line in lines if "y" in line] + [each["high"] for each in ranges]
    top = _HEADROOM * max(heights + [point["y"] for point in points])
    layers = [layer for band in bands for layer in _band(band)]
    layers += [] if not curve else [_curve(curve)]
    layers += [layer for line in lines for layer in _line(line)]
    layers += [] if not ranges else [_ranges(ranges)]
    layers.append(
        {
            "data": {"values": list(points)},
            "mark": {"type": "point", "filled": True, "size": _DOT_AREA, "opacity": 1, "ariaRoleDescription": "probe"},
            "encoding": {
                **_along(x_title),
                "y": {
                    "field": "y",
                    "type": "quantitative",
                    "title": y_title,
                    "scale": {"zero": True, "domainMax": top},
                },
                "color": {"field": "verdict", "type": "nominal", "scale": color, "legend": legend},
                "shape": {"field": "verdict", "type": "nominal", "scale": shape},
                "description": {"field": "tip"},
            },
        }
    )
    return {"width": width, "height": _HEIGHT_PIXELS, "layer": layers}


def stacked(
    rows: Sequence[Row],
    kinds: Sequence[str],
    *,
    x_title: str,
    y_title: str,
    lines: Sequence[Row] = (),
    bands: Sequence[Row] = (),
    width: int,
) -> Spec:
    """Return stacked areas, one for each kind, with named lines and the names of stretches along.

    Args:
        rows: `x`, `tip`, and under its name the value of every kind.
        kinds: From the bottom to the top.
        x_title: What lies along.
        y_title: What goes up.
        lines: `y` or `x`, and `label`, of each; `is_right` puts the name of one to the right.
        bands: `x` and `label` of each: where it begins.
        width: In pixels.
    """
    values = [
        {"x": row["x"], "kind": kind, "y": row[kind], "order": order}
        for order, kind in enumerate(kinds)
        for row in rows
    ]
    colors = {"domain": list(kinds), "range": [f"var(--kind-{kind.split()[0]})" for kind in kinds]}
    up: Spec = {"field": "y", "type": "quantitative", "title": y_title, "stack": "zero"}
    highest = max([sum(row[kind] for kind in kinds) for row in rows] + [line["y"] for line in lines if "y" in line])
    up["scale"] = {"domainMax": _HEADROOM * highest}
    legend = {"columns": 7 if width >= WIDE_PIXELS else 2}
    area = {
        "data": {"values": values},
        "mark": {"type": "area", "aria": False},
        "encoding": {
            **_along(x_title, is_nice=False),
            "y": up,
            "color": {"field": "kind", "type": "nominal", "scale": colors, "legend": legend, "sort": None},
            "order": {"field": "order"},
        },
    }
    named = [layer for line in [*lines, *({**band, "is_band": True} for band in bands)] for layer in _line(line)]
    # What can be pointed at is an unseen stripe over each row.
    stripes = {
        "data": {"values": [{"x": row["x"], "tip": row["tip"]} for row in rows]},
        "mark": {"type": "rule", "opacity": 0, "strokeWidth": width / max(1, len(rows)), "ariaRoleDescription": "size"},
        "encoding": {**_along(x_title, is_nice=False), "description": {"field": "tip"}},
    }
    return {"width": width, "height": _HEIGHT_PIXELS, "layer": [area, *named, stripes]}


def bars(rows: Sequence[Row], *, x_title: str, width: int) -> Spec:
    """Return a bar with its number for each row of `label`, `x`, `text` and `tip`, from the top down."""
    axis = {"labelLimit": width * 0.45, "domain": False, "ticks": False}
    labels = {"field": "label", "type": "nominal", "sort": None, "title": None, "axis": axis}
    encoding = {
        "y": labels,
        "x": {"field": "x", "type": "quantitative", "title": x_title, "axis": {"grid": False, "tickCount": 4}},
        "description": {"field": "tip"},
    }
    number = {"type": "text", "align": "left", "dx": 5, "aria": False}
    return {
        "width": width,
        "height": {"step": _BAR_PIXELS},
        "data": {"values": list(rows)},
        "layer": [
            {
                "mark": {"type": "bar", "color": "var(--accent)", "cornerRadiusEnd": 3, "ariaRoleDescription": "bar"},
                "encoding": encoding,
            },
            {"mark": number, "encoding": {**encoding, "text": {"field": "text"}}},
        ],
    }


def _along(title: str, *, is_nice: bool = True) -> Spec:
    scale = {"zero": True, "nice": is_nice}
    return {"x": {"field": "x", "type": "quantitative", "title": title, "axis": {"grid": False}, "scale": scale}}


def _curve(values: Sequence[Row]) -> Spec:
    return {
        "data": {"values": list(values)},
        "mark": {"type": "line", "color": "var(--accent)", "aria": False},
        "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
    }


def _ranges(values: Sequence[Row]) -> Spec:
    up = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    return {
        "data": {"values": list(values)},
        "mark": {"type": "rule", "color": "var(--fits)", "aria": False},
        "encoding": {"x": {"field": "x", "type": "quantitative"}, **up},
    }


def _band(band: Row) -> list[Spec]:
    """Return a stretch of heights, across, with its name above it."""
    data = {"values": [band]}
    fill = {"type": "rect", "color": "var(--fits)", "opacity": 0.12, "aria": False}
    name = {"type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -3, "aria": False}
    low, high = ({"field": side, "type": "quantitative"} for side in ("low", "high"))
    return [
        {"data": data, "mark": fill, "encoding": {"y": low, "y2": {"field": "high"}}},
        {"data": data, "mark": name, "encoding": {"y": high, "x": {"value": 0}, "text": {"field": "label"}}},
    ]


def _line(line: Row) -> list[Spec]:
    """Return a line across (`y`) or upright (`x`) and its name beside it."""
    channel = "y" if "y" in line else "x"
    at = {channel: {"field": channel, "type": "quantitative"}}
    dashes = [2, 3] if line.get("is_band") else [6, 4]
    rule = {"type": "rule", "color": "var(--line)" if line.get("is_band") else "var(--limit)", "strokeDash": dashes}
    if line.get("is_answer"):
        rule = {"type": "rule", "color": "var(--accent)"}
    name: Spec
    place: Spec
    if channel == "x":
        # The answer and a knee beside it have their names one above the other.
        down = 22 if line.get("is_answer") else 6
        side = {"align": "right", "dx": -4} if line.get("is_left") else {"align": "left", "dx": 4}
        name, place = {**side, "baseline": "top", "dy": down}, {"y": {"value": 0}}
    elif line.get("is_right"):
        name, place = {"align": "right", "baseline": "bottom", "dy": -3}, {"x": {"value": "width"}}
    else:
        name, place = {"align": "left", "baseline": "bottom", "dx": 4, "dy": -3}, {"x": {"value": 0}}
    data = {"values": [line]}
    return [
        {"data": data, "mark": {**rule, "aria": False}, "encoding": at},
        {
            "data": data,
            "mark": {"type": "text", "aria": False, **name},
            "encoding": {**at, **place, "text": {"field": "label"}},
        },
    ]
