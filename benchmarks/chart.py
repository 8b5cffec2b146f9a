"""One picture of the main figures: horizontal bars on a logarithmic scale, as SVG, without any library or script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, GAP, TITLE = 760, 150, 90, 18, 6, 34
OURS, THEIRS, FLOOR = "#2563eb", "#94a3b8", "#16a34a"


@dataclass(frozen=True)
class Bar:
    """One competitor: how many times the reference it takes, and which kind of competitor it is."""

    label: str
    ratio: float
    kind: str = THEIRS


@dataclass(frozen=True)
class Panel:
    """One figure's bars, in the order in which they are drawn."""

    title: str
    bars: Sequence[Bar]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The picture: one scale for all panels, from the least ratio to the greatest."""
    ratios = [bar.ratio for panel in panels for bar in panel.bars if bar.ratio > 0]
    low = math.floor(math.log10(min([*ratios, 1.0])))
    high = max(math.ceil(math.log10(max([*ratios, 1.0]))), low + 1)
    span = WIDTH - LEFT - RIGHT

    def at(ratio: float) -> float:
        return LEFT + span * (math.log10(max(ratio, 10.0**low)) - low) / (high - low)

    top = 40
    parts: list[str] = []
    for panel in panels:
        parts.append(_text(LEFT, top + 20, panel.title, "start", "bold"))
        top += TITLE
        for bar in panel.bars:
            middle = top + BAR / 2 + 4
            parts.append(_text(LEFT - 8, middle, bar.label, "end"))
            width = max(at(bar.ratio) - LEFT, 2)
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{bar.kind}" rx="2"/>')
            parts.append(_text(LEFT + width + 6, middle, f"{number(bar.ratio)}x", "start"))
            top += BAR + GAP
    height = top + 16
    grid = [
        f'<line x1="{at(10.0**power):.1f}" y1="44" x2="{at(10.0**power):.1f}" y2="{top}" stroke="#e2e8f0"/>'
        for power in range(low, high + 1)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    caption = _text(LEFT, 26, title, "start", "bold", 15)
    return "\n".join([head, background, caption, *grid, *parts, "</svg>", ""])


def number(value: float) -> str:
    """Three digits are all that is meant."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal", size: int = 12) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="#0f172a"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
