"""The end of a run, as it is read: the verdict, what sums it up, and paths that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from lockstep.report.summary import summarize_run
from lockstep.run.folder.logs import RunLogs

COMPARED = {
    "agreement/tokens": 100.0,
    "agreement/max_abs_logprob_diff": 2e-5,
    "agreement/token_mult_prob_error": 1.0,
    "agreement/bound": 1.001,
    "agreement/breach": 0.0,
}


def summarize(folder: Path, rows: Sequence[Mapping[str, float]]) -> list[str]:
    logs = RunLogs(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"algorithm": "ppo", "agreement": {}}))
    for step, row in enumerate(rows):
        logs.add_metrics(step, row)
    return summarize_run(folder).splitlines()


def test_summary_ends_with_verdict_metrics_and_paths_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    step = {
        "train/reward": 0.5,
        "critic/explained_variance": 0.25,
        "validation/accuracy": 0.5,
        **COMPARED,
    }
    lines = summarize(folder, [step, step | {"validation/accuracy": 0.75, "train/reward": 0.75}])
    begins = [
        "training and sampling",
        "held-out accuracy",
        "  best",
        "sampled reward",
        "explained variance",
        "",
        "run:",
        "report:",
    ]
    end = lines[-len(begins) - 1 :]
    assert all(line.startswith(begin) for line, begin in zip(end, begins, strict=False)), end
    verdict = (
        "AGREE: 200 tokens compared, largest |Δ log-prob| 2.0e-05, mean e^|Δ| at most "
        "1.000000, bound 1.001"
    )
    assert end[0].endswith(verdict)
    assert end[-1] == (
        f"model: not finished; to write the model so far: lockstep export {folder} MODEL"
    )
    (folder / "final").mkdir()
    assert summarize_run(folder).endswith(
        f"model: {folder / 'final'} (loads with transformers; see its README.md)"
    )


def test_summary_lists_reward_components_below_total_reward(tmp_path: Path) -> None:
    lines = summarize(
        tmp_path,
        [{"train/reward": value, "reward/math": value, "reward/short": 1.0} for value in (0, 1)],
    )
    assert [line.split() for line in lines if "→" in line][:3] == [
        ["sampled", "reward", "0.000", "→", "1.000"],
        ["math", "0.000", "→", "1.000"],
        ["short", "1.000", "→", "1.000"],
    ]
