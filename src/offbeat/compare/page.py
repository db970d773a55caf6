"""report.html: one file that opens from disk. What it needs, plotly.js included, is inside; it asks no network."""

import html
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from .page_data import script_json

SCRIPTS = ("elements.js", "table.js", "charts.js", "curves.js", "bars.js", "timeline.js", "cluster.js", "page.js")


def plotly_js() -> str | None:
    """None: the extra is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


def make_page(title: str, data: Mapping[str, Any], plotly: str) -> str:
    web = files(__package__) / "web"
    parts = {
        "title": html.escape(title),
        "style": (web / "page.css").read_text(encoding="utf-8"),
        "plotly": plotly,
        "data": script_json(data),
        "script": "\n".join((web / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    template = (web / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # once: what is put in is not looked at
