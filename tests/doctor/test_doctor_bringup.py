"""`lockstep doctor bringup`: each check finds what it is for, and nothing on a model that is
well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_tables import SMALL, altered_hf, altered_torch, asked
from tiny_models import SHAPE
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep.cli import main
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.commands.bringup import (
    check_context,
    check_decode,
    check_embeddings,
    check_experts,
    check_prefix_cache,
    find_untrained,
)
from lockstep_doctor.table.base import USUAL, BackendConditions

Models = Callable[..., Path]
REQUESTS = [Request((1 + i, 2, 3), i) for i in range(8)]


def test_bringup_command_passes_healthy_model(
    models: Models, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "doctor",
                "bringup",
                str(models("llama")),
                "--out",
                "out",
                *SMALL,
                "backends=[hf,torch]",
            ]
        )
        == 0
    )
    rows = json.loads(Path("out/bringup.json").read_text())
    assert {row["check"] for row in rows} == {"embeddings", "context", "decode", "prefix cache"}
    assert {row["outcome"] for row in rows} == {"PASS", "SKIPPED"}
    assert "| decode | torch | PASS |" in capsys.readouterr().out


def test_find_untrained_reports_nan_near_zero_and_duplicate_rows() -> None:
    weight = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    assert find_untrained(weight) == {"not finite": [], "near zero": [], "alike": []}
    weight[5] = 1e-4
    weight[60] = weight[61]
    weight[3, 0] = float("nan")
    wanted = {"not finite": [3], "near zero": [5], "alike": [60, 61]}
    assert find_untrained(weight) == wanted


def untrained(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.get_parameter("lm_head.weight")[9] = 0.0


def test_zero_head_row_is_flagged_only_within_tokenizer_vocabulary(models: Models) -> None:
    witness = altered_hf(models("llama"), untrained)
    said = {one.what: one for one in check_embeddings(witness, None)}
    assert said["head"].outcome == "LOOK"
    assert "1 near zero (1 in the tokenizer): 9" in said["head"].said
    assert {one.what: one.outcome for one in check_embeddings(witness, 9)}["head"] == "PASS"


class Limited(LearnerBackend):
    """Cuts its responses, or does not, at a length of its own."""

    ends = 0

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        (request,) = requests
        tokens = min(sampling.max_tokens, self.ends - len(request.tokens))
        return super().generate(
            [Request(request.tokens[:3], 0)], replace(sampling, max_tokens=tokens)
        )


@pytest.mark.parametrize(("off", "outcome"), [(0, "PASS"), (1, "FAIL"), (-1, "FAIL")])
def test_context_check_fails_if_context_length_is_off_by_one(
    models: Models, off: int, outcome: str
) -> None:
    backend = Limited(str(models("llama")))
    backend.ends = backend.context + off
    found = check_context("torch", backend, None)
    assert found.outcome == outcome
    assert str(backend.context) in found.said


class Drifting(LearnerBackend):
    """Its prefill leaves its decoding more and more."""

    by = 0.0

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        return super().score(batch, conditions) + self.by * batch.position * batch.mask


@pytest.mark.parametrize(("by", "outcome"), [(0.0, "PASS"), (1e-6, "LOOK"), (1e-3, "FAIL")])
def test_decode_check_detects_gap_to_prefill_that_grows_with_length(
    models: Models, by: float, outcome: str
) -> None:
    backend = Drifting(str(models("llama")))
    backend.by = by
    recipe = asked(models("llama"), "grid.lengths=[40]")
    found = check_decode("torch", backend, REQUESTS, recipe)
    assert found.outcome == outcome
    assert found.said.endswith("; it grows") == (by > 0)


class Full(LearnerBackend):
    """Refuses to score a sequence that fills its context, as vLLM does."""

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        assert int(batch.lengths.max()) < self.context, "no room for a token behind it"
        return super().score(batch, conditions)


def test_decode_check_generates_one_token_less_than_context_allows(models: Models) -> None:
    found = check_decode(
        "torch", Full(str(models("llama"))), REQUESTS, asked(models("llama"), "grid.lengths=[100]")
    )
    assert "of 44 tokens" in found.said, "48, less 3 of the prompt and one"


class Caching(LearnerBackend):
    """Says that it took prompts out of a cache, and what was in there."""

    context, holds, calls = 100, 0.0, 0

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        batch = super().generate([Request(one.tokens[:8], one.key) for one in requests], sampling)
        hits = torch.full((len(requests),), 0 if conditions.fresh else 64)
        column = batch["sampler_logprob"] + (0.0 if conditions.fresh else self.holds)
        return batch.with_columns({"sampler_logprob": column}, {"prefix_hits": hits})


@pytest.mark.parametrize(
    ("holds", "outcome"), [(0.0, "PASS"), (0.5, "FAIL"), (float("nan"), "FAIL")]
)
def test_prefix_cache_check_fails_on_changed_or_nan_logprobs(
    models: Models, holds: float, outcome: str
) -> None:
    backend = Caching(str(models("llama")))
    backend.context, backend.holds = 100, holds
    found = check_prefix_cache("torch", backend)
    assert found.outcome == outcome
    assert "512 tokens from the cache" in found.said


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    config = AutoConfig.for_model("mixtral", **SHAPE, num_local_experts=4, num_experts_per_tok=2)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return str(tmp_path)


def test_expert_check_detects_unused_experts_and_different_routing(
    models: Models, mixture: str
) -> None:
    folder = mixture
    requests = [Request(tuple((7 * k + 3 * i) % 60 for k in range(20)), i) for i in range(16)]
    hf = HFBackend(folder)
    config = hf.read_config().to_dict()
    well = {
        one.what: one
        for one in check_experts({"hf": hf, "torch": LearnerBackend(folder)}, requests, config)
    }
    assert {one.outcome for one in well.values()} == {"PASS"}
    assert list(well) == ["hf", "torch", "hf vs torch"]
    ill = altered_torch(folder, swapped)
    found = {one.what: one for one in check_experts({"hf": hf, "torch": ill}, requests, config)}
    assert found["torch"].outcome == "LOOK"
    assert found["hf vs torch"].outcome == "FAIL"
    assert not list(check_experts({"hf": HFBackend(str(models("llama")))}, requests, {}))


def swapped(model: PreTrainedModel) -> None:
    """The first router names the same experts for all."""
    router: Any = next(module for name, module in model.named_modules() if name.endswith(".gate"))
    usual = router.forward

    def forward(hidden: Tensor) -> Any:
        *rest, ids = usual(hidden)
        return *rest, torch.arange(ids.shape[-1]).expand(ids.shape)

    router.forward = forward
