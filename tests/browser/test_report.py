"""The page of `lockstep report`, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from report_pages import METRICS, page_of, rows, sample, token_columns, traces, until

from lockstep.cli import main

pytestmark = pytest.mark.needs("browser")
Written = Callable[..., Path]
Opened = Callable[..., Page]


def choose(page: Page, row: int = 0) -> None:
    page.locator(".line").nth(row).click()
    page.wait_for_selector(".rollout dd")


def test_curves_plot_logged_values_with_gaps_for_nan(written: Written, opened: Opened) -> None:
    page = opened(page_of(written(metrics=METRICS)))
    (trace,) = traces(page, "train/reward")
    assert trace["x"] == [1, 2, 3, 4, 5]
    assert trace["y"] == [0.1, 0.5, 0.2, None, 0.4]
    assert "1 value" in page.locator("[data-metric='train/reward'] figcaption").first.inner_text()


def test_report_shows_agreement_by_depth_phase_times_and_recipe_diff(
    written: Written, opened: Opened
) -> None:
    timings = [
        {"generate": 1.0, "policy": 3.0, "beside/generate": 9.0},
        {"generate": 2.0, "policy": 2.0},
    ]
    deep = [
        {**row, "agreement/gap_from_64": gap, "agreement/gap_from_0": 0.0}
        for row, gap in zip(METRICS, (0.5, 0.25), strict=False)
    ]
    folders = [
        written(name, deep, None, timings, seed=seed) for name, seed in (("one", 0), ("two", 1))
    ]
    page = opened(page_of(*folders), "agreement")
    assert "1.000e−9" in page.locator("#agreement table").first.inner_text()
    by_depth = page.locator("#agreement table").nth(1).locator("td").all_inner_texts()
    assert by_depth == ["0 to 63", *("0", "0") * 2, "from 64", *("0.375", "0.5") * 2]
    page.click("text=Time")
    page.wait_for_selector("#time[data-made] > *")
    share = page.locator("#time table").first.inner_text()
    assert re.search(r"policy\s+5\s+2\.5\s+62\.5 %", share)
    assert re.search(r"all\s+8\s+beside/generate\s+9\s+9", share)
    page.click("text=Recipe")
    page.wait_for_selector("#recipe[data-made] > *")
    assert page.locator("#recipe table").first.locator("td").all_inner_texts() == ["seed", "0", "1"]


def test_samples_are_filtered_by_step_and_text(written: Written, opened: Opened) -> None:
    logged = [
        [sample("apples"), sample("pears")],
        [sample("Apples", truncated=True)],
        [sample("apples")],
    ]
    page = opened(page_of(written(samples=logged)), "samples")
    page.fill("#search", "apple")
    assert rows(page, 5) == ["apples", "Apples", "apples"]
    page.fill("#to-step", "2")
    assert rows(page, 0) == ["2", "1"]
    page.check("text=only cut off")
    assert rows(page, 5) == ["Apples"]
    assert page.locator(".found").inner_text() == "1 of 4"


def test_rollout_view_shows_each_token_with_its_values(written: Written, opened: Opened) -> None:
    other = sample(token=token_columns(["z"], value=[9.0]))
    page = opened(page_of(written(samples=[[other, sample(), other]])), "samples")
    choose(page, 1)
    assert page.locator(".token").all_inner_texts() == ["4", "+5", "↵\n", "=9", "·"]
    assert "whitened" in page.locator(".legend").inner_text()
    page.hover(".token >> nth=1")
    tip = page.locator(".tip").inner_text()
    shown = dict(
        zip(*[iter(part.strip() for part in tip.splitlines()[2:] if part.strip())] * 2, strict=True)
    )
    assert shown["log-probability"] == "−2"
    assert shown["advantage"] == "1.5"
    assert shown["value"] == "0.2"
    assert shown["train − sample"] == "−2.000e−6"
    assert shown["probability"] == "0.1353"


def test_preference_pair_view_shows_both_responses_and_judgments(
    written: Written, opened: Opened
) -> None:
    row = {
        "id": "a:1", "prompt": "Q", "status": "ok", "scores": [4.0, None, 1.5],
        "chosen": "good", "chosen_score": 4.0, "chosen_judgments": ["fine. Score: 4"],
        "rejected": "bad", "rejected_score": 1.5, "rejected_judgments": ["no"],
    }  # fmt: skip
    unpaired = {"id": "a:2", "prompt": "Q", "status": "unscored", "scores": [None, None, None]}
    offline = {"id": "a:3", "prompt": "Q", "chosen": "better", "rejected": "worse"}
    page = opened(page_of(written(samples=[[row, unpaired, offline]])), "samples")
    choose(page)
    page.wait_for_selector(".rollout h3:text-is('Rejected, with score 1.50')")
    texts = page.locator(".rollout .text").all_inner_texts()
    assert texts == [
        "Q",
        "good",
        "ok; scores of all answers: 4.00, none, 1.50",
        "bad",
        "fine. Score: 4",
        "no",
    ]
    choose(page, 1)
    page.wait_for_selector(
        ".rollout .text:text-is('unscored; scores of all answers: none, none, none')"
    )
    choose(page, 2)
    page.wait_for_selector(".rollout h3:text-is('Rejected')")
    assert page.locator(".rollout .text").all_inner_texts() == ["Q", "better", "worse"]


HOSTILE = [
    "<script>harmed = 1</script>", "</script><script>harmed = 1</script>", ("<img src=x "
                                                                           "onerror='harmed = 1'>"),
    "a\u2028b\u2029c", "\x1b[31mred\x1b[0m \x00 \x07", "\ud800 lone \udfff", ("\u202egnp.exe "
                                                                             "\u05d0\u05d1"),
    "]]>&amp;--><!--", "%{harmed} {{harmed}} ${harmed}", "javascript:harmed=1", "__proto__",
]  # fmt: skip


def test_model_output_is_shown_as_text_and_never_executed(written: Written, opened: Opened) -> None:
    samples = [
        sample(text, id=text, prompt=text, answer=text, token=token_columns([text, *text]))
        for text in HOSTILE
    ]
    evil = "<img src=x onerror='harmed=1'>"
    recipe = {"data": {"prompt": HOSTILE[1]}, evil: evil}
    metrics = [{evil: 1.0, HOSTILE[1]: 2.0, "__proto__": 3.0, "train/reward": 1.0}] * 2
    page = opened(
        page_of(written(evil.replace("/", ""), metrics, [samples], [{evil: 1.0}] * 2, **recipe)),
        "samples",
    )
    for row, text in enumerate(HOSTILE):
        choose(page, row)
        until(page, "n => document.querySelectorAll('.token').length === n", arg=len([text, *text]))
        for token in page.locator(".token").all()[:2]:
            token.hover()
        whole = page.locator(".token").first.inner_text()
        # What would hide is shown: a picture of a control character, the name of one that breaks or
        # turns a line.
        for sign, meant in (
            ("␛", "\x1b"),
            ("␀", "\0"),
            ("␇", "\a"),
            ("⟨U+2028⟩", "\u2028"),
            ("⟨U+2029⟩", "\u2029"),
        ):
            whole = whole.replace(sign, meant)
        whole = whole.replace("⟨U+202E⟩", "\u202e")
        assert whole == text
    for view in ("Recipe", "Time", "Agreement", "Curves"):
        page.click(f"nav >> text={view}")
        page.wait_for_timeout(100)
    page.hover("[data-metric='train/reward'] .u-over >> nth=0")
    assert page.evaluate("typeof harmed") == "undefined"
    assert page.locator("img, iframe, object").count() == 0
    elements = page.evaluate("[...document.querySelectorAll('script')].map(script => script.type)")
    assert set(elements) == {"", "application/gzip"}


def test_report_page_blocks_injected_scripts_and_network_requests(
    written: Written, browser: Any
) -> None:
    page = browser.new_page()
    page.goto(page_of(written()).as_uri())
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'harmed = 1'; "
        "document.body.append(s); }"
    )
    page.evaluate(
        "() => document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"harmed = 1\">')"
    )
    assert page.evaluate("typeof harmed") == "undefined"
    assert (
        page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'loaded', error => error.name)")
        == "TypeError"
    )
    page.close()


@pytest.mark.full
def test_report_with_million_samples_scrolls_and_sorts(written: Written, opened: Opened) -> None:
    folder = written()
    count = 1_000_000
    with (folder / "samples.jsonl").open("w") as file:
        for i in range(count):
            file.write(
                f'{{"step": {i // 2000}, "id": "t:{i // 4 % 999}", "response": "r{i}", "score": '
                f"{i * 7919 % count}}}\n"
            )
    page = opened(page_of(folder), "samples")
    page.wait_for_selector(".line")
    page.locator(".scroller").evaluate("scroller => (scroller.scrollTop = scroller.scrollHeight)")
    until(
        page,
        "[...document.querySelectorAll('.line')].some(line => line.textContent.includes('r1999'))",
    )
    page.click(".head:has-text('score')")
    until(page, "document.querySelector('.line').children[1].textContent === '0'")
    assert rows(page, 1)[:3] == ["0", "1", "2"]
    page.locator(".scroller").focus()
    for key in ("End", "ArrowUp"):
        page.keyboard.press(key)
    assert page.locator(".line[aria-selected=true] span").nth(1).inner_text() == "999998"
    assert page.locator("#samples *").count() < 500


def test_held_out_view_lists_validations_newest_first(written: Written, opened: Opened) -> None:
    def validated(chosen: str) -> dict[str, Any]:
        pair = {
            "chosen": chosen,
            "chosen_score": 4.0,
            "rejected": "bad\nend",
            "rejected_score": 1.5,
        }
        return {"held_out": True, "id": "v:1", "prompt": "Q?", "status": "ok", **pair}

    tie = {"held_out": True, "id": "v:2", "prompt": "R?", "status": "tie"}
    trained = {
        "id": "t:1",
        "prompt": "T?",
        "status": "ok",
        "chosen": "learned",
        "rejected": "forgotten",
    }
    page = opened(
        page_of(
            written(samples=[[validated("first"), tie], [trained], [trained, validated("third")]])
        ),
        "heldout",
    )
    cells = page.locator("#heldout td")
    assert cells.all_inner_texts() == ["ok", "Q?", "third", "4", "bad\nend", "1.5"]
    assert page.locator("#validation option").all_inner_texts() == ["step 3", "step 1"]
    page.select_option("#validation", "1")
    until(page, "document.querySelectorAll('#heldout tbody tr').length === 2")
    assert cells.all_inner_texts() == [
        "ok",
        "Q?",
        "first",
        "4",
        "bad\nend",
        "1.5",
        "tie",
        "R?",
        "",
        "–",
        "",
        "–",
    ]
    page.click("nav >> text=Samples")
    page.wait_for_selector(".line")
    assert rows(page, 1) == ["", "held out", "", "held out", "held out"]


def test_held_out_view_lists_responses_with_scores_and_answers(
    written: Written, opened: Opened
) -> None:
    held_out = sample("4", 0.5, held_out=True, truncated=True)
    page = opened(page_of(written(samples=[[sample("9")], [held_out]])), "heldout")
    cells = page.locator("#heldout td").all_inner_texts()
    assert cells == ["What is 4 and 5?", "4", "0.5, cut off", "#### 9"]


def test_report_command_writes_single_html_file(
    written: Written, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = written("one", METRICS), written("two", METRICS)
    assert main(["report", str(one)]) == 0
    assert re.fullmatch(rf"{one}/report\.html  \d\.\d MB\n", capsys.readouterr().out)
    assert main(["report", str(one), str(two)]) == 0
    assert main(["report", str(one), "--out", "named.html"]) == 0
    assert {path.name for path in in_tmp.iterdir()} == {"one", "two", "report.html", "named.html"}
    assert main(["report", str(in_tmp)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
