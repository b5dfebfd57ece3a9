"""The page of a doctor's result, in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
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
PLACE = {
    "segments": [{"start": "layers.1.v", "end": "layers.1.attn", "error": 0.25, "first": 0, "missing": []}],
    "removed": 0.94,
    "wrong": ["torch"],
    "errors": {"hf": 1e-7, "torch": 0.25},
    "suspects": [
        {"engine": "torch", "operator": "aten.bmm", "lines": [{"file": "a.py", "line": 7, "function": "attend"}]}
    ],
    "measured": ["it is 0.8 times what it should be"],
    "settings": [{"what": "scaling is 0.8", "count": 1, "removed": 0.9}, {"what": "x", "count": 1, "removed": None}],
}
LOCATION = {
    "pair": ["hf", "torch"], "gap": 0.3, "floor": 0.011, "removed": 0.94, "places": [PLACE], "columns": [],
    "reproduction": "out/repro.py", "read": "2 of 8 requests",
    "left_out": ["6 of 8 drawn requests", "hf vs hf by decoding"],
    "cuts": {"layers.0.down": 1e-6, "layers.1.attn": 0.25, "final_norm": 0.0, "logits": None},
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
            **more,
        }

    def cell(self, length: int, scale: float = 0.0, state: str = "measured", verdict: str = "PASS") -> dict[str, Any]:
        """A row; its Δ is so many nats at each position."""
        number = len(self.report["cells"])
        asked = {"name": f"cell {number}", "length": length, "data": "real", "batch_size": 8, "state": state}
        row: dict[str, Any] = {**asked, "method": {"name": "greedy", "temperature": 0.0}}
        if state == "measured":
            drawn = {side: self._drawn(f"{number}.{side}", scale, side) for side in ("infer", "train")}
            clause = {"name": "mult_prob_error", "what": "mean e^|Δ|", "verdict": verdict, "limit": 1.05}
            clause |= {"low": 1.1, "high": 1.3}
            clauses = {
                "infer.mult_prob_error": {**clause, "side": "infer", "value": math.exp(scale)},
                "train.mult_prob_error": {**clause, "side": "train", "value": math.exp(2 * scale)},
            }
            row["pairs"] = [
                {
                    "train": "hf", "infer": "torch", "verdict": verdict, "metric": math.exp(scale), "low": 1.0,
                    "high": None, "reasons": [], "clauses": clauses, "drawn": drawn,
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
    points = (
        f"{place}.data.filter((trace) => trace.name === '{name}').flatMap(({{x, y}}) => x.map((at, i) => [at, y[i]]))"
    )
    return [(x, y) for x, y in page.evaluate(points)]


def block(page: Page) -> str:
    return page.evaluate("document.querySelector('#cell').dataset.block")


def test_the_table_has_all_cells_with_verdicts_in_words_and_says_what_was_not_measured(
    result: Result, opened: Opened
) -> None:
    page = opened(page_of(result), "table")
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".grid tbody tr").all()]
    assert [row[:4] for row in rows] == [[length, "real", "greedy", "8"] for length in ("100", "100", "1000", "10000")]
    assert [row[4].split() for row in rows[:2]] == [
        ["1.0101", "/", "1.0202", "average", "1.0151", "[1.0000,", "–]", "PASS"],
        ["1.6487", "/", "2.7183", "average", "2.1835", "[1.0000,", "–]", "FAIL"],
    ]
    assert [row[4] for row in rows[2:]] == ["cut by budget", "beyond context"]
    colours = [
        page.locator(f".grid .badge.{word}").evaluate("badge => getComputedStyle(badge).color")
        for word in ("pass", "fail")
    ]
    assert colours[0] != colours[1]
    assert "1 fail, 1 pass" in page.locator(".verdict").inner_text()


@pytest.mark.full
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


@pytest.mark.full
def test_tokens_of_either_side_are_shown(result: Result, opened: Opened) -> None:
    page = opened(page_of(result), "cell")
    page.select_option("#cell select >> nth=0", "1")
    until(page, "document.querySelector('#cell').dataset.block === '3'")
    assert all(y == pytest.approx(1.0, rel=1e-3) for _, y in curve(page, "position", "median"))


@pytest.mark.full
def test_positions_begin_in_the_response_or_in_the_sequence(result: Result, opened: Opened) -> None:
    page = opened(page_of(result), "cell")
    in_response = [x for x, _ in curve(page, "position", "median")]
    page.select_option("[data-plot=position] select", "position")
    in_sequence = [x for x, _ in curve(page, "position", "median")]
    assert in_response[0] == 1
    assert in_sequence[0] == PROMPT + 1
    assert max(in_response) <= DRAWN < max(in_sequence) <= PROMPT + DRAWN


@pytest.mark.full
def test_survival_is_the_share_of_tokens_that_far_apart(result: Result, opened: Opened) -> None:
    sizes = np.arange(1, 2 * DRAWN + 1) / 100
    result.tensors["1.infer.train"] = result.tensors["1.infer.infer"] + sizes
    page = opened(page_of(result), "cell")
    points = curve(page, "survival", "the two sides")
    assert points[0] == (pytest.approx(sizes[-1], rel=1e-3), pytest.approx(1 / sizes.size))
    assert all(y == pytest.approx(np.mean(sizes >= x - 1e-4), abs=1e-3) for x, y in points)
    assert curve(page, "survival", "the floor")[-1] == (pytest.approx(0.003), 1.0)
    assert curve(page, "survival", "limit of outliers") == [(1.0, 0.001)]


@pytest.mark.full
def test_what_is_not_finite_is_shown_as_such(result: Result, opened: Opened) -> None:
    result.tensors["1.infer.train"][7] = -np.inf
    result.tensors["1.infer.infer"][9] = np.nan
    page = opened(page_of(result), "cell")
    assert "2 tokens" in page.locator("#cell .facts").inner_text()
    assert "k3\n–" in page.locator("#cell .facts").inner_text()
    worst = [row.locator("td").all_inner_texts() for row in page.locator("#cell .plain").last.locator("tbody tr").all()]
    assert (worst[0][0], worst[0][2]) == ("−∞", "−∞")
    assert (worst[1][0], worst[1][3]) == ("–", "–")
    assert page.locator("[data-plot=map] .odd").count() == 1
    assert len(curve(page, "position", "median")) > 20


@pytest.mark.full
def test_the_map_has_a_line_per_sequence_and_a_colour_per_size(result: Result, opened: Opened) -> None:
    result.tensors["1.infer.train"][DRAWN + 20] += 2.0
    page = opened(page_of(result), "cell")
    canvas = page.locator("[data-plot=map] canvas")
    canvas.scroll_into_view_if_needed()
    assert canvas.evaluate("canvas => [canvas.width, canvas.height]") == [DRAWN, 2]
    pixels = canvas.evaluate("canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, 2).data]")
    colours = [tuple(pixels[at : at + 4]) for at in range(0, len(pixels), 4)]
    assert [at for at, colour in enumerate(colours) if colour != colours[0]] == [DRAWN + 20]
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 20.5 / DRAWN, box["y"] + box["height"] * 0.75)
    tip = page.locator(".tip").inner_text()
    assert "sequence 2" in tip
    assert "token 21" in tip
    assert "2.5" in tip


def test_what_a_model_wrote_stays_text(result: Result, opened: Opened) -> None:
    evil = "<script>harmed = 1</script><img src=x onerror='harmed = 1'>\u202e\x1b"
    result.report |= {"notes": [evil], "environment": {evil: evil}}
    result.report["location"] = {**LOCATION, "places": [{**PLACE, "measured": [evil]}], "cuts": {evil: 1.0}}
    result.report["cells"][1]["pairs"][0]["reasons"] = [evil]
    result.tensors["1.infer.train"][30 - PROMPT] += 3.0
    texts = {30: evil}
    page = opened(page_of(result, lambda tokens: "".join(texts.get(token, f" {token}") for token in tokens)), "cell")
    assert page.locator("#cell mark").first.inner_text() == evil.replace("\u202e", "⟨U+202E⟩").replace("\x1b", "␛")
    assert page.locator("#cell .context").first.inner_text().startswith(" 14 15 16")
    curve(page, "layers", "nothing")
    page.hover("[data-plot=layers] .u-over >> nth=0")
    assert page.evaluate("typeof harmed") == "undefined"
    assert page.locator("img, iframe, object").count() == 0
    assert set(page.evaluate("[...document.querySelectorAll('script')].map((script) => script.type)")) == {
        "",
        "application/gzip",
    }


@pytest.mark.full
def test_the_worst_tokens_stand_in_their_text_and_without_a_tokenizer_among_ids(result: Result, opened: Opened) -> None:
    result.tensors["1.infer.train"][DRAWN + 4] -= 4.0
    page = opened(page_of(result), "cell")
    assert page.locator("#cell mark").count() == 20
    first = page.locator("#cell .plain").last.locator("tbody tr").first.locator("td").all_inner_texts()
    assert first[0] == "−3.5"
    assert first[1] == " w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13"
    assert first[4:] == ["2", "5", "7"]
    assert page.locator("#cell mark").first.inner_text() == " w7"
    page = opened(page_of(result, None), "cell")
    assert page.locator("#cell .context").first.inner_text() == "0 1 2 3 4 5 6 7 8 9 10 11 12 13"


def test_places_with_what_was_measured_and_the_error_at_each_cut(result: Result, opened: Opened) -> None:
    page = opened(page_of(result), "findings")
    assert "has not been looked for" in page.locator("#findings").inner_text()
    result.report["location"] = LOCATION
    page = opened(page_of(result), "findings")
    card = page.locator(".places li").first.inner_text()
    for said in (
        "layers.1.v → layers.1.attn",
        "torch is wrong · 94 % of the gap",
        "torch is 0.25 from float64 there",
        "it is 0.8 times what it should be",
        "scaling is 0.8: undoing it removes 90 %",
        "aten.bmm ← a.py:7 attend",
    ):
        assert said in card
    findings = page.locator("#findings").inner_text()
    assert "Fails on the fault: out/repro.py" in findings
    assert "Read: 2 of 8 requests." in findings
    assert "here or in other comparisons: 6 of 8 drawn requests, hf vs hf by decoding." in findings
    assert curve(page, "layers", "attn") == [(1, 0.25)]
    assert "1 of 4 agree to the bit" in page.locator("#layers").inner_text()
    assert page.locator("#layers code").all_inner_texts()[:2] == ["logits", "layers.1.attn"]


def test_a_result_without_a_measurement_says_so(tmp_path: Path, opened: Opened) -> None:
    result = Result(tmp_path / "result", verdict="INCONCLUSIVE")
    result.cell(10000, state="beyond context")
    page = opened(page_of(result), "cell")
    assert page.locator("#cell").inner_text() == "Nothing was measured."
    assert page.locator("#verdict .badge").inner_text() == "INCONCLUSIVE"


@pytest.mark.full
def test_many_long_cells_make_a_small_page(result: Result, tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    for _ in range(70):
        result.cell(100, 0.1)
    for name, column in result.tensors.items():
        if name.endswith("train"):
            result.tensors[name] = column + noise.normal(0, 0.1, column.size).astype(np.float32)
    result.tensors |= {
        "5.infer.tokens": np.zeros(600_000, np.int32), "5.infer.lengths": np.full(60, 10_000),
        "5.infer.mask": np.ones(600_000, bool), "5.infer.rounding": np.full(600_000, 1e-3, np.float32),
        "5.infer.train": noise.normal(-2, 1, 600_000).astype(np.float32),
        "5.infer.infer": noise.normal(-2, 1, 600_000).astype(np.float32),
    }  # fmt: skip
    page = page_of(result).read_text()
    assert len(page) < 8e6
    (longest,) = re.findall(r'id="drawn-6">(.*?)<', page)
    assert len(longest) < 40_000


def test_the_command_writes_the_page_of_a_doctors_folder(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    folder = result.written()
    assert main(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "Lockstep doctor" in (folder / "report.html").read_text()
    other = shutil.copytree(folder, folder.with_name("other"))
    assert main(["report", str(folder), str(other)]) == 2
    assert "name it alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not as Lockstep writes it"),
        ('{"schema": "lockstep.doctor.table/9"}', "table/9"),
        (None, "columns.safetensors cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_in_a_sentence(result: Result, content: str | None, said: str) -> None:
    folder = result.written()
    (folder / ("columns.safetensors" if content is None else "report.json")).write_text(content or "no tensors")
    with pytest.raises(ValueError, match=said):
        write_doctor_page(folder, None, folder / "page.html")
    assert not (folder / "page.html").exists()
