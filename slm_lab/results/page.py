"""Pages that open offline: plain data, drawn by the JavaScript in `report_page/`."""

import base64
import hashlib
import html
import json
import math
import re
from pathlib import Path
from string import Template
from typing import Any

from slm_lab.lib.data import ReadOnlyDocument
from slm_lab.results.palette import COLORS

PAGE = Path(__file__).with_name("report_page")
# each after the modules it imports; the pages of `slm-lab ui` load them too
SCRIPTS = ("dom.js", "number.js", "chart.js", "score_chart.js", "search_chart.js", "parts.js", "page.js")
STYLES = ("parts.css", "page.css")
NOTHING = "–"


def render_page(data: ReadOnlyDocument) -> str:
    """The page with its data; texts from runs appear only in its JSON and title."""
    script = "".join(_inline((PAGE / name).read_text(encoding="utf-8")) for name in SCRIPTS)
    style = "".join((PAGE / name).read_text(encoding="utf-8") for name in STYLES) + _write_colors()
    # a "<" could end the script block early; everything else is ASCII
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template((PAGE / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(str(data["title"])),
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        data=text,
    )


def _inline(module: str) -> str:
    """A module as part of one script, in which names need no import."""
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", module, flags=re.M), flags=re.M)


def color_variable(name: str) -> str:
    """The name of a colour's variable in the page."""
    return f"var(--color-{name})"


def _write_colors() -> str:
    """The colours as CSS variables; on paper they are those for white."""
    light, dark = (";".join(f"--color-{name}:{pair[i]}" for name, pair in COLORS.items()) for i in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root{{{dark}}} }}\n"


def _hash(text: str) -> str:
    """The hash of a script or style for the page's content policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def to_number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def format_number(value: object) -> str:
    """A finite number with thousands separators and few decimals, else a dash."""
    number = to_number(value)
    if number is None:
        return NOTHING
    if number.is_integer() and abs(number) < 1e15:
        return f"{number:,.0f}"
    if abs(number) >= 1e15:
        return f"{number:.4g}"
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.4g}"


def format_interval(low: float, high: float) -> str:
    """Both bounds, or a dash."""
    return f"[{format_number(low)}, {format_number(high)}]" if math.isfinite(low) and math.isfinite(high) else NOTHING
