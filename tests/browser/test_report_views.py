"""The views of the page of `lockstep report`: tabs, time, agreement, cards, groups of samples, what
differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page
from report_pages import METRICS, page_of, rows, sample, token_columns, traces

from lockstep.cli import main
from lockstep.monitor.agreement import ExactnessCertificate
from lockstep.run.folder.certificate import write_certificate

pytestmark = pytest.mark.needs("browser")
Written = Callable[..., Path]
Opened = Callable[..., Page]


def test_time_view_shows_busy_share_of_each_worker(written: Written, opened: Opened) -> None:
    timings = [{"generate": 1.0, "policy": 3.0, "critic": 4.0, "beside/generate": 2.0}]
    page = opened(page_of(written(metrics=METRICS, timings=timings)), "time")
    lanes = dict(
        zip(*(page.locator(kind).all_inner_texts() for kind in (".worker", ".busy")), strict=True)
    )
    assert lanes == {
        "sampler": "works 38 %",
        "policy learner": "works 38 %",
        "critic learner": "works 50 %",
    }
    bars = page.locator("[data-worker=sampler] .stretch")
    assert [bar.get_attribute("title") for bar in bars.all()] == [
        "step 1: generate, 1 s", "step 1: generate, beside the learner, 2 s",
    ]  # fmt: skip


def agreeing(*values: float, bound: float = 1.05) -> list[dict[str, float]]:
    """Lines of metrics whose two sides are so far apart."""
    return [
        {
            "agreement/token_mult_prob_error": value, "agreement/bound": bound, "agreement/tokens": 10.0,
            "agreement/breach": float(value > bound), "agreement/max_abs_logprob_diff": 0.1,
        }
        for value in values
    ]  # fmt: skip


def test_agreement_view_shows_certificate_level_and_compared_tokens(
    written: Written, opened: Opened
) -> None:
    runs = [
        written(name, metrics=agreeing(1.0, 1.0), agreement={}) for name in ("exact", "bounded")
    ]
    sound, fell = (
        ExactnessCertificate("E2", 20, 5, 0, 0.0, True),
        ExactnessCertificate("E1", 20, 0, 3, 1e-6, False, "a reason <b>"),
    )
    for folder, certificate in zip(runs, (sound, fell), strict=True):
        write_certificate(folder / "certificate.json", certificate, {"step": 2})
    page = opened(page_of(*runs), "agreement")
    first, second = page.locator(".certificate").all()
    assert first.locator(".badge.pass").inner_text() == "E2"
    assert page.locator(".run .badge").all_inner_texts() == ["AGREE", "E2", "AGREE", "E1"]
    assert "exact: exact: 20 tokens compared, 0 not bitwise equal" in first.inner_text()
    assert second.locator(".badge.open").inner_text() == "E1"
    assert "bounded, not exact: 20 tokens compared, 3 not bitwise equal" in second.inner_text()
    assert "because a reason <b>" in second.inner_text()


def test_agreement_chart_scale_includes_its_bound(written: Written, opened: Opened) -> None:
    page = opened(page_of(written(metrics=agreeing(1.0, 1.02), agreement={"on_breach": "warn"})))
    metric = "agreement/token_mult_prob_error"
    assert [trace["y"] for trace in traces(page, metric)] == [[1.0, 1.02], [1.05, 1.05]]
    low, high = page.evaluate(
        f"(() => {{ const {{min, max}} = Chart.of(document.querySelector(`[data-metric='{metric}'] "
        ".chart`)).drawing.scales.y; return [min, max]; })()"
    )
    assert 0.99 < low <= 1.0
    assert 1.05 <= high < 1.06
    assert page.locator(f"[data-metric='{metric}'] .badge").first.inner_text() == "AGREE"
    assert page.locator("#alarms").inner_text() == ""


def test_agreement_breach_is_marked_in_chart_and_listed_in_alarms(
    written: Written, opened: Opened
) -> None:
    page = opened(
        page_of(written(metrics=agreeing(1.0, 1.2, 1.1, 1.0), agreement={"on_breach": "warn"}))
    )
    metric = "agreement/token_mult_prob_error"
    mark = traces(page, metric)[-1]
    assert (mark["x"], mark["y"]) == ([2, 3], [1.2, 1.1])
    assert page.locator(f"[data-metric='{metric}'] .badge").first.inner_text() == "DISAGREE"
    assert (
        "steps 2 to 3: sampler and learner disagree: mean e^|Δ| 1.1"
        in page.locator("#alarms").inner_text()
    )


def test_agreement_view_counts_trained_tokens_by_size_of_gap(
    written: Written, opened: Opened
) -> None:
    gaps = [0.0, 2e-7, -3e-7, 4e-6, math.nan, 0.5]
    token = token_columns(["t"] * 6, gap=gaps) | {"mask": [1, 1, 1, 1, 1, 0]}
    page = opened(
        page_of(written(metrics=agreeing(1.0), samples=[[sample(token=token)] * 2], agreement={})),
        "agreement",
    )
    table = page.locator("#agreement table").nth(1)
    counted = [line for line in table.locator("td").all_inner_texts() if line]
    sizes = ["0", "2", "below 1e−8", "0", "1e−8 to 1e−7", "0"]
    assert counted == [*sizes, "1e−7 to 1e−6", "4", "1e−6 to 1e−5", "2"]


def test_every_metric_has_one_card_and_all_cards_are_printed(
    written: Written, opened: Opened
) -> None:
    metrics = [{"train/reward": 0.1 * step, f"train/extra_{step}": 1.0} for step in range(30)]
    page = opened(page_of(written(metrics=metrics)))
    traces(page, "train/reward")
    assert page.locator("[data-metric='train/reward']").count() == 1
    empty = (
        "() => [...document.querySelectorAll('.cards .chart')]"
        ".filter((chart) => !chart.querySelector('canvas')).length"
    )
    assert page.evaluate(empty) > 0
    page.pdf()
    assert page.evaluate(empty) == 0


def test_samples_are_grouped_by_prompt_and_first_is_open(written: Written, opened: Opened) -> None:
    logged = [
        sample(text, id=prompt, logged_as="best score", **{"reward/math": 0.25})
        for text, prompt in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"))
    ]
    page = opened(page_of(written(samples=[logged])), "samples")
    page.wait_for_selector(".rollout dd")
    assert rows(page, 5) == ["a1", "a2", "b1", "b2"]
    assert page.locator(".line.begins").all_inner_texts()[0].split("\n").count("b1") == 1
    assert page.locator(".line.begins").count() == 1
    assert "1 of 2" in page.locator(".rollout .facts").inner_text()
    assert (
        "reward math\n0.25\nlogged as\nbest score" in page.locator(".rollout .facts").inner_text()
    )
    page.click(".head:has-text('response')")
    page.click(".head:has-text('response')")
    assert rows(page, 5) == ["b2", "b1", "a2", "a1"]
    assert page.locator(".line.begins").count() == 0


BAND_COLOURS = """card => {
  const canvas = card.querySelector("canvas"), seen = new Map();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 50 || data[i + 3] > 62) continue;  // 22 % of a colour
    const colour = [data[i], data[i + 1], data[i + 2]].map((part) => Math.round(part / 16)).join();
    seen.set(colour, (seen.get(colour) ?? 0) + 1);
  }
  return [...seen.values()].filter((pixels) => pixels > 400).length;
}"""


@pytest.mark.full
def test_a_sweep_draws_a_band_for_each_configuration(written: Written, opened: Opened) -> None:
    runs = {
        f"clip={clip}_seed={seed}": {"ppo.clip": clip, "seed": seed}
        for clip in (0.1, 0.3)
        for seed in range(3)
    }
    folders = [
        written(
            f"sweep/{name}",
            [
                {"train/reward": 5 * at["ppo.clip"] + 0.1 * at["seed"] + 0.01 * step}
                for step in range(9)
            ],
        )
        for name, at in runs.items()
    ]
    sweep = folders[0].parent
    (sweep / "sweep.json").write_text(json.dumps(runs))
    assert main(["report", str(sweep), "--out", str(sweep / "page.html")]) == 0
    page = opened(sweep / "page.html")
    names = [trace["name"] for trace in traces(page, "train/reward")]
    assert [name for name in names if name.endswith("upper end")] == [
        "ppo.clip=0.1, upper end", "ppo.clip=0.3, upper end",
    ]  # fmt: skip
    assert len([name for name in names if name.endswith("mean of 3")]) == 2
    assert page.locator("[data-metric='train/reward']").first.evaluate(BAND_COLOURS) == 2
