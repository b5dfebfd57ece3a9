"""What a run's certificate says, and that neither batches nor processes change what a step
samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiers import full
from tiny_recipe import GRPO, REWARDS

from lockstep.cli import main
from lockstep.core.batch import Batch
from lockstep.report.log import read_metrics
from lockstep.rollouts.rollout import RolloutCollector, Rollouts


@pytest.fixture(autouse=True)
def _recipe(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "grpo.yaml").write_text(yaml.safe_dump(GRPO))


def certificate(folder: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "certificate.json").read_text())
    return found


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("agreement.exact=false", "agreement.exact is false"),
        ("model.scratch.config.model_type=olmo2", "olmo2 models are not verified as exact"),
    ],
)
def test_certificate_of_inexact_run_gives_the_reason(
    capsys: pytest.CaptureFixture[str], option: str, reason: str
) -> None:
    assert main(["train", "grpo.yaml", "run.max_steps=1", option]) == 0
    assert certificate()["reason"].startswith(reason)
    (told,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("certificate")
    )
    assert "E1, bounded, not exact: " in told
    assert f" nats, because {reason}" in told
    assert any("watch/mismatch" in row for row in read_metrics(Path("run")))


@pytest.mark.parametrize("dtype", ["fp32", full("bf16")])
def test_sampled_tokens_and_logprobs_do_not_depend_on_batch_size_or_replicas(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    steps: list[Batch] = []
    collect = RolloutCollector.collect

    def noted(self: RolloutCollector, *arguments: Any) -> Rollouts:
        rollouts = collect(self, *arguments)
        steps.append(rollouts.batch)
        return rollouts

    monkeypatch.setattr(RolloutCollector, "collect", noted)
    for number, own in enumerate(
        (
            (),
            ("sampler.max_batch_size=1",),
            ("sampler.max_batch_size=3", "learner.micro_batch_tokens=60"),
            ("sampler.replicas=2", "sampler.max_batch_size=9", "learner.micro_batch_tokens=150"),
        )
    ):
        same = (
            f"learner.dtype={dtype}",
            "sampling.top_p=0.9",
            "agreement.exact=require",
            "run.max_steps=1",
        )
        assert main(["train", "grpo.yaml", *same, f"run.folder=run-{number}", *own]) == 0
        assert certificate(f"run-{number}")["level"] == "E2"
    usual, *others = steps
    assert len(others) == 3
    for other in others:
        assert torch.equal(other.tokens, usual.tokens)
        assert torch.equal(other["sampler_logprob"], usual["sampler_logprob"])
