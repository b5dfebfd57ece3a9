"""The results of a sweep's runs: which count in means, and by which value."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from row_files import write_rows

from lockstep.report.sweeps import (
    SWEEP,
    describe_sweep,
    list_runs,
    list_spreads,
    read_sweep,
    summarize_sweep,
)

AGREED = {
    "agreement/tokens": 8.0,
    "agreement/max_abs_logprob_diff": 0.0,
    "agreement/token_mult_prob_error": 1.0,
}


def write_run(
    folder: Path, rewards: list[float | None], breach: float = 0.0, grad_norm: float = 1.0
) -> None:
    """A finished run with a line for each reward; None is no number."""
    (folder / "final").mkdir(parents=True)
    (folder / "recipe.yaml").write_text("algorithm: grpo\nagreement: {}\n")
    more = {
        **AGREED,
        "agreement/bound": 1.01,
        "agreement/breach": breach,
        "policy/grad_norm": grad_norm,
    }
    rows = [
        {"step": step, "train/reward": reward, **more} for step, reward in enumerate(rewards, 1)
    ]
    lines = [*rows, {"step": len(rows), "train/kl": 0.5}]
    write_rows(folder / "metrics.jsonl", lines)


def test_sweep_means_use_last_values_of_successful_runs_only(tmp_path: Path) -> None:
    write_run(tmp_path / "seed=0", [0.0, 1.0])
    write_run(tmp_path / "seed=1", [0.0, 2.0])
    write_run(tmp_path / "seed=2", [0.0, 100.0], breach=1.0)  # exit code 4
    write_run(tmp_path / "seed=3", [0.0, 100.0], grad_norm=0.0)  # exit code 3
    write_run(tmp_path / "seed=4", [100.0, None])
    runs = {f"seed={seed}": {"seed": seed} for seed in range(6)}
    (tmp_path / SWEEP).write_text(json.dumps(runs))

    results = read_sweep(tmp_path)
    table = list_runs(results)
    assert [row["state"] for row in table] == [
        "finished",
        "finished",
        "failed",
        "failed",
        "finished",
        "not finished",
    ]
    assert math.isnan(table[4]["train/reward"])
    spreads = {row["metric"]: (row["count"], row["mean"]) for row in list_spreads(results)}
    assert spreads["train/reward"] == (2, pytest.approx(1.5))
    assert spreads["train/kl"] == (3, pytest.approx(0.5))
    assert "3 of 6" in summarize_sweep(tmp_path)
    page = describe_sweep(read_sweep(tmp_path)[:5])
    assert [run["state"] for run in page["runs"]] == [row["state"] for row in table[:5]]
    assert page["groups"][0]["final"]["train/reward"]["mean"] == pytest.approx(1.5)
    assert page["groups"][0]["bands"]["train/kl"]["n"] == 3
