"""A report of 500 steps × 256 samples × about 40 tokens: seconds to write, size, and how soon a browser can use it.

    python -m benchmarks.report [--save]

The other page is the obvious one: all of samples.jsonl as one JSON block, parsed when the page opens, and one
table with a row per sample. It has the table alone: no curves and no library to draw them, no sorting (which took more
than four minutes and 9 GB), no tokens to see, though it holds them; all that is in its favour. Both are opened by the
same Chromium from the same disk; times count from the start of the navigation, and are medians. The run is made up:
real ones repeat themselves more and become smaller.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from benchmarks.harness import Row, environment, peak_rss_mb, save, table
from lockstep.report.html import write_report
from lockstep.report.log import SAMPLES, lines
from lockstep.rollouts.samples import round_significant
from lockstep.run.track import Logs

BROWSER = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
COLUMNS = ("step", "id", "score", "shaped_score", "tokens", "truncated", "response", "prompt")

PLAIN_PAGE = """<!doctype html><meta charset="utf-8"><table id="table"><tbody></tbody></table>
<script type="application/json" id="data">%s</script>
<script>
const rows = JSON.parse(document.getElementById("data").textContent);
const body = document.querySelector("tbody");
for (const row of rows) {
  const line = body.insertRow();
  for (const name of %s) line.insertCell().textContent = String(row[name]).slice(0, 96);
}
</script>
"""


def write_run(folder: Path, steps: int, samples: int, tokens: int) -> None:
    """Writes a run as Lockstep logs it, with numbers of the usual sizes."""
    rng = np.random.default_rng(0)
    words = [f" w{i}" for i in range(2000)]
    folder.mkdir()
    (folder / "recipe.yaml").write_text(f"algorithm: ppo\nrun: {{max_steps: {steps}}}\n")
    logs = Logs(folder)
    for step in range(1, steps + 1):
        logs.metrics(step, {f"group_{i // 10}/metric_{i}": float(x) for i, x in enumerate(rng.normal(size=60))})
        logs.timings(step, {f"phase_{i}": float(x) for i, x in enumerate(rng.random(8))})
        logs.samples(step, [sample(rng, words, step * samples + i, tokens) for i in range(samples)])


def sample(rng: np.random.Generator, words: list[str], number: int, tokens: int) -> dict[str, Any]:
    count = int(rng.integers(tokens // 2, 3 * tokens // 2))
    texts = [words[i] for i in rng.zipf(1.3, count) % len(words)]
    measured = {name: rng.normal(size=count) for name in ("value", "advantage", "return")}
    measured |= {
        "logprob": -rng.exponential(size=count),
        "gap": 1e-6 * rng.normal(size=count),
        "reward": np.zeros(count),
    }
    score = float(rng.random())
    return {
        "id": f"train.jsonl:{number % 7473}",
        "prompt": f"Question {number % 7473}: " + "".join(words[: number % 40]),
        "response": "".join(texts),
        "answer": str(number % 100),
        "score": score,
        "shaped_score": score,
        "tokens": count,
        "truncated": bool(number % 20 == 0),
        "token": {
            "text": texts,
            "mask": [1] * count,
            **{name: round_significant(column.astype(np.float32)).tolist() for name, column in measured.items()},
        },
    }


def write_ours(folder: Path, out: Path) -> None:
    write_report([folder], out)


def write_plain(folder: Path, out: Path) -> None:
    rows = json.dumps([row for row, _ in lines(folder / SAMPLES)]).replace("<", "\\u003c")
    out.write_text(PLAIN_PAGE % (rows, json.dumps(COLUMNS)))


def built(write: Callable[[Path, Path], None], folder: Path, out: Path) -> dict[str, float]:
    """Seconds, peak memory and size of one page, written by a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_built, (write, folder, out))


def _built(write: Callable[[Path, Path], None], folder: Path, out: Path) -> dict[str, float]:
    before, wall, cpu = peak_rss_mb(), time.perf_counter(), time.process_time()
    write(folder, out)
    seconds = {"build_s": time.perf_counter() - wall, "build_cpu_s": time.process_time() - cpu}
    return {**seconds, "build_peak_mb": peak_rss_mb(), "before_mb": before, "size_mb": out.stat().st_size / 1e6}


@contextmanager
def opened(address: str) -> Iterator[Page]:
    """Opens the page in a browser with an empty cache."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(BROWSER))
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(address, wait_until="commit")
        yield page
        browser.close()


def seconds_until(page: Page, condition: str) -> float:
    """Seconds until a condition holds, on the page's clock, which starts with the navigation."""
    while True:
        now = page.evaluate(f"{condition} ? performance.now() : null")
        if now is not None:
            return now / 1000
        page.wait_for_timeout(20)


def seconds_of(page: Page, work: str) -> float:
    """Seconds of a piece of work, and of the layout of the page after it."""
    timed = f"const start = performance.now(); {work}; document.body.offsetHeight; return performance.now() - start;"
    return page.evaluate(f"() => {{ {timed} }}") / 1000


def ours(out: Path) -> dict[str, float]:
    with opened(out.as_uri()) as page:
        first_curve = seconds_until(page, "document.querySelector('.chart .scatterlayer .trace') !== null")
    with opened(f"{out.as_uri()}#samples") as page:
        rows = seconds_until(page, "document.querySelector('.line') !== null")
        whole = seconds_until(page, "document.readyState === 'complete'")
        sort = seconds_of(page, "document.querySelectorAll('.head')[1].click()")
        page.click(".line >> nth=5")
        start = page.evaluate("performance.now()") / 1000
        tokens = seconds_until(page, "document.querySelector('.token') !== null") - start
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    return {
        "curve_s": first_curve,
        "rows_s": rows,
        "whole_s": whole,
        "sort_s": sort,
        "tokens_s": tokens,
        "heap_mb": heap,
    }


def plain(out: Path) -> dict[str, float]:
    with opened(out.as_uri()) as page:
        rows = seconds_until(page, "document.readyState === 'complete' && document.body.offsetHeight > 0")
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    return {"rows_s": rows, "heap_mb": heap}


def medians(measure: Callable[[Path], dict[str, float]], out: Path, rounds: int) -> dict[str, float]:
    seen = [measure(out) for _ in range(rounds)]
    return {name: statistics.median(one[name] for one in seen) for name in seen[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--samples", type=int, default=256, help="per step")
    parser.add_argument("--tokens", type=int, default=40, help="per sample, on average")
    parser.add_argument("--rounds", type=int, default=3, help="times that each page is opened; the median counts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/report.json")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        write_run(run, args.steps, args.samples, args.tokens)
        pages = {name: Path(temporary) / f"{name}.html" for name in ("plain", "ours")}
        figures = {
            "plain": built(write_plain, run, pages["plain"]) | medians(plain, pages["plain"], args.rounds),
            "ours": built(write_ours, run, pages["ours"]) | medians(ours, pages["ours"], args.rounds),
        }
        log_mb = (run / SAMPLES).stat().st_size / 1e6
    rows = [compared(title, name, figures) for title, name in TITLES.items()]
    where = environment(threads=1)
    print(where)
    print(f"{args.steps} steps × {args.samples} samples, {log_mb:.0f} MB of samples.jsonl")
    print(table(rows, "one JSON block, one table", "page"))
    print({name: round(figures["ours"][name], 3) for name in ("curve_s", "whole_s", "sort_s", "tokens_s")})
    if args.save:
        print(save("report", where, rows, {"samples_mb": log_mb, "arguments": vars(args), **figures}))


TITLES = {
    "written in, s": "build_s",
    "written in, CPU s": "build_cpu_s",
    "peak memory while writing, MB": "build_peak_mb",
    "size, MB": "size_mb",
    "rows in sight after, s": "rows_s",
    "JavaScript heap, MB": "heap_mb",
}


def compared(title: str, name: str, figures: dict[str, dict[str, float]]) -> Row:
    baseline, own = figures["plain"][name], figures["ours"][name]
    return Row(title, baseline, own, baseline / own)


if __name__ == "__main__":
    main()
