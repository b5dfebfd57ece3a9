"""The page of replayed bugs: each fault is injected, and a run stops with the page's sentence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from replayed import FAULTS, RECIPE, REWARDS, write_rows_of_sums
from scoring_server import serving

from lockstep.cli import main

PAGE = (Path(__file__).parents[2] / "docs/replayed.md").read_text(encoding="utf-8")
ROWS = dict(
    re.findall(r"^\| \[.*?\]\(https://github\.com/(.*?)\) \| .* \| `(.*)` \|$", PAGE, re.MULTILINE)
)
SLOW = {
    "huggingface/trl/issues/6789", "allenai/open-instruct/pull/1678", "THUDM/slime/pull/1686",
    "NVIDIA-NeMo/RL/pull/2519",
}  # fmt: skip


def test_page_lists_twelve_reports_and_a_fault_for_each() -> None:
    assert len(ROWS) == 12
    assert ROWS.keys() == FAULTS.keys()


@pytest.mark.parametrize(
    "report",
    [pytest.param(one, marks=pytest.mark.full if one in SLOW else ()) for one in FAULTS],
)
def test_injected_fault_stops_run_with_sentence_of_page(
    report: str,
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(in_tmp / "cache"))
    Path("rewards.py").write_text(REWARDS)
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    write_rows_of_sums()
    fault = FAULTS[report]
    train = ["train", "tiny.yaml"]
    if fault.earlier:
        assert main([*train, *shlex.split(fault.earlier)]) == 0, "without the fault nothing stops"
    fault.inject(monkeypatch)
    with serving(lambda path, body: 500) as address:
        options = fault.options.replace("ADDRESS", address)
        assert main([*train, *shlex.split(options)]) != 0
    pattern = ".*".join(map(re.escape, ROWS[report].split("…")))
    assert re.search(pattern, capsys.readouterr().err, re.DOTALL)
