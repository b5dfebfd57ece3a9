"""A real browser, and run folders as runs write them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page, sync_playwright

from lockstep.run.folder.logs import RunLogs

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs browser: there is no chromium on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`opened(file, view)` is the page, loaded; afterwards it must have complained of nothing and
    asked for nothing.
    """
    complaints: list[str] = []
    pages: list[Page] = []

    def go(file: Path, view: str = "curves", **how: Any) -> Page:
        page = browser.new_page(**how)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: complaints.append(f"request: {request.url}"))
        page.goto(f"{file.resolve().as_uri()}#{view}")
        page.wait_for_selector(f"#{view}[data-made] > *")
        assert complaints.pop(0).startswith("request: file:")
        pages.append(page)
        return page

    yield go
    for page in pages:
        page.close()
    assert complaints == []


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """`written(name, metrics, samples, timings, **recipe)` is a run folder with these logs, step by
    step from 1.
    """

    def go(
        name: str = "run",
        metrics: list[dict[str, float]] | None = None,
        samples: list[list[dict[str, Any]]] | None = None,
        timings: list[dict[str, float]] | None = None,
        **recipe: Any,
    ) -> Path:
        folder = tmp_path / name
        logs = RunLogs(folder)
        whole = {
            "algorithm": "ppo",
            "run": {"max_steps": 30},
            "ppo": {"whiten_advantages": True},
            **recipe,
        }
        (folder / "recipe.yaml").write_text(yaml.safe_dump(whole))
        for step, values in enumerate(metrics or [], 1):
            logs.add_metrics(step, values)
        for step, seconds in enumerate(timings or [], 1):
            logs.add_timings(step, seconds)
        for step, rows in enumerate(samples or [], 1):
            logs.add_samples(step, rows)
        return folder

    return go
