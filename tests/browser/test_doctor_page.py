"""The page of a doctor's result, in a real browser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from safetensors.numpy import save_file

from lockstep.cli import main
from lockstep.report.doctor_page import write_doctor_page

pytestmark = pytest.mark.needs("browser")
Opened = Callable[..., Page]

PROMPT, DRAWN = 3, 40  # tokens of each sequence
CAUSE = {
    "cause": "temperature",
    "what": "the two sides divide the logits by different temperatures",
    "cure": "score under the sampled distribution",
    "side": "infer",
    "confidence": "confirmed",
    "share": 0.94,
    "evidence": ["Δ grows with log-probability"],
    "counter": "temperature 1",
}
DIAGNOSIS = {
    "pair": ["hf", "torch"], "gap": 0.3, "left": 0.01, "floor": 0.011, "causes": [CAUSE],
    "log": [
        {"name": "token ids", "status": "clean", "said": "the same ids", "seconds": 0.1, "gap": 0.3},
        {"name": "routing", "status": "skipped", "said": "no experts", "seconds": 0.0, "gap": 0.3},
    ],
    "layers": {"model.layers.0.mlp:out": 1e-6, "model.layers.1.self_attn:out": 0.25, "norm:out": 0.0, "logits": None},
}  # fmt: skip


class Result:
    """A folder as `lockstep doctor table` writes it (see `lockstep/doctor/report.py`)."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.tensors: dict[str, Any] = {}
        self.report: dict[str, Any] = {
            "schema": "lockstep.doctor.table/1",
            "verdict": "FAIL",
            "model": {"path": str(folder / "model"), "files": {}},
            "environment": {"torch": "2.13"},
            "recipe": {"seed": 0, "limits": {"outlier_nats": 1.0, "max_outlier_rate": 1e-3}},
            "notes": [],
            "backends": {name: {"settings": {"dtype": "bf16"}} for name in ("hf", "torch")},
            "pairs": [["hf", "torch"]],
            "cells": [],
            "repeats": [],
            "strangers": [],
            **more,
        }

    def cell(self, length: int, scale: float = 0.0, state: str = "measured", verdict: str = "PASS") -> dict[str, Any]:
        """A row; its Δ is so many nats at each position."""
        number = len(self.report["cells"])
        asked = {"name": f"cell {number}", "length": length, "data": "real", "batch_size": 8, "state": state}
        row: dict[str, Any] = {**asked, "method": {"name": "greedy", "temperature": 0.0}}
        if state == "measured":
            drawn = {side: self._drawn(f"{number}.{side}", scale, side) for side in ("infer", "train")}
            clause = {"side": "infer", "what": "mean e^|Δ|", "value": 1.2, "low": 1.1, "high": 1.3, "limit": 1.05}
            row["pairs"] = [
                {
                    "train": "hf", "infer": "torch", "verdict": verdict, "metric": math.exp(scale), "low": 1.0,
                    "high": None, "reasons": [], "clauses": {"infer.x": {**clause, "verdict": verdict}}, "drawn": drawn,
                }
            ]  # fmt: skip
        self.report["cells"].append(row)
        return row

    def _drawn(self, name: str, scale: float, side: str) -> dict[str, Any]:
        """Two sequences; the training side's tokens are twice as far apart."""
        infer = np.linspace(-2.0, -0.1, 2 * DRAWN, dtype=np.float32)
        columns = {
            "tokens": np.tile(np.arange(PROMPT + DRAWN, dtype=np.int32), 2),
            "lengths": np.full(2, PROMPT + DRAWN),
            "mask": np.tile(np.arange(PROMPT + DRAWN) >= PROMPT, 2),
            "train": infer + np.float32(scale if side == "infer" else 2 * scale),
            "infer": infer,
            "rounding": np.full(2 * DRAWN, 0.003 / math.sqrt(2), np.float32),
        }
        self.tensors |= {f"{name}.{column}": values for column, values in columns.items()}
        names = {column: f"{name}.{column}" for column in columns if column != "rounding"}
        return {
            "drawer": "torch" if side == "infer" else "hf",
            "kind": "shaped",
            "columns": {**names, "floor": [f"{name}.rounding"] * 2},
            "floor_rms": 0.003,
            "figures": {"tokens": 2.0 * DRAWN, "sequences": 2.0, "k3": None},
        }

    def written(self) -> Path:
        self.folder.mkdir(exist_ok=True)
        save_file(self.tensors, self.folder / "columns.safetensors")
        (self.folder / "report.json").write_text(json.dumps(self.report))
        return self.folder


def words(tokens: Sequence[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def page_of(result: Result, decode: Callable[[Sequence[int]], str] | None = words) -> Path:
    out = result.folder.parent / "page.html"
    write_doctor_page(result.written(), decode, out)
    return out


@pytest.fixture
def result(tmp_path: Path) -> Result:
    result = Result(tmp_path / "result")
    result.cell(100, 0.01)
    result.cell(100, 0.5, verdict="FAIL")
    result.cell(1000, state="cut by budget")
    result.cell(10000, state="beyond context")
    return result


def until(page: Page, expression: str) -> None:
    """Waits for an expression to be true; the page's policy forbids the usual way, which is `eval`."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never became true: {expression}")


def curve(page: Page, plot: str, name: str) -> list[tuple[float, float]]:
    """The points of a curve, once the plot shows the cell that is chosen."""
    page.locator(f"[data-plot={plot}]").scroll_into_view_if_needed()
    place = f"document.querySelector('[data-plot={plot}] .chart')"
    until(page, f"Boolean({place}.data) && Chart.all.every((chart) => !chart.isSeen || !chart.isStale)")
    page.wait_for_timeout(300)
    points = f"{place}.data.filter((trace) => trace.name === '{name}').flatMap(({{x, y}}) => x.map((at, i) => [at, y[i]]))"
    return [(x, y) for x, y in page.evaluate(points)]


def block(page: Page) -> str:
    return page.evaluate("document.querySelector('#cell').dataset.block")


def test_the_table_has_all_cells_with_verdicts_in_words_and_says_what_was_not_measured(
    result: Result, opened: Opened
) -> None:
    page = opened(page_of(result), "table")
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".grid tbody tr").all()]
    assert [row[:4] for row in rows] == [[length, "real", "greedy", "8"] for length in ("100", "100", "1000", "10000")]
    assert [row[4].split() for row in rows[:2]] == [["1.0101", "[1.0000,", "–]", "PASS"], ["1.6487", "[1.0000,", "–]", "FAIL"]]
    assert [row[4] for row in rows[2:]] == ["cut by budget", "beyond context"]
    colours = [page.locator(f".grid .badge.{word}").evaluate("badge => getComputedStyle(badge).color") for word in ("pass", "fail")]
    assert colours[0] != colours[1]
    assert "1 fail, 1 pass" in page.locator(".verdict").inner_text()


def test_a_failed_cell_is_open_and_a_click_shows_another_ones_plots(result: Result, opened: Opened) -> None:
    page = opened(page_of(result), "cell")
    assert "FAIL" in page.locator("#cell h2").inner_text()
    assert all(y == pytest.approx(0.5, rel=1e-3) for _, y in curve(page, "position", "median"))
    page.locator(".grid button").first.click()
    until(page, "document.querySelector('#cell').dataset.block === '0'")
    for plot in ("position", "logprob"):
        points = curve(page, plot, "median")
        assert len(points) > 20
        assert all(y == pytest.approx(0.01, rel=1e-3) for _, y in points), plot
        assert all(y == pytest.approx(0.003, rel=1e-3) for _, y in curve(page, plot, "median of the floor"))
    assert page.locator(".grid button[aria-pressed=true]").get_attribute("data-number") == "0"
