"""The page of `lockstep watch`, in a real browser, during a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser

from lockstep.report.live import LiveServer
from lockstep.run.folder.logs import RunLogs

pytestmark = pytest.mark.needs("browser")


def test_watch_page_follows_run_and_renews_samples_only_on_click(
    written: Callable[..., Path], browser: Browser
) -> None:
    folder = written(
        metrics=[{"train/reward": 0.1}],
        samples=[[{"id": "t:1", "prompt": "Q", "response": "first"}]],
    )
    complaints: list[str] = []
    with LiveServer([folder], 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.on(
            "console",
            lambda message: complaints.append(f"{message.text} {message.location['url']}"),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector(".run >> text=step 1")
        RunLogs(folder).add_metrics(2, {"train/reward": 0.7})
        page.wait_for_selector(".run >> text=step 2")
        page.click("nav >> text=Samples")
        page.wait_for_selector(".line")
        RunLogs(folder).add_samples(3, [{"id": "t:1", "prompt": "Q", "response": "second"}])
        page.wait_for_selector("#renew")
        assert page.locator(".line:visible").count() == 1
        page.click("#renew")
        page.wait_for_selector(".line >> text=second")
        page.close()
        server.shutdown()
    assert [line for line in complaints if not line.endswith("/favicon.ico")] == []
