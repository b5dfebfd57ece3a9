"""docs/coming_from.md names metrics that runs log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import DPO, GRPO, RECIPE, REWARDS

from lockstep.config.loading import load
from lockstep.foreign.metrics import METRICS
from lockstep.report.log import read_metrics
from lockstep.report.metric_sentences import describe_metric
from lockstep.run.train import train

PAGE = (Path(__file__).parents[2] / "docs/coming_from.md").read_text()
PART = PAGE[PAGE.index("## Metrics") : PAGE.index("## Different on purpose")]
RIGHT_OR_WRONG = {"type": "math", "marker": "####"}
RUNS: list[tuple[dict[str, Any], list[str]]] = [
    (RECIPE, ["ppo.kl.coef=0.1", "ppo.correction.kind=token_tis", "ppo.max_sequence_mismatch=2"]),
    (GRPO | {"validation_reward": RIGHT_OR_WRONG}, []),
    (DPO, []),
]


def logged(recipe: dict[str, Any], options: list[str]) -> set[str]:
    """The metrics of a run of one step."""
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    folder = f"run.folder={recipe['algorithm']}"
    rows = read_metrics(train(load("tiny.yaml", [*options, "run.max_steps=1", folder])))
    return {name for row in rows for name in row}


def named(page: str) -> set[str]:
    """The metrics of ours in first cells."""
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", page, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("group", METRICS)
def test_each_of_theirs_has_a_row(group: str) -> None:
    ours = {metric.ours for metrics in METRICS[group].values() for metric in metrics}
    assert ours == named(PART.split(f"### {group}\n")[1].split("###")[0])
    assert all(map(describe_metric, ours))


def test_runs_log_what_is_named(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    assert len(named(PART)) > 40
    missing = named(PART) - {name for recipe, options in RUNS for name in logged(recipe, options)}
    assert not missing
