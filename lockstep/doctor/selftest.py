"""`lockstep doctor selftest`: faults put into copies of small models, and how many of them `locate` finds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep import exit_codes
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
}
_LAYER = "model.layers.1"
_TOKENS, _REQUESTS = 24, 4


@dataclass(frozen=True)
class InjectedFault:
    """A mistake that is made on purpose in a copy of a model.

    Attributes:
        name: In words.
        stage: At which its segment ends.
        change: Makes it.
    """

    name: str
    stage: str
    change: Callable[[Any], object]


def _scale(path: str, name: str, factor: float) -> Callable[[Any], None]:
    """Scales an attribute or a tensor of one module."""

    def change(model: Any) -> None:
        module = model.get_submodule(path)
        held = getattr(module, name)
        if isinstance(held, Tensor):
            held.data.mul_(factor)
        else:
            setattr(module, name, factor * held)

    return change


def _wrap(path: str, become: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Changes what one module returns."""

    def change(model: Any) -> None:
        model.get_submodule(path).register_forward_hook(lambda _, inputs, output: become(output))

    return change


_DENSE = (
    InjectedFault("attention is scaled otherwise", "attn", _scale(f"{_LAYER}.self_attn", "scaling", 0.8)),
    InjectedFault("rotary angles turn twice as fast", "rotary_emb", _scale("model.rotary_emb", "inv_freq", 2.0)),
    InjectedFault(
        "a norm has another epsilon", "attn_norm", _scale(f"{_LAYER}.input_layernorm", "variance_epsilon", 1e5)
    ),
    InjectedFault("a weight is stale", "down", _scale(f"{_LAYER}.mlp.down_proj", "weight", 1.03)),
    InjectedFault("heads lie in another order", "o", _wrap(f"{_LAYER}.self_attn.o_proj", lambda x: x.flip(-1))),
    InjectedFault("positions are one off", "v", _wrap(f"{_LAYER}.self_attn.v_proj", lambda x: x.roll(1, 1))),
    InjectedFault("a branch is zero", "up", _wrap(f"{_LAYER}.mlp.up_proj", torch.zeros_like)),
    InjectedFault("the embedding is scaled", "embed", _wrap("model.embed_tokens", lambda x: 1.1 * x)),
    InjectedFault("the residual is in bf16", "resid_in", _wrap("model.layers.0", lambda x: x.bfloat16().float())),
    InjectedFault("the head is in bf16", "logits", _wrap("lm_head", lambda x: x.bfloat16().float())),
)
_SPARSE = (
    InjectedFault("the router has other weights", "router", _scale(f"{_LAYER}.mlp.gate", "weight", 1.3)),
    InjectedFault("experts have other weights", "experts", _scale(f"{_LAYER}.mlp.experts", "down_proj", 1.1)),
)
FAULTS = {"qwen3": _DENSE, "qwen3_moe": _SPARSE}
"""Injected faults by model family."""


def selftest(seed: int = 0) -> int:
    """Locates every fault, and healthy copies in fp32 and bf16; prints a table of what was found.

    Args:
        seed: Of weights and requests.

    Returns:
        The exit code: OK where each fault is in its place, and nothing is found in healthy copies.
    """
    rows = [row for family, faults in FAULTS.items() for row in _test_family(family, faults, seed)]
    print("| case | place | found | |\n|---|---|---|---|")
    for name, stage, found, is_right in rows:
        print(f"| {name} | {stage or 'none'} | {found or 'none'} | {'right' if is_right else 'WRONG'} |")
    right = sum(is_right for *_, is_right in rows)
    print(f"\n{right} of {len(rows)} cases are right")
    return exit_codes.OK if right == len(rows) else exit_codes.BROKEN


def _test_family(family: str, faults: tuple[InjectedFault, ...], seed: int) -> Iterator[tuple[str, str, str, bool]]:
    """The name of each case, the stage of its fault, those that were found, and whether that is right."""
    model = _build(family, seed)
    for fault in faults:
        faulty = copy.deepcopy(model)
        with torch.no_grad():
            fault.change(faulty)
        stages = _find_stages(_examine(model, faulty, torch.float32, seed))
        yield f"{family}: {fault.name}", fault.stage, ", ".join(stages), stages == [fault.stage]
    for dtype in (torch.float32, torch.bfloat16):
        found = _examine(model, copy.deepcopy(model).to(dtype), dtype, seed)
        yield f"{family}: healthy in {dtype}", "", ", ".join(_find_stages(found)), found.agrees


def _examine(model: Any, other: nn.Module, dtype: torch.dtype, seed: int) -> PairExamination:
    draw = torch.Generator().manual_seed(seed)
    requests = [torch.randint(0, _SIZES["vocab_size"], (_TOKENS,), generator=draw) for _ in range(_REQUESTS)]
    witness = ModuleTap(copy.deepcopy(model).double(), "float64")
    rounded = [ModuleTap(copy.deepcopy(model).to(one), "rounded") for one in (torch.float32, dtype)]
    return examine(ModuleTap(model, "right"), ModuleTap(other, "other"), requests, witness, rounded)


def _find_stages(found: PairExamination) -> list[str]:
    """The stages of places; one of a module's several outputs counts as the module's."""
    return [place.segments[0].end.stage.partition(".")[0] for place in found.location.places]


def _build(family: str, seed: int) -> Any:
    usual = AutoConfig.for_model(family)
    sizes = {name: size for name, size in _SIZES.items() if hasattr(usual, name)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = AutoConfig.for_model(family, **sizes, pad_token_id=None)
        model: Any = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            parameter.data.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    if "num_experts" in sizes:
        model.set_experts_implementation("eager")  # torch has no grouped products in float64
    return model
