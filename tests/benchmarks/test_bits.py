"""`make bits` sees the smallest change of a run, keeps its proof over renames, and finds a commit
equal to itself.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from row_files import write_rows
from safetensors.torch import load_file, save_file

from benchmarks import bits_names
from benchmarks.bits import main
from benchmarks.bits_cases import load_cases
from benchmarks.bits_outputs import Outputs, find_difference, keep
from benchmarks.bits_sides import ROOT

pytestmark = pytest.mark.full

METRICS = [{"step": 1, "train/reward": 0.5, "refit/version": 1.0}, {"step": 2, "train/reward": 0.0}]
SAMPLES = [
    {"step": 1, "id": "a:1", "token": {"mask": [1, 1]}},
    {"step": 1, "id": "a:2", "token": {"mask": [1]}},
]


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    write_rows(file, rows)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run's folder."""
    folder = tmp_path / "run"
    (folder / "final").mkdir(parents=True)
    save_file(
        {"a": torch.linspace(0, 1, 6).view(2, 3), "b": torch.ones(4)},
        folder / "final" / "model.safetensors",
    )
    for step in (9, 10):
        critic = folder / "checkpoints" / f"step_{step:06d}" / "critic"
        critic.mkdir(parents=True)
        save_file({"c": torch.full((3,), float(step))}, critic / "model.safetensors")
    write_lines(folder / "metrics.jsonl", METRICS)
    write_lines(folder / "samples.jsonl", SAMPLES)
    write_lines(folder / "timings.jsonl", [{"step": 1, "learn": 1.0}])
    return folder


def move_a_weight(folder: Path) -> None:
    file = folder / "final" / "model.safetensors"
    tensors = load_file(file)
    tensors["a"][1, 1] = torch.nextafter(tensors["a"][1, 1], torch.tensor(2.0))
    save_file(tensors, file)


def change_the_critic(folder: Path) -> None:
    save_file(
        {"c": torch.tensor([10.0, 10.0, 11.0])},
        folder / "checkpoints/step_000010/critic/model.safetensors",
    )


def change_metrics(value: float | None, folder: Path) -> None:
    changed = {"step": 2} if value is None else {"step": 2, "train/reward": value}
    write_lines(folder / "metrics.jsonl", [METRICS[0], changed])


def drop_a_sample(folder: Path) -> None:
    write_lines(folder / "samples.jsonl", SAMPLES[:1])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (move_a_weight, "final/model.safetensors:a differs in 1 of 6 elements, first in element 4"),
        (
            change_the_critic,
            "checkpoint/critic/model.safetensors:c differs in 1 of 3 elements, first in element 2",
        ),
        (
            partial(change_metrics, 5e-324),
            "metrics.jsonl:2 train/reward is 0.0 in the baseline and 5e-324 in HEAD",
        ),
        (
            partial(change_metrics, -0.0),
            "metrics.jsonl:2 train/reward is 0.0 in the baseline and -0.0 in HEAD",
        ),
        (partial(change_metrics, None), "metrics.jsonl:2 train/reward is only in the baseline"),
        (drop_a_sample, "samples.jsonl has 2 rows in the baseline and 1 in HEAD"),
    ],
)
def test_bits_reports_smallest_change_of_weights_metrics_or_samples(
    finished: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    keep(finished, tmp_path / "kept")
    baseline = Outputs.read(tmp_path / "kept")
    assert (len(baseline.tensors), baseline.num_metrics, baseline.num_samples) == (3, 5, 2)
    write_lines(finished / "timings.jsonl", [{"step": 1, "learn": 2.0}])
    assert find_difference(baseline, Outputs.read(finished)) is None, "clock times are not compared"
    spoil(finished)
    assert find_difference(baseline, Outputs.read(finished)) == said


def test_bits_treats_declared_renames_as_equal(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = Outputs.read(finished)
    write_lines(
        finished / "metrics.jsonl",
        [
            {"step": 1, "train/return": 0.5, "weight_sync/version": 1.0},
            {"step": 2, "train/return": 0.0},
        ],
    )
    write_lines(finished / "samples.jsonl", [{**row, "tokens": row["token"]} for row in SAMPLES])
    critic = finished / "checkpoints" / "step_000010" / "critic"
    critic.rename(critic.with_name("value"))
    assert find_difference(baseline, Outputs.read(finished)) == (
        "checkpoint/critic/model.safetensors:c is only in the baseline"
    )
    head = Outputs.read(finished)
    for row in head.samples["samples.jsonl"]:
        row.pop("token")
    monkeypatch.setattr(bits_names, "TENSORS", {"checkpoint/critic/": "checkpoint/value/"})
    assert (
        find_difference(baseline.rename(), head)
        == "metrics.jsonl:1 train/reward is only in the baseline"
    )
    monkeypatch.setattr(
        bits_names, "METRICS", {"train/reward": "train/return", "refit/": "weight_sync/"}
    )
    monkeypatch.setattr(bits_names, "COLUMNS", {"token": "tokens"})
    assert find_difference(baseline.rename(), head) is None


def test_every_algorithm_backend_and_sampler_has_a_case() -> None:
    recipes = [case.recipe for case in load_cases().values()]
    algorithms = {"sft", "dpo", "reward_model", "ppo", "grpo", "distill", "self_rewarding"}
    assert {recipe["algorithm"] for recipe in recipes} == algorithms | {
        "eval",
        "generate",
        "eval_judge",
    }
    assert {recipe.get("learner", {}).get("backend", "torch") for recipe in recipes} == {
        "torch",
        "megatron",
    }
    assert {recipe.get("sampler", {}).get("backend", "torch") for recipe in recipes} == {
        "torch",
        "vllm",
    }


@pytest.fixture
def baseline_commit() -> None:
    """The clone has the commit that `make bits` compares with."""
    commit = (ROOT / "benchmarks/bits_baseline").read_text().strip()
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True
    )
    if asked.returncode:
        pytest.skip(f"needs commit {commit[:7]}, which this clone has not: git fetch --unshallow")


@pytest.mark.full
def test_bits_finds_working_tree_equal_to_baseline_commit(
    baseline_commit: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["--only", "sft", "--cache", str(tmp_path)]) == 0
    assert "1/1 sft: equal\n" in capsys.readouterr().out
    kept = next(tmp_path.rglob("final/model.safetensors")).parent.parent
    rows = (kept / "metrics.jsonl").read_text().splitlines()
    (kept / "metrics.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    assert main(["--only", "sft", "--cache", str(tmp_path)]) == 1
    assert (
        f"metrics.jsonl has {len(rows) - 1} rows in the baseline and {len(rows)} in HEAD"
        in capsys.readouterr().out
    )
    trees = subprocess.run(
        ["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert str(tmp_path) not in trees, "the baseline's tree is taken away"
    assert not list(tmp_path.glob("lockstep-bits-*"))
