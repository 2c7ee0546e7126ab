"""The elements of a picture: escaped text, colours, and the frame that reads on dark and on light.

A picture that stands alone follows the reader's colour scheme. Inside of a page the page rules: it may
set ``--plot-text``, ``--plot-soft``, ``--plot-grid``, ``--plot-back`` and ``--plot-1`` … ``--plot-8``.
Programs that know no CSS take the plain attributes, which are those for a light ground.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from allranks.core.formatting import clean_lines

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A900",
)  # fmt: skip
"""Okabe and Ito's, which the colour-blind tell apart; their black and yellow are toned to be seen."""
_ON_DARK = (
    "#4DA6E0", "#F0843C", "#2CC79A", "#E3A0C5", "#F2B632", "#8CCBF2", "#A8A8A8", "#E5D84A",
)  # fmt: skip
TEXT, SOFT, GRID, BACK = "#1F2937", "#6B7280", "#E5E7EB", "#FFFFFF"
_DARK = {"text": "#E5E7EB", "soft": "#9CA3AF", "grid": "#334155", "back": "#0F172A"}
FONT = 12
_LETTER = 0.56  # the mean width of a letter, in font sizes
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(text: object) -> str:
    """Escape text for XML, keeping its lines and dropping control characters."""
    return html.escape(_NOT_XML.sub("�", clean_lines(str(text))))


def number(value: float) -> str:
    """Format a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def text_width(text: str, size: float = FONT) -> float:
    """Estimate the width of a text when drawn."""
    return len(text) * size * _LETTER


def shortened(text: str, width: float, size: float = FONT) -> str:
    """Cut a text with a … where it would not fit."""
    most = max(int(width / (size * _LETTER)), 1)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def text(
    x: float, y: float, words: str, anchor: str = "start", *, soft: bool = False, bold: bool = False
) -> str:
    """Draw one line of text."""
    weight = ' font-weight="600"' if bold else ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    kind = f'class="s" fill="{SOFT}"' if soft else f'class="t" fill="{TEXT}"'
    return f'<text x="{number(x)}" y="{number(y)}" {kind}{side}{weight}>{escaped(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Draw a line of the grid."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return "<line " + " ".join(f'{k}="{number(v)}"' for k, v in ends) + "/>"


def paint(index: int, colour: str | None = None) -> tuple[str, str]:
    """Return the class and the plain colour of a series; a colour given by the caller has no class."""
    if colour:
        return "", escaped(colour)
    place = index % len(COLOURS)
    return f"c{place + 1}", COLOURS[place]


def legend(
    names: Sequence[tuple[str, int, str | None, bool]], left: float, top: float, right: float
) -> tuple[list[str], float]:
    """Draw swatches with their names, in as many rows as needed; return them and where the rows end.

    Each is (name, place among the colours, colour of its own, dashed).
    """
    parts: list[str] = []
    x, y = left, top
    for name, index, colour, dashed in names:
        shown = shortened(name, (right - left) / 2)
        width = 20 + text_width(shown) + 16
        if x > left and x + width - 16 > right:
            x, y = left, y + 18
        kind, plain = paint(index, colour)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        parts.append(
            f'<line class="{kind}" x1="{number(x)}" y1="{number(y - 4)}" x2="{number(x + 14)}" '
            f'y2="{number(y - 4)}" stroke="{plain}" stroke-width="3"{dash}/>'
        )
        parts.append(text(x + 20, y, shown))
        x += width
    return parts, y + 18 if names else top


def heading(title: str, about: str, left: float, width: float) -> list[str]:
    """Draw the title in bold, followed by what is shown and its unit."""
    shown = shortened(title, width, 14)
    rest = shortened(about, width - text_width(shown, 14) - 10) if about else ""
    spans = (
        f'<tspan class="t" fill="{TEXT}" font-size="14" font-weight="600">{escaped(shown)}</tspan>'
    )
    gap = ' dx="10"' if shown else ""
    more = f'<tspan class="s" fill="{SOFT}"{gap}>{escaped(rest)}</tspan>'
    inner = (spans if shown else "") + (more if rest else "")
    return [f'<text x="{number(left)}" y="20">{inner}</text>'] if inner else []


def document(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """Wrap the parts into a complete SVG."""
    name = escaped(title or "plot")
    size = f"{number(width)} {number(height)}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {size}" role="img" '
        f'aria-label="{name}" font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" '
        f'font-size="{FONT}">\n<title>{name}</title>\n<style>{_style()}</style>\n'
        f'<rect class="b" width="100%" height="100%" fill="{BACK}"/>\n{body}\n</svg>\n'
    )


def _style() -> str:
    """Return the colours as variables with fallbacks; ``:root`` is the SVG only where it stands alone."""
    plain = {"text": TEXT, "soft": SOFT, "grid": GRID, "back": BACK}
    plain |= {str(place): colour for place, colour in enumerate(COLOURS, 1)}
    rules = [
        _rule(".t", "fill", "text", plain),
        _rule(".s", "fill", "soft", plain),
        _rule(".b", "fill", "back", plain),
        _rule(".k", "stroke", "text", plain),
        _rule(".g", "stroke", "grid", plain),
    ]
    rules += [
        f".plot .c{n}{{stroke:var(--plot-{n},{plain[str(n)]})}}"
        f".plot .f{n}{{fill:var(--plot-{n},{plain[str(n)]})}}"
        for n in range(1, len(COLOURS) + 1)
    ]
    return "".join(rules) + f"@media(prefers-color-scheme:dark){{.plot:root{{{on_dark()}}}}}"


def on_dark() -> str:
    """Return the CSS variables that a page sets on a dark background."""
    dark = _DARK | {str(place): colour for place, colour in enumerate(_ON_DARK, 1)}
    return ";".join(f"--plot-{name}:{colour}" for name, colour in dark.items())


def _rule(selector: str, what: str, name: str, plain: dict[str, str]) -> str:
    return f".plot {selector}{{{what}:var(--plot-{name},{plain[name]})}}"
