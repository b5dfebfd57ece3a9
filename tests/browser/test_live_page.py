"""The page of `lockstep watch`, in a real browser, during a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from lockstep.report.live import LiveRuns, open_server
from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.logs import Logs

pytestmark = pytest.mark.needs("browser")
Written = Callable[..., Path]

METRICS: list[dict[str, float]] = [{"train/reward": 0.1, "train/epoch": 0.0}, {"train/reward": 0.2, "train/epoch": 0.0}]
SAMPLE: dict[str, Any] = {"id": "t:1", "prompt": "Q", "response": "first", "score": 1.0}


@pytest.fixture
def live(written: Written, browser: Browser) -> Iterator[tuple[Path, Page]]:
    """A run's folder, and the page that follows it; nothing may be complained of."""
    folder = written(metrics=METRICS, samples=[[SAMPLE]], timings=[{"generate": 60.0}, {"generate": 60.0}])
    complaints: list[str] = []
    with open_server(LiveRuns([folder], folder.parent), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("#curves[data-made] > *")
        yield folder, page
        page.close()
        server.shutdown()
    assert [line for line in complaints if "favicon" not in line and "404" not in line] == []


def told(page: Page, words: str) -> None:
    """Waits until the line of the run says these words."""
    for _ in range(200):
        if words in page.locator(".run").inner_text():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"the run's line never said {words!r}, but {page.locator('.run').inner_text()!r}")


def test_the_page_follows_the_run(live: tuple[Path, Page]) -> None:
    folder, page = live
    told(page, "step 2 of 30 · not finished")
    with lock_folder(folder):
        told(page, "step 2 of 30 · running · about 28:00 left")
        Logs(folder).metrics(3, {"train/reward": 0.7, "train/kl": 0.5})
        told(page, "step 3 of 30 · running")
        place = "document.querySelector(`[data-metric='train/reward'] .chart`).data?.[0].y.length"
        for _ in range(100):
            if page.evaluate(place) == 3:
                break
            page.wait_for_timeout(50)
        assert page.evaluate(place) == 3
        assert page.locator("[data-metric='train/kl']").count() > 0
    told(page, "stopped")
    (folder / "crash.txt").write_text("time\n\nValueError: the disk is gone\n")
    told(page, "died · ValueError: the disk is gone")
    (folder / "final").mkdir()
    told(page, "step 3 of 30 · finished")


@pytest.mark.full
def test_the_reader_of_a_sample_chooses_when_new_ones_come(live: tuple[Path, Page]) -> None:
    folder, page = live
    page.click("nav >> text=Samples")
    page.wait_for_selector(".line")
    logs = Logs(folder)
    logs.samples(3, [{**SAMPLE, "response": "second"}])
    logs.metrics(3, {"train/reward": 0.7})
    page.wait_for_selector("#renew")
    assert page.locator(".line:visible").count() == 1
    page.click("#renew")
    page.wait_for_selector(".line >> text=second")
    assert page.locator(".line:visible").count() == 2
