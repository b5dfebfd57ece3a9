"""The plotter of our pages: uPlot, whose files lie in `page/vendor/` as its authors published them."""

from __future__ import annotations

from importlib.resources import files


def plotter() -> dict[str, str]:
    """The script of the plotter, by the name that `page/chart.js` runs it by."""
    return {"uplot": _read("uPlot.iife.min.js")}


def plotter_styles() -> str:
    """The plotter's CSS, with its license, for both lie in every page."""
    return f"/* uPlot {_read('LICENSE').strip()} */\n{_read('uPlot.min.css')}\n"


def _read(name: str) -> str:
    return files("lockstep.report").joinpath("page", "vendor", name).read_text("utf-8")
