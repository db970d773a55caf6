"""The folder of `--out`: report.html and the pictures, beside compare.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..report.outputs import replacing
from .contest import Contest, Outcome
from .page import make_page, plotly_js
from .page_data import page_data
from .plots import draw_contest

NO_PLOTLY = "report.html needs plotly, which is not installed: pip install 'offbeat[compare]'"


def write_outputs(folder: Path, contest: Contest, outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> str:
    """Into a folder that exists; a sentence on what is there now, or missing."""
    try:
        draw_contest(folder, contest, outcomes)
        plotly = plotly_js()
        if plotly is None:
            return NO_PLOTLY
        with replacing(folder / "report.html") as path:
            title = f"Offbeat compare: {contest.task}"
            path.write_text(make_page(title, page_data(contest, outcomes, about), plotly), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"the report cannot be written to {folder} ({error.strerror}): give --out a folder of yours"
        ) from error
    return f"open {folder / 'report.html'} in a browser"
