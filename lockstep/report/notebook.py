"""Live progress in a notebook: one line below the cell that moves with the steps, and notes that stay."""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.printable import print_text
from lockstep.report.progress_view import ProgressView


def runs_in_notebook() -> bool:
    """True in a Jupyter kernel, whose output is HTML."""
    if "ipykernel" not in sys.modules:
        return False
    shell = importlib.import_module("IPython.core.getipython").get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class NotebookDisplay:
    """Display below a cell; IPython sends its updates to the page."""

    def __init__(self) -> None:
        self._show: Any = importlib.import_module("IPython.display").display
        self._handle: Any = None

    @contextmanager
    def open(self, view: Callable[[], ProgressView]) -> Iterator[None]:
        self._handle = self._show(_draw(view()), raw=True, display_id=True)
        yield
        self._handle.update(_draw(view()), raw=True)

    def note(self, text: str) -> None:
        print_text(text, file=sys.stderr)

    def step(self, view: ProgressView) -> None:
        self._handle.update(_draw(view), raw=True)


def _draw(view: ProgressView) -> dict[str, str]:
    """The line as text and as HTML with a bar."""
    total = "" if view.total is None else f' max="{max(view.total, 1)}"'
    bar = f'<progress value="{view.step}"{total}></progress>'
    return {
        "text/plain": f"{view.title}: {view.line}",
        "text/html": f"<b>{html.escape(view.title)}</b><br>{bar} {html.escape(view.line)}",
    }
