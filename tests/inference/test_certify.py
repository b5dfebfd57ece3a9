"""`lockstep certify` as it is typed: a certificate for a model, its levels, and its negative
control.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.cli import main
from lockstep.models.heads import LogitsHead
from lockstep.samplers.torch import stateful
from lockstep.samplers.torch.continuous import ContinuousLayout
from lockstep.samplers.torch.sampler import TorchSampler

SIZES = (
    "write sizes of dp, dp_replicate, cp and tp, such as dp=2,tp=2; pp needs Megatron, whose kernels "
    "are not exact"
)
FEW = ("--count", "6", "--max-tokens", "8")


def certificate(file: str = "certificates/model.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


@pytest.fixture(autouse=True)
def _model(assets: Path, in_tmp: Path) -> None:
    shutil.copytree(
        assets / "models/stories260K/hf", in_tmp / "model", copy_function=shutil.copyfile
    )


def test_certify_gives_level_e3_to_batch_invariant_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["certify", "model", *FEW]) == 0
    shown, found = capsys.readouterr(), certificate()
    assert (found["level"], found["mismatches"], found["largest_gap"], found["reason"]) == (
        "E3",
        0,
        0.0,
        None,
    )
    assert found["tokens"] == sum(own["tokens"] for own in found["types"].values()) > 400
    assert found["types"].keys() == {"fp32", "bf16"}
    assert found["sampled_again"]["tokens"] > 100
    assert found["sampled_again"]["changed"] == 0
    assert [control["dtype"] for control in found["controls"]] == ["fp32", "bf16"]
    assert all(0 < control["seen"] <= control["tokens"] for control in found["controls"])
    assert "model.model.safetensors" in found["files"]
    assert {"attention", "linear", "softmax"} == found["kernels"].keys()
    assert {"torch", "threads", "cpu"} <= found["machine"].keys()
    (line,) = shown.out.splitlines()
    assert line.startswith(
        f"E3, exact in any batch: {found['tokens']:,} tokens compared, 0 not bitwise equal"
    )
    assert line.endswith(" sampled again in other batches, 0 changed (certificates/model.json)")
    assert "6 prompts of random tokens, responses of up to 8 tokens, in fp32 and bf16" in shown.err
    assert f"bf16: {found['types']['bf16']['tokens']:,} tokens compared, 0 differ" in shown.err


@pytest.mark.needs("gloo")
def test_certify_gives_level_e4_if_ranks_have_bits_of_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["certify", "model", *FEW, "--layouts", "dp=2"]) == 0
    found = certificate()
    (fp32, bf16) = found["layouts"]["dp=2"]
    assert found["level"] == "E4"
    assert (fp32["dtype"], bf16["dtype"]) == ("fp32", "bf16")
    for own in (fp32, bf16):
        assert own["mismatches"] == 0 < own["seen"] <= own["tokens"]
    shown = capsys.readouterr().out
    assert shown.startswith("E4, exact in any batch and tested layout: ")
    assert f"{fp32['tokens'] + bf16['tokens']:,} scored on ranks of dp=2, 0 different" in shown


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ("dp=1", "--layouts dp=1 has one rank, which is tested anyway; leave it out"),
        ("pp=2", f"--layouts pp=2: {SIZES}"),
        ("dp=two", f"--layouts dp=two: {SIZES}"),
    ],
)
def test_certify_refuses_layout(
    layout: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "model", "--layouts", layout]) == 2
    assert sentence in capsys.readouterr().err


def test_certify_gives_level_e1_and_reason_to_inexact_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
    }
    config = AutoConfig.for_model(
        "gpt_neox", vocab_size=512, max_position_embeddings=128, eos_token_id=2, **shape
    )
    AutoModelForCausalLM.from_config(config).save_pretrained("model")
    assert main(["certify", "model", *FEW]) == 4
    found = certificate()
    assert (found["level"], found["exact_kernels"], found["controls"]) == ("E1", False, [])
    assert found["reason"].startswith("gpt_neox models are not verified as exact")
    assert found["kernels"]["attention"] == "scaled_dot_product_attention"
    shown = capsys.readouterr()
    assert "not exact: gpt_neox models are not verified as exact" in shown.err
    assert shown.out.startswith("E1, bounded, not exact: ")
    assert ", because gpt_neox models are not verified as exact" in shown.out


class Batched(TorchSampler):
    """Says another log-probability where it samples fewer than three side by side."""

    def _compute_logits(
        self, token_N: Tensor, position_N: Tensor, layout: ContinuousLayout, keep_M: Tensor
    ) -> Tensor:
        return super()._compute_logits(token_N, position_N, layout, keep_M) * (
            1.0 if self._max_batch_size > 3 else 1.0 + 1e-6
        )


def test_certify_gives_level_e2_if_tokens_change_with_batch_composition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stateful, "torch_sampler", Batched)
    assert main(["certify", "model", *FEW]) == 0
    found = certificate()
    assert (found["level"], found["mismatches"]) == ("E2", 0)
    changed, tokens = found["sampled_again"]["changed"], found["sampled_again"]["tokens"]
    assert 0 < changed < tokens
    assert found["reason"] == f"{changed:,} of {tokens:,} tokens change with batch composition"


def test_certify_gives_level_e1_if_sampler_and_learner_logprobs_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = LogitsHead.forward

    def off(self: LogitsHead, *arguments: Any) -> Any:
        outputs = forward(self, *arguments)
        assert outputs.logprob is not None
        return replace(outputs, logprob=outputs.logprob + 1e-4)

    monkeypatch.setattr(LogitsHead, "forward", off)
    assert main(["certify", "model", *FEW]) == 4
    found = certificate()
    assert (found["level"], found["exact_kernels"]) == ("E1", True)
    assert found["mismatches"] > 0
    assert "tokens have different log-probabilities in sampler and learner" in found["reason"]
    assert capsys.readouterr().out.startswith("E1, bounded, not exact: ")


def test_certify_fails_if_negative_control_is_not_detected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.nextafter", lambda weight, _: weight)
    assert main(["certify", "model", *FEW]) == 3
    assert certificate()["level"] == "E3"
    told = capsys.readouterr().out
    assert "negative control failed in fp32" in told
    assert "negative control failed in bf16" in told
    assert certificate()["controls"][0]["weight"].startswith("model.norm.weight[")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model", "--out", "model"], "--out model is a folder; give a file path"),
        (
            ["model", "--out", "empty.txt/it.json"],
            "empty.txt is not a writable folder",
        ),
    ],
)
def test_certify_rejects_unwritable_output_path_and_creates_no_files(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    Path("empty.txt").write_text("\n")
    before = sorted(Path().rglob("*"))
    assert main(["certify", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert sorted(Path().rglob("*")) == before
