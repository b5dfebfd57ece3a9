"""Exact runs that recompute a share of the responses: the same curve as recomputing all, and no
fault goes unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from killing import assert_same, copy_unfinished, final
from safetensors.torch import load_file
from tiers import full
from tiny_recipe import GRPO, RECIPE, REWARDS

from lockstep.cli import main
from lockstep.core import keyed
from lockstep.core.types import Request, SamplingParams
from lockstep.report.log import read_metrics
from lockstep.samplers.base import ResponsePiece
from lockstep.samplers.torch import stateful
from lockstep.samplers.torch.sampler import TorchSampler

WORLD = '''
class Even:
    """A turn is worth its share of even digits; says "3" to each, and ends after three."""
    def reset(self, row, seed):
        self.turns = 0
    def step(self, response):
        self.turns += 1
        return "3\\n", sum(c in "02468" for c in response) / max(1, len(response)) / 3, self.turns == 3
'''
EPISODES = {name: value for name, value in RECIPE.items() if name != "reward"} | {
    "environment": {
        "class_name": "worlds.py:Even",
        "stop": ["1", "4", "\n"],
        "max_tokens": 30,
        "pass_score": 0.1,
    },
    "sampling": {"max_tokens": 8},
    "validation_sampling": {"max_tokens": 8},
}
RECIPES = {"ppo": RECIPE, "grpo": GRPO, "episodes": EPISODES}
SHAPED = ("sampling.temperature=0.8", "sampling.top_k=20", "sampling.top_p=0.9")
SMALL = ("learner.micro_batch_tokens=100", "sampler.max_batch_size=3")


@pytest.fixture(autouse=True)
def recipes(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "worlds.py").write_text(WORLD)
    for name, recipe in RECIPES.items():
        (in_tmp / f"{name}.yaml").write_text(yaml.safe_dump(recipe))


def train(recipe: str, exact: str, folder: str, *options: str) -> None:
    assert (
        main(
            [
                "train",
                f"{recipe}.yaml",
                f"agreement.exact={exact}",
                f"run.folder={folder}",
                *options,
            ]
        )
        == 0
    )


def compared(folder: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(Path(folder)) if "agreement/tokens" in row]


def total(folder: str, metric: str) -> float:
    return sum(row[f"agreement/{metric}"] for row in compared(folder))


def certificate(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "certificate.json").read_text())
    return found


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("ppo", ("learner.dtype=bf16", "ppo.ppo_epochs=2", "ppo.kl.coef=0.1", *SHAPED)),
        ("grpo", ("grpo.correction.kind=token_tis", "grpo.correction.high=2.0", *SMALL)),
        ("episodes", ("ppo.critic_warmup_steps=1",)),
        full("ppo", ("ppo.max_sequence_mismatch=1.5", "ppo.global_batch_size=16", *SMALL)),
        full("grpo", ("learner.dtype=bf16", "grpo.kl.coef=0.1", "grpo.kl.placement=loss", *SHAPED)),
    ],
)
def test_recomputing_a_share_gives_same_weights_and_metrics_as_recomputing_all(
    recipe: str, options: tuple[str, ...]
) -> None:
    train(recipe, "true", "share", "run.max_steps=3", *options)
    train(recipe, "require", "all", "run.max_steps=3", *options)
    assert_same(final("share"), final("all"))
    if recipe != "grpo":
        critics = [
            load_file(f"{run}/checkpoints/step_000003/critic/model.safetensors")
            for run in ("share", "all")
        ]
        assert_same(*critics)
    counts = {"agreement/tokens", "agreement/not_recomputed"}
    for one, other in zip(compared("share"), compared("all"), strict=True):
        assert {name: value for name, value in one.items() if name not in counts} == {
            name: value for name, value in other.items() if name not in counts
        }
        assert other["agreement/not_recomputed"] == 0
        assert one["agreement/not_recomputed"] > 0 or "ppo.global_batch_size=16" in options
        assert (
            one["agreement/tokens"] + one["agreement/not_recomputed"] == other["agreement/tokens"]
        )


def test_certificate_counts_tokens_not_recomputed_separately(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train("ppo", "true", "run", "run.max_steps=2", "ppo.global_batch_size=4")
    found = certificate("run")
    assert (found["level"], found["mismatches"], found["largest_gap"]) == ("E2", 0, 0.0)
    assert (found["tokens"], found["not_recomputed"]) == (
        total("run", "tokens"),
        total("run", "not_recomputed"),
    )
    assert 0 < found["not_recomputed"] < found["tokens"] * 4
    assert (
        f"largest gap 0 nats; {found['not_recomputed']:,} not recomputed ("
        in capsys.readouterr().out
    )


class Slipped(TorchSampler):
    """Says of one token of step 2 a log-probability that is one unit in the last place off."""

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        slips = first_unshared(step=1) if self.version == 1 and len(requests) == 16 else -1
        for places, batch in super().pieces(requests, sampling):
            if slips in places:
                token = int(batch.starts[list(places).index(slips) + 1]) - 1
                off = batch["sampler_logprob"].clone()
                off[token] = torch.nextafter(off[token], off[token] - 1)
                batch = batch.with_columns({"sampler_logprob": off})
            yield places, batch


def first_unshared(step: int) -> int:
    """A response that is not recomputed, and is not the last, in the first minibatch of a step."""
    share = keyed.draw_sample(16, 4, 0, "recomputed", step)
    order = keyed.draw_permutation(16, 0, "minibatches", step, 0)[:8].tolist()
    return next(row for row in order if row not in share and row != 15)


@pytest.mark.parametrize("recipe", ["ppo", full("grpo")])
def test_mismatch_in_first_minibatch_is_counted_and_forces_full_recomputation(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stateful, "torch_sampler", Slipped)
    train(recipe, "true", "whole", "run.max_steps=4")
    assert "step 2: 1 of " in capsys.readouterr().err
    resume_after_3_steps(recipe, "run.max_steps=4")
    rows = compared("run")
    assert [row["agreement/mismatches"] for row in rows] == [0, 1, 0, 0]
    assert [row["agreement/not_recomputed"] > 0 for row in rows] == [True, True, False, False]
    found = certificate("run")
    assert (found["level"], found["mismatches"]) == ("E1", 1)
    assert found["largest_gap"] == max(row["agreement/max_abs_logprob_diff"] for row in rows) > 0


def resume_after_3_steps(recipe: str, *options: str) -> None:
    """Resumes a copy of the run `whole`, which had 4 steps, and compares both."""
    copy_unfinished(4, "run")
    train(recipe, "true", "run", *options)
    assert_same(final("whole"), final("run"))
    assert compared("whole") == compared("run")
    assert certificate("whole") == certificate("run")
