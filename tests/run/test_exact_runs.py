"""Runs whose sampler and learner agree to the bit, and the certificate that says so."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiers import full
from tiny_recipe import GRPO, RECIPE, REWARDS
from transformers import PreTrainedModel

from lockstep.algorithms import exactness
from lockstep.cli import main
from lockstep.config.loading import load_recipe
from lockstep.core.types import Request, SamplingParams
from lockstep.monitor.agreement import AgreementPromise, ExactnessCertificate
from lockstep.objectives.tally import MismatchTally
from lockstep.report.alarms import find_alarms
from lockstep.report.log import read_metrics
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.samplers.base import ResponsePiece
from lockstep.samplers.torch import stateful
from lockstep.samplers.torch.sampler import TorchSampler

SHAPED = ("sampling.temperature=0.8", "sampling.top_k=20", "sampling.top_p=0.9")
LORA = (
    "learner.lora={rank: 8, alpha: 16}",
    "policy.lr=0.05",
    "model.scratch.config.initializer_range=0.2",
)
WORLD = """
class Three:
    def reset(self, row, seed):
        self.turns = 0
    def step(self, response):
        self.turns += 1
        return "3+4=7\\n", sum(c in "02468" for c in response) / 8, self.turns == 3
"""
TURNS = {name: value for name, value in GRPO.items() if name != "reward"} | {
    "environment": {
        "class_name": "world.py:Three",
        "stop": [*"0123456789", "\n"],
        "max_tokens": 30,
    },
    "sampling": {"max_tokens": 6},
    "validation_sampling": {"max_tokens": 6},
}
DISTILL = {
    name: RECIPE[name] for name in ("data", "learner", "sampling", "validation_sampling", "run")
} | {
    "algorithm": "distill",
    "model": {"path": "taught/initial"},
    "teacher": {"path": "taught/final"},
    "validation_reward": RECIPE["reward"],
    "distill": {"num_prompts_per_step": 8, "global_batch_size": 8},
    "optimizer": {"lr": 1.0e-2},
}
RECIPES = {"ppo": RECIPE, "grpo": GRPO, "turns": TURNS, "distill": DISTILL}


@pytest.fixture
def recipes(in_tmp: Path) -> Path:
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "world.py").write_text(WORLD)
    for name, recipe in RECIPES.items():
        (in_tmp / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return in_tmp


def compared() -> list[dict[str, Any]]:
    return [row for row in read_metrics(Path("run")) if "agreement/tokens" in row]


def certificate() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("run/certificate.json").read_text())
    return found


@pytest.mark.usefixtures("recipes")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", ("learner.dtype=bf16", *SHAPED)),
        ("grpo", ("learner.micro_batch_tokens=100",)),
        full("ppo", ("learner.micro_batch_tokens=100", "sampler.max_batch_size=3")),
        ("turns", ("learner.dtype=bf16", "learner.micro_batch_tokens=100", *SHAPED)),
        full("turns", ("sampler.max_batch_size=3",)),
        ("grpo", (*LORA, "learner.dtype=bf16", *SHAPED)),
        full("ppo", (*LORA, "sampler.replicas=2")),
    ],
)
def test_sampler_and_learner_logprobs_are_bit_identical_for_every_token(
    capsys: pytest.CaptureFixture[str], algorithm: str, options: tuple[str, ...]
) -> None:
    assert (
        main(["train", f"{algorithm}.yaml", "agreement.exact=require", "run.max_steps=3", *options])
        == 0
    )
    rows = compared()
    assert len(rows) == 3
    assert all(
        row["agreement/max_abs_logprob_diff"] == row["agreement/mismatches"] == 0.0 for row in rows
    )
    found = certificate()
    tokens = sum(row["agreement/tokens"] for row in rows)
    assert (found["level"], found["tokens"], found["mismatches"], found["largest_gap"]) == (
        "E2",
        tokens,
        0,
        0.0,
    )
    assert (
        f"E2, exact: {int(tokens):,} tokens compared, 0 not bitwise equal"
        in capsys.readouterr().out
    )


@pytest.mark.usefixtures("recipes")
@pytest.mark.parametrize(
    "options",
    [
        ("learner.dtype=bf16", *SHAPED),
        full(("distill.top_k=4", "learner.micro_batch_tokens=100")),
        full((*LORA[:1], "optimizer.lr=0.05")),
    ],
)
def test_distillation_sampler_and_learner_logprobs_are_bit_identical(
    options: tuple[str, ...],
) -> None:
    assert main(["train", "ppo.yaml", "run.folder=taught", "run.max_steps=1"]) == 0
    assert (
        main(["train", "distill.yaml", "agreement.exact=require", "run.max_steps=3", *options]) == 0
    )
    assert [row["agreement/mismatches"] for row in compared()] == [0.0, 0.0, 0.0]
    assert certificate()["level"] == "E2"


class Nudged(TorchSampler):
    """Samples step 3 with one weight of its own that is one unit in the last place off."""

    def __init__(self, lm: PreTrainedModel, *options: Any) -> None:
        super().__init__(copy.deepcopy(lm), *options)

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        weight = self._lm.get_parameter("model.norm.weight").data
        true = weight[0].clone()
        if self.version == 2:
            weight[0] = torch.nextafter(true, true + 1)
        yield from super().pieces(requests, sampling)
        weight[0] = true


@pytest.mark.usefixtures("recipes")
def test_one_ulp_difference_in_sampler_weight_is_detected_in_its_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stateful, "torch_sampler", Nudged)
    options = ("run.max_steps=4", "model.scratch.config.initializer_range=0.5")
    assert main(["train", "grpo.yaml", "agreement.exact=true", *options]) == 0
    assert [row["step"] for row in compared() if row["agreement/mismatches"]] == [3]
    assert certificate()["level"] == "E1"
    assert re.search(
        r"step 3: \d+ of \d+ tokens have different log-probabilities in sampler",
        capsys.readouterr().err,
    )
    assert (
        "tokens have different log-probabilities in sampler and learner" in certificate()["reason"]
    )
    assert (
        main(["train", "grpo.yaml", "agreement.exact=require", "run.folder=other", *options]) == 4
    )
    told = capsys.readouterr().err.splitlines()[-1]
    assert "step 3: " in told
    assert told.endswith("the run was saved after step 2; rerun the command to resume")


@pytest.mark.usefixtures("recipes")
def test_resumed_exact_run_keeps_earlier_mismatches_and_logs_no_drift_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = (
        "agreement.exact=true",
        "agreement.drift.baseline_steps=1",
        "model.scratch.config.initializer_range=0.5",
    )
    again = ["train", "grpo.yaml", "run.max_steps=4", "run.keep=9", *options]
    with monkeypatch.context() as patch:
        patch.setattr(stateful, "torch_sampler", Nudged)
        assert main(again) == 0
    for folder in ("final", "checkpoints/step_000004"):
        shutil.rmtree(Path("run", folder))
    Path("run/certificate.json").unlink()
    assert main(again) == 0
    rows = compared()
    assert len(rows) == 4
    assert not any(name.startswith("watch/") for row in rows for name in row)
    found, counted = certificate(), [row["agreement/mismatches"] for row in rows]
    assert [bool(mismatches) for mismatches in counted] == [False, False, True, False]
    assert (found["level"], found["mismatches"]) == ("E1", sum(counted))
    assert [
        alarm.steps[0] for alarm in find_alarms(rows) if alarm.metric == "agreement/mismatches"
    ] == [3]


@pytest.mark.usefixtures("recipes")
def test_dry_run_reports_whether_run_will_be_exact_or_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    will = " exact (E2): "
    reason = (
        "note: agreement.exact: learner.compile generates different kernels, so sampler and "
        "learner agree within"
    )
    compiled = dry_run(load_recipe("ppo.yaml", ["learner.compile=true"]))
    assert reason in compiled
    assert will not in compiled
    for options, exact in (["agreement.exact=false"], False), (["learner.lora={}"], True):
        told = dry_run(load_recipe("ppo.yaml", options))
        assert "agreement.exact" not in told
        assert (will in told) is exact
    for rows, weights in ("null", "last bits of weights depend"), ("2", "weights do not depend"):
        told = dry_run(load_recipe("ppo.yaml", [f"learner.rows_per_pass={rows}"]))
        assert f"bitwise equal; {weights}" in told
    monkeypatch.setattr(exactness, "resolve_device", lambda device: torch.device("cuda"))
    assert (
        "note: agreement.exact: learner.device is a GPU, whose slower exact kernels are used"
        in dry_run(load_recipe("grpo.yaml", []))
    )


@pytest.mark.parametrize(
    ("tokens", "mismatches", "exact", "stops", "level"),
    [
        (10, 0, True, True, "E2"),
        (10, 1, True, True, "E1"),
        (10, 0, False, True, "E1"),
        (10, 0, False, False, "E0"),
        (10, 1, True, False, "E0"),
        (0, 0, True, True, "none"),
    ],
)
def test_certificate_level_follows_compared_tokens_mismatches_and_settings(
    tokens: int, mismatches: int, exact: bool, stops: bool, level: str
) -> None:
    total = MismatchTally(tokens=tokens, mismatches=mismatches)
    assert (
        ExactnessCertificate.from_tally(
            total, AgreementPromise(1.05, stops, "lockstep doctor", exact)
        ).level
        == level
    )
