"""Faults in a copy of a model: `locate` puts each at its line, and its script fails there and
passes without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from located import run_script
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.locate import GapLocation, locate
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import write_reproduction

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
TOKENS = torch.arange(24) * 7 % 97
Fault = Callable[[Any], None]


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    return model


def scale_attention(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 0.8


def change_activation(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = nn.GELU()


def cap_logits(model: Any) -> None:
    head = model.lm_head.forward
    model.lm_head.forward = lambda states: 5 * torch.tanh(head(states) / 5)


def change_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[2].self_attn.v_proj.weight[3] += 0.3


def change_norms(model: Any) -> None:
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.variance_epsilon = 0.1


def find(fault: Fault) -> tuple[GapLocation, ModuleTap]:
    wrong = build()
    fault(wrong)
    tap = ModuleTap(wrong, "wrong")
    witness = ModuleTap(build().double(), "float64")
    return locate(ModuleTap(build(), "right"), tap, TOKENS, witness), tap


@pytest.mark.parametrize(
    ("fault", "ends", "function"),
    [
        (
            scale_attention,
            {CutPoint("attn", layer) for layer in range(3)},
            "sdpa_attention_forward",
        ),
        (change_activation, {CutPoint("mlp.act_fn", 1)}, "LlamaMLP.forward"),
        (cap_logits, {CutPoint("logits")}, "cap_logits.<locals>.<lambda>"),
        (change_weight, {CutPoint("v", 2)}, "LlamaAttention.forward"),
    ],
)
def test_fault_is_located_at_its_layer_and_function(
    fault: Fault, ends: set[CutPoint], function: str
) -> None:
    found, _ = find(fault)
    assert {segment.end for segment in found.all_segments} == ends
    assert found.removed > 0.99
    assert function in [
        frame.function
        for suspect in found.places[0].suspects
        for frame in suspect.operator.stack[:2]
    ]
    assert (
        found.places[0].engine_errors["right"]
        < 1e-6
        < 1e-3
        < found.places[0].engine_errors["wrong"]
    )


def test_fault_in_every_norm_gives_only_norm_segments() -> None:
    found, _ = find(change_norms)
    assert {segment.end.stage for segment in found.all_segments} <= {
        "attn_norm",
        "mlp_norm",
        "final_norm",
    }
    assert found.removed > 0.9
    assert found.places[0].suspects[0].operator.stack[0].function == "LlamaRMSNorm.forward"


def test_skipped_layer_is_located_at_model_forward() -> None:
    def drop(model: Any) -> None:
        model.model.layers = model.model.layers[:2]

    found, _ = find(drop)
    assert found.all_segments[0].missing[0] == CutPoint("resid_in", 2)
    assert found.places[0].suspects[0].operator.stack[0].function == "LlamaModel.forward"


def test_reproduction_script_fails_on_fault_but_not_on_earlier_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build().save_pretrained(tmp_path / "model")
    builder = f"""from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained({str(tmp_path / "model")!r}).eval()
for layer in model.model.layers:
    layer.self_attn.scaling *= 0.8
def read(tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]
"""
    found, tap = find(scale_attention)
    tap = ModuleTap(tap.model, "wrong", builder)
    script = write_reproduction(tmp_path / "repro", tap, found, TOKENS)
    assert len(script.read_text().splitlines()) <= 30
    assert run_script(script) == 1
    assert capsys.readouterr().out.startswith("relative error")
    # A fault before the segment does not count: its inputs are given.
    earlier = (
        "*= 1\nmodel.model.embed_tokens.weight.data = "
        "model.model.embed_tokens.weight.data.roll(1, 0)"
    )
    script.write_text(script.read_text().replace("*= 0.8", earlier))
    assert run_script(script) == 0
    assert capsys.readouterr().out.startswith("relative error")


def test_forcing_activations_does_not_change_reference_model() -> None:
    tap = ModuleTap(build(), "right")
    before = copy.deepcopy(dict(tap.run(TOKENS, {}).seen))
    find(scale_attention)
    tap.run(TOKENS, {CutPoint("attn", 1): torch.zeros(1, 24, 32)})
    after = tap.run(TOKENS, {}).seen
    assert all(torch.equal(before[cut], after[cut]) for cut in before)
