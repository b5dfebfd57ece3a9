"""`lockstep doctor selftest`: faults put into copies of a small model, and how many of them `locate` finds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep import exit_codes
from lockstep.report.terminal import markdown_table
from lockstep_doctor import ModuleTap, PairExamination, examine

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [0, 2],
}
_LAYER, _DENSE = "model.layers.1", "model.layers.2"
_TOKENS, _REQUESTS = 24, 4


Change = Callable[[Any], object]
"""Function that changes one module of a model."""


def _scale(name: str, factor: float) -> Change:
    """Scales an attribute or a tensor."""

    def change(module: Any) -> None:
        held = getattr(module, name)
        if isinstance(held, Tensor):
            held.data.mul_(factor)
        else:
            setattr(module, name, factor * held)

    return change


def _return(become: Callable[[Tensor], Tensor]) -> Change:
    """Changes what a module returns."""
    return lambda module: module.register_forward_hook(lambda _, inputs, output: become(output))


FAULTS: tuple[tuple[str, str, str, Change], ...] = (
    ("attention is scaled otherwise", "attn", f"{_LAYER}.self_attn", _scale("scaling", 0.8)),
    ("rotary angles turn twice as fast", "rotary_emb", "model.rotary_emb", _scale("inv_freq", 2.0)),
    ("a norm has another epsilon", "attn_norm", f"{_LAYER}.input_layernorm", _scale("variance_epsilon", 1e5)),
    ("a weight is stale", "down", f"{_DENSE}.mlp.down_proj", _scale("weight", 1.03)),
    ("heads lie in another order", "o", f"{_LAYER}.self_attn.o_proj", _return(lambda x: x.flip(-1))),
    ("positions are one off", "v", f"{_LAYER}.self_attn.v_proj", _return(lambda x: x.roll(1, 1))),
    ("a branch is zero", "up", f"{_DENSE}.mlp.up_proj", _return(torch.zeros_like)),
    ("the embedding is scaled", "embed", "model.embed_tokens", _return(lambda x: 1.1 * x)),
    ("the residual is in bf16", "resid_in", "model.layers.0", _return(lambda x: x.bfloat16().float())),
    ("the head is in bf16", "logits", "lm_head", _return(lambda x: x.bfloat16().float())),
    ("the router has other weights", "router", f"{_LAYER}.mlp.gate", _scale("weight", 1.3)),
    ("experts have other weights", "experts", f"{_LAYER}.mlp.experts", _scale("down_proj", 1.1)),
)
"""Faults of attention, dense layers, experts, and around the layers: in words, the stage at which its segment ends, the
module that is changed, and how."""


def selftest(seed: int = 0) -> int:
    """Locates every fault, and healthy copies in fp32 and bf16; prints a table of what was found.

    Returns:
        The exit code: OK where each fault is in its place, and nothing is found in healthy copies.
    """
    rows = list(_test(seed))
    print(markdown_table(["case", "place", "found", ""], rows))
    right = sum(row[-1] == "right" for row in rows)
    print(f"\n{right} of {len(rows)} cases are right")
    return exit_codes.OK if right == len(rows) else exit_codes.BROKEN


def _test(seed: int) -> Iterator[tuple[str, str, str, str]]:
    """The name of each case, the stage of its fault, those that were found, and whether that is right."""
    model = _build(seed)
    for name, stage, path, change in FAULTS:
        faulty = copy.deepcopy(model)
        with torch.no_grad():
            change(faulty.get_submodule(path))
        stages = _find_stages(_examine(model, faulty, torch.float32, seed))
        yield name, stage, ", ".join(stages) or "none", "right" if stages == [stage] else "WRONG"
    for dtype in (torch.float32, torch.bfloat16):
        found = _examine(model, copy.deepcopy(model).to(dtype), dtype, seed)
        stages = ", ".join(_find_stages(found)) or "none"
        yield f"healthy in {dtype}", "none", stages, "right" if found.agrees else "WRONG"


def _examine(model: Any, other: nn.Module, dtype: torch.dtype, seed: int) -> PairExamination:
    draw = torch.Generator().manual_seed(seed)
    requests = [torch.randint(0, _SIZES["vocab_size"], (_TOKENS,), generator=draw) for _ in range(_REQUESTS)]
    witness = ModuleTap(copy.deepcopy(model).double(), "float64")
    rounded = [ModuleTap(copy.deepcopy(model).to(one), "rounded") for one in (torch.float32, dtype)]
    return examine(ModuleTap(model, "right"), ModuleTap(other, "other"), requests, witness, rounded)


def _find_stages(found: PairExamination) -> list[str]:
    """The stages of places; one of a module's several outputs counts as the module's."""
    return [place.segments[0].end.stage.partition(".")[0] for place in found.location.places]


def _build(seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = AutoConfig.for_model("qwen3_moe", **_SIZES, pad_token_id=None)
        model: Any = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            parameter.data.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    model.set_experts_implementation("eager")  # torch has no grouped products in float64
    return model
