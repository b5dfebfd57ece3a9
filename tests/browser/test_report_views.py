"""The views of the page of `lockstep report`: tabs, time, agreement, cards, groups of samples, what differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page
from report_pages import METRICS, page_of, rows, sample, traces, until

from lockstep.cli import main
from lockstep.config.loading import describe, load
from lockstep.monitor.agreement import Certificate
from lockstep.run.certificate import write_run_certificate

pytestmark = pytest.mark.needs("browser")
Written = Callable[..., Path]
Opened = Callable[..., Page]


def test_tabs_stay_in_sight(written: Written, opened: Opened) -> None:
    metrics = [{f"train/metric{number}": float(step) for number in range(40)} for step in range(3)]
    page = opened(page_of(written(metrics=metrics, samples=[[sample()]])))
    for tab in ("Recipe", "Curves"):
        page.click(f"nav >> text={tab}")
        page.wait_for_selector(f"#{tab.lower()}[data-made] > *")
        assert page.locator("h1").evaluate("heading => heading.getBoundingClientRect().top") >= 0
    page.mouse.wheel(0, 3000)
    until(page, "window.scrollY > 500")
    assert page.locator("nav").evaluate("tabs => tabs.getBoundingClientRect().top") == 0
    page.click("nav >> text=Agreement")
    until(page, "!document.querySelector('#agreement').hidden")
    assert page.locator("nav").evaluate("tabs => tabs.getBoundingClientRect().top") >= 0
    page.go_back()
    until(page, "!document.querySelector('#curves').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_phase_has_a_color_of_its_own(written: Written, opened: Opened, scheme: str) -> None:
    timings = [{f"phase {number}": 1.0 for number in range(20)}]
    page = opened(page_of(written(metrics=METRICS, timings=timings)), "time", color_scheme=scheme)
    until(page, "Boolean(document.querySelector('[data-plot=phases] .chart').data)")
    colors = page.evaluate("document.querySelector('[data-plot=phases] .chart').data.map((trace) => trace.line.color)")
    assert len(set(colors)) == len(colors) == 20


def test_who_works_and_who_waits(written: Written, opened: Opened) -> None:
    timings = [{"generate": 1.0, "policy": 3.0, "critic": 4.0, "beside/generate": 2.0}]
    page = opened(page_of(written(metrics=METRICS, timings=timings)), "time")
    lanes = dict(zip(*(page.locator(kind).all_inner_texts() for kind in (".worker", ".busy")), strict=True))
    assert lanes == {"sampler": "works 38 %", "policy learner": "works 38 %", "critic learner": "works 50 %"}
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


def test_a_certificate_says_its_level_and_what_it_rests_on(written: Written, opened: Opened) -> None:
    runs = [written(name, metrics=agreeing(1.0, 1.0), agreement={}) for name in ("exact", "bounded")]
    sound, fell = Certificate("E2", 20, 5, 0, 0.0, True), Certificate("E1", 20, 0, 3, 1e-6, False, "a reason <b>")
    for folder, certificate in zip(runs, (sound, fell), strict=True):
        write_run_certificate(folder, 2, certificate)
    page = opened(page_of(*runs), "agreement")
    first, second = page.locator("details.certificate").all()
    assert first.locator(".badge.pass").inner_text() == "E2"
    assert "exact: exact: 20 tokens compared, 0 not equal to the bit" in first.inner_text()
    assert second.locator(".badge.open").inner_text() == "E1"
    assert "bounded, not exact: 20 tokens compared, 3 not equal to the bit" in second.inner_text()
    assert "because a reason <b>" in second.inner_text()
    assert not second.locator("table").is_visible()
    second.locator("summary").click()
    facts = dict(zip(*(second.locator(f"td:nth-child({n})").all_inner_texts() for n in (1, 2)), strict=True))
    assert facts["tokens compared"] == "20"
    assert facts["why not E2"] == "a reason <b>"
    assert {"attention", "linear", "softmax", "torch", "machine", "cpu", "threads"} <= facts.keys()


def test_agreement_is_drawn_around_its_bound(written: Written, opened: Opened) -> None:
    page = opened(page_of(written(metrics=agreeing(1.0, 1.02), agreement={"on_breach": "warn"})))
    metric = "agreement/token_mult_prob_error"
    assert [trace["y"] for trace in traces(page, metric)] == [[1.0, 1.02], [1.05, 1.05]]
    low, high = page.evaluate(
        f"(() => {{ const {{min, max}} = Chart.of(document.querySelector(`[data-metric='{metric}'] .chart`))"
        ".drawing.scales.y; return [min, max]; })()"
    )
    assert 0.99 < low <= 1.0
    assert 1.05 <= high < 1.06
    assert page.locator(f"[data-metric='{metric}'] .badge").first.inner_text() == "AGREE"
    assert page.locator("#alarms").inner_text() == ""


def test_a_broken_bound_is_marked_and_told_at_the_head(written: Written, opened: Opened) -> None:
    page = opened(page_of(written(metrics=agreeing(1.0, 1.2, 1.1, 1.0), agreement={"on_breach": "warn"})))
    metric = "agreement/token_mult_prob_error"
    mark = traces(page, metric)[-1]
    assert (mark["x"], mark["y"]) == ([2, 3], [1.2, 1.1])
    assert page.locator(f"[data-metric='{metric}'] .badge").first.inner_text() == "DISAGREE"
    assert "steps 2 to 3: sampler and learner disagree: mean e^|Δ| 1.2" in page.locator("#alarms").inner_text()


def test_constant_metrics_share_a_line_and_each_metric_has_a_sentence(written: Written, opened: Opened) -> None:
    metrics = [{"train/epoch": 0.0, "train/advantage": float(step), "train/turns": 3.0} for step in range(4)]
    page = opened(page_of(written(metrics=metrics)))
    assert page.locator("[data-metric='train/epoch']").count() == 0
    line = page.locator(".constants summary").inner_text()
    assert line.split("\n")[0].startswith("2 never change")
    assert "train/epoch 0 · train/turns 3" in line
    sentence = page.locator("[data-metric='train/advantage'] .sentence").inner_text()
    assert sentence == "Mean advantage of the trained tokens, before whitening."


def test_validations_are_dots(written: Written, opened: Opened) -> None:
    metrics = [{"validation/accuracy": step / 100, "train/reward": step / 100} for step in range(60)]
    page = opened(page_of(written(metrics=metrics)))
    modes = {}
    for metric in ("validation/accuracy", "train/reward"):
        traces(page, metric)
        modes[metric] = page.evaluate(f"document.querySelector(`[data-metric='{metric}'] .chart`).data[0].mode")
    assert modes == {"validation/accuracy": "lines+markers", "train/reward": "lines"}


def test_samples_of_one_prompt_stand_together_and_the_first_is_open(written: Written, opened: Opened) -> None:
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
    assert "reward math\n0.25\nlogged as\nbest score" in page.locator(".rollout .facts").inner_text()
    page.click(".head:has-text('response')")
    page.click(".head:has-text('response')")
    assert rows(page, 5) == ["b2", "b1", "a2", "a1"]
    assert page.locator(".line.begins").count() == 0


def test_the_newest_samples_are_on_top(written: Written, opened: Opened) -> None:
    folders = [written(name, samples=[[sample(f"{name}{step}")] for step in (1, 2)]) for name in ("one", "two")]
    page = opened(page_of(*folders), "samples")
    assert rows(page, 6) == ["one2", "two2", "one1", "two1"]


def test_marks_on_an_axis_are_told_apart(written: Written, opened: Opened) -> None:
    page = opened(page_of(written(metrics=METRICS)))
    tell = "splits => tickTexts(splits, 'linear')"
    assert page.evaluate(tell, [0.9999995, 1, 1.0000005]) == ["0.9999995", "1.0000000", "1.0000005"]
    assert page.evaluate(tell, [0, 1e-5, 2e-5, 4e-5]) == ["0", "1e−5", "2e−5", "4e−5"]
    assert page.evaluate(tell, [1e-5, 1.5e-5]) == ["1.0e−5", "1.5e−5"]
    assert page.evaluate(tell, [0.5, 0.75, 1]) == ["0.50", "0.75", "1.00"]
    assert page.evaluate(tell, [2e6, 2.5e6]) == ["2.0e6", "2.5e6"]
    assert page.evaluate(tell, [10, 20]) == ["10", "20"]


def test_what_goes_on_in_a_phase_is_said(written: Written, opened: Opened) -> None:
    timings = [{"generate": 1.0, "mine": 3.0, "beside/generate": 9.0, "beside/mine": 8.0}]
    page = opened(page_of(written(metrics=METRICS, timings=timings)), "time")
    told = page.locator("#time td:last-child").all_inner_texts()
    scored = "the sampler answers prompts, and the answers are scored"
    beside = "while the phases above went on"
    assert told == ["", scored, "", f"{scored}, {beside}", beside]


def test_a_recipe_is_searched_and_compared_with_the_shipped_one(written: Written, opened: Opened) -> None:
    folder = written(metrics=METRICS)
    loaded = load("ppo_arithmetic", ["ppo.clip=0.3"])
    (folder / "recipe.yaml").write_text(describe(loaded))
    (folder / "environment.json").write_text('{"recipe": "ppo_arithmetic"}')
    page = opened(page_of(folder), "recipe")
    differing = page.locator("#recipe section").first
    assert "What differs from the shipped recipe ppo_arithmetic" in differing.inner_text()
    assert differing.locator("td").all_inner_texts() == ["ppo.clip", "0.3", "0.2"]
    page.fill("#option", "critic.LR".lower())
    shown = [row.locator("td").first.inner_text() for row in page.locator("#recipe tbody tr:visible").all()]
    assert shown == ["critic.lr"]


def test_a_kl_that_is_asked_for_is_at_the_head(written: Written, opened: Opened) -> None:
    metrics = [{"train/kl": 0.0}, {"train/kl": 0.25}]
    page = opened(
        page_of(written("asked", metrics, ppo={"kl": {"coef": 0.1}}), written("not", metrics, ppo={"kl": None}))
    )
    told = page.locator(".run").all_inner_texts()
    assert ["KL from the reference per token 0.000 → 0.250" in text for text in told] == [True, False]


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
    runs = {f"clip={clip}_seed={seed}": {"ppo.clip": clip, "seed": seed} for clip in (0.1, 0.3) for seed in range(3)}
    folders = [
        written(
            f"sweep/{name}",
            [{"train/reward": 5 * at["ppo.clip"] + 0.1 * at["seed"] + 0.01 * step} for step in range(9)],
        )
        for name, at in runs.items()
    ]
    sweep = folders[0].parent
    (sweep / "sweep.json").write_text(json.dumps({"runs": runs}))
    assert main(["report", str(sweep), "--out", str(sweep / "page.html")]) == 0
    page = opened(sweep / "page.html")
    names = [trace["name"] for trace in traces(page, "train/reward")]
    assert [name for name in names if name.endswith("upper end")] == [
        "ppo.clip=0.1, upper end", "ppo.clip=0.3, upper end",
    ]  # fmt: skip
    assert len([name for name in names if name.endswith("mean of 3")]) == 2
    assert page.locator("[data-metric='train/reward']").first.evaluate(BAND_COLOURS) == 2
