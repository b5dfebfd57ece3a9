"""A side of a comparison that another program wrote into a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep_doctor import CutPoint, FileTap, ModuleTap, TapError, examine, locate, tap

TOKENS = torch.arange(24) * 7 % 97


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    model = LlamaForCausalLM(
        LlamaConfig(**sizes, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    return model


def record(path: Path, change: Callable[[Any], None] = lambda model: None) -> FileTap:
    """What a program with a fault writes."""
    model = build()
    change(model)
    with tap(model, path):
        model(TOKENS[None])
    return FileTap(path)


def scale_attention(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 0.8


def test_a_file_says_what_a_tap_sees(tmp_path: Path) -> None:
    side = record(tmp_path / "side.safetensors")
    own, seen = ModuleTap(build(), "own").run(TOKENS, {}), side.run(TOKENS, {})
    assert side.name == "side"
    assert list(seen.seen) == list(own.seen)
    assert all(torch.equal(value, own.seen[cut]) for cut, value in seen.seen.items())
    assert torch.equal(seen.logits, own.logits)
    assert seen.column is None


def test_the_column_of_the_program_itself(tmp_path: Path) -> None:
    model = build()
    with tap(model, tmp_path / "side.safetensors", "mine") as side:
        model(input_ids=TOKENS[None])
        side.column = torch.arange(23.0)
    column = FileTap(tmp_path / "side.safetensors").run(TOKENS, {}).column
    assert column is not None
    assert column.tolist() == list(range(23))


@pytest.mark.parametrize("file_first", [True, False])
def test_the_segment_is_found_by_forcing_the_other_side(file_first: bool, tmp_path: Path) -> None:
    wrong = record(tmp_path / "wrong.safetensors", scale_attention)
    pair = (wrong, ModuleTap(build(), "right")) if file_first else (ModuleTap(build(), "right"), wrong)
    found = locate(*pair, TOKENS, ModuleTap(build().double(), "float64"))
    assert [segment.end for segment in found.segments] == [CutPoint("attn", 1)]
    assert found.removed > 0.99
    assert found.places[0].errors["right"] < 1e-6 < 1e-3 < found.places[0].errors["wrong"]
    assert list(found.places[0].suspects) == []


def test_a_file_is_examined(tmp_path: Path) -> None:
    wrong = record(tmp_path / "wrong.safetensors", scale_attention)
    found = examine(ModuleTap(build(), "right"), wrong, [wrong.tokens_T], ModuleTap(build().double(), "float64"))
    assert [segment.end for segment in found.location.segments] == [CutPoint("attn", 1)]
    assert found.location.places[0].wrong == ["wrong"]


def test_a_wrapped_model_in_bfloat16(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = build().bfloat16()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.module(ids).logits

    model = Wrapper()
    with tap(model, tmp_path / "side.safetensors"):
        model(TOKENS[None])
    seen = FileTap(tmp_path / "side.safetensors").run(TOKENS, {}).seen
    assert seen[CutPoint("attn", 2)].dtype == torch.bfloat16
    found = locate(FileTap(tmp_path / "side.safetensors"), ModuleTap(build(), "fp32"), TOKENS, tolerance=0.02)
    assert list(found.segments) == []


def test_what_a_file_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    side = record(tmp_path / "side.safetensors")
    seen = side.run(TOKENS, {}).seen
    cut = CutPoint("attn", 1)
    assert side.run(TOKENS, {cut: seen[cut].clone()}).seen is seen
    with pytest.raises(TapError, match=r"cannot be given other values, as of layers\.1\.attn"):
        side.run(TOKENS, {cut: seen[cut] + 1})
    with pytest.raises(TapError, match="is of 24 other ids"):
        side.run(TOKENS[:5], {})
    with pytest.raises(TapError, match="no operator can be traced"):
        side.trace(TOKENS, {}, None, cut)
    with pytest.raises(TapError, match="no function can be counted"):
        side.functions(TOKENS)
    with pytest.raises(TapError, match="is a file and cannot be given other values"):
        locate(side, record(tmp_path / "wrong.safetensors", scale_attention), TOKENS)


class _Blind(nn.Module):
    """Has no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Embedding(97, 97)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(ids)


@pytest.mark.parametrize(
    ("model", "run", "sentence"),
    [
        (build, lambda model: None, "the model ran 0 times in the block; run it once"),
        (build, lambda model: (model(TOKENS[None]), model(TOKENS[None])), "ran 2 times"),
        (build, lambda model: model(TOKENS.reshape(2, 12)), "not given the ids of one sequence"),
        (build, lambda model: model(inputs_embeds=torch.zeros(1, 4, 32)), "not given the ids of one sequence"),
        (_Blind, lambda model: model(TOKENS[None]), "no cut was seen inside of a layer"),
    ],
)
def test_a_pass_that_cannot_be_recorded_leaves_no_file(
    model: Callable[[], nn.Module], run: Callable[[nn.Module], object], sentence: str, tmp_path: Path
) -> None:
    built = model()
    with pytest.raises(TapError, match=sentence), tap(built, tmp_path / "side.safetensors"):
        run(built)
    assert list(tmp_path.iterdir()) == []
    assert not built._forward_hooks


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (None, "was not written by"),
        ({"format": "lockstep_doctor.tap 1", "name": "x", "cuts": json.dumps(["embed"])}, "was not written by"),
    ],
)
def test_another_file_is_refused(told: dict[str, str] | None, sentence: str, tmp_path: Path) -> None:
    save_file({"ids": TOKENS, "logits": torch.zeros(24, 97)}, tmp_path / "x.safetensors", told)
    with pytest.raises(TapError, match=sentence):
        FileTap(tmp_path / "x.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 30)
    with pytest.raises(TapError, match=r"torn\.safetensors: cannot be read"):
        FileTap(tmp_path / "torn.safetensors")
