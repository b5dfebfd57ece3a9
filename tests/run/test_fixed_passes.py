"""Runs whose passes are of fixed rows: neither micro-batches nor sampling batches change a bit of
their weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tiers import full
from tiny_recipe import DPO, GRPO, RECIPE, REWARDS

from lockstep.cli import main
from lockstep.core import exit_codes


@pytest.fixture(autouse=True)
def _recipes(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    for name, recipe in {"ppo": RECIPE, "grpo": GRPO, "dpo": DPO}.items():
        (in_tmp / f"{name}.yaml").write_text(yaml.safe_dump(recipe))


def checkpoint(algorithm: str, *options: str) -> dict[str, bytes]:
    """The files of the learners, after two steps."""
    folder = Path("-".join(options))
    assert (
        main(["train", f"{algorithm}.yaml", "run.max_steps=2", f"run.folder={folder}", *options])
        == 0
    )
    last = folder / "checkpoints/step_000002"
    return {str(path.relative_to(last)): path.read_bytes() for path in last.rglob("*.safetensors")}


@pytest.mark.parametrize(
    ("algorithm", "others"),
    [
        ("grpo", ("sampler.max_batch_size=3", "learner.dtype=bf16")),
        ("ppo", ("sampler.max_batch_size=3", "learner.dtype=fp32")),
        full("dpo", ("learner.dtype=fp32",)),
    ],
)
def test_weights_with_fixed_rows_per_pass_do_not_depend_on_micro_batches(
    algorithm: str, others: tuple[str, ...]
) -> None:
    dtype, *sampling = reversed(others)
    small, large = (
        f"learner.micro_batch_tokens={tokens}"
        for tokens in (400 if algorithm == "dpo" else 160, 8192)
    )
    fixed = checkpoint(algorithm, dtype, large, "learner.rows_per_pass=2")
    assert len(fixed) > 1
    assert checkpoint(algorithm, dtype, small, "learner.rows_per_pass=2", *sampling) == fixed
    assert checkpoint(algorithm, dtype, large) != checkpoint(algorithm, dtype, small)
    assert checkpoint(algorithm, dtype, large, "learner.rows_per_pass=3") != fixed


def train(algorithm: str, folder: str, *options: str) -> int:
    how = (
        f"{algorithm}.yaml",
        "run.max_steps=3",
        f"run.folder={folder}",
        "learner.rows_per_pass=2",
    )
    return main(["train", *how, *options])


@pytest.mark.needs("gloo")
@pytest.mark.parametrize(
    ("algorithm", "dtype", "layout"),
    [
        ("ppo", "fp32", "{dp: 4}"),
        full("grpo", "bf16", "{dp_replicate: 2, dp: 2}"),
        full("dpo", "fp32", "{dp_replicate: 2}"),
    ],
)
def test_weights_with_fixed_rows_per_pass_do_not_depend_on_data_parallel_ranks(
    algorithm: str, dtype: str, layout: str
) -> None:
    how = f"learner.dtype={dtype}"
    assert train(algorithm, "one", how) == 0
    assert train(algorithm, "two", how, "learner.parallel.dp=2") == 0
    stopped = train(algorithm, "moved", how, "learner.parallel.dp=2", "run.max_time_s=0.01")
    assert stopped == exit_codes.OUT_OF_TIME
    assert train(algorithm, "moved", how, f"learner.parallel={layout}", "--allow-changes") == 0
    one, two, moved = (
        Path(folder, "final/model.safetensors").read_bytes() for folder in ("one", "two", "moved")
    )
    assert one == two
    assert one == moved
