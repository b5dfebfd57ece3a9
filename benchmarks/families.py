"""Model families that are computed right: a small random model of each, by learner, torch sampler
and vLLM.

    python -m benchmarks.families --save            # all, into docs/models.md
    python -m benchmarks.families llama qwen3       # some

Beside each stands the largest |Δ log π| of a token to plain `transformers` (its own attention, each
sequence alone, fp32), or that the model is refused, and why. Nothing else may stand there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from benchmarks.family_vllm import RIGHT, Cell, vllm_with_refit
from benchmarks.harness import parser_of
from lockstep.cluster.self_check import compute_proof
from lockstep.core.errors import LockstepError
from lockstep.core.types import SamplingParams
from lockstep.models.load import load_causal_lm

PAGE = Path(__file__).parents[1] / "docs/models.md"
_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_USUAL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "initializer_range": 0.1, **_TOKENS,
}  # fmt: skip
_EVERY_HEAD = {**_USUAL, "num_key_value_heads": 2}
_EXPERTS = {
    **_USUAL, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
_WINDOW = {**_USUAL, "sliding_window": 4}
_LATENT = {
    **_EVERY_HEAD, "head_dim": 64, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 256,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
_DELTA = {
    **_EXPERTS, "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_GPT2 = {
    "vocab_size": 256,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "initializer_range": 0.1,
    **_TOKENS,
}
_MAMBA = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    **_TOKENS,
}
_BESIDE_MAMBA = {
    **_USUAL,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _USUAL,
    "qwen2": _USUAL,
    "qwen3": _USUAL,
    "mistral": _WINDOW,
    "ministral3": _USUAL,
    "gemma": _USUAL,
    "gemma2": {**_WINDOW, "query_pre_attn_scalar": 32},
    "gemma3_text": {**_WINDOW, "query_pre_attn_scalar": 32},
    "phi": _EVERY_HEAD,
    "phi3": {**_USUAL, "original_max_position_embeddings": 64},
    "olmo": _USUAL,
    "olmo2": _USUAL,
    "olmo3": _WINDOW,
    "granite": _USUAL,
    "glm": _USUAL,
    "glm4": _USUAL,
    "cohere": _USUAL,
    "cohere2": _WINDOW,
    "smollm3": _USUAL,
    "exaone4": _WINDOW,
    "ernie4_5": _USUAL,
    "seed_oss": _USUAL,
    "arcee": _USUAL,
    "apertus": _USUAL,
    "hunyuan_v1_dense": _USUAL,
    "starcoder2": _USUAL,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": _EVERY_HEAD,
    "opt": {**_EVERY_HEAD, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "persimmon": _EVERY_HEAD,
    "stablelm": _EVERY_HEAD,
    "nemotron": _USUAL,
    "falcon": {"num_attention_heads": 2, "num_kv_heads": 2, **_MAMBA},
    "bloom": {**_MAMBA, "n_head": 2},
    "mixtral": {**_EXPERTS, "sliding_window": None},
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "olmoe": _EXPERTS,
    "granitemoe": _EXPERTS,
    "phimoe": _EXPERTS,
    "minimax_m2": _EXPERTS,
    "gpt_oss": {**_EXPERTS, **_WINDOW},
    "deepseek_v2": _LATENT,
    "deepseek_v3": {**_LATENT, "topk_method": "noaux_tc"},
    "mamba": {**_MAMBA, "state_size": 16},
    "falcon_mamba": {**_MAMBA, "state_size": 16},
    "mamba2": {
        **_MAMBA,
        "state_size": 16,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
        "expand": 2,
    },
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "lfm2": {**_USUAL, "layer_types": ["conv", "full_attention"]},
    "bamba": {**_BESIDE_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_EXPERTS, **_BESIDE_MAMBA, "layer_types": ["mamba", "attention"]},
    "jamba": {**_EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 16},
    "recurrent_gemma": {**_USUAL, "num_hidden_layers": 3, "lru_width": 64},
}


def measure(family: str, folder: Path) -> list[Cell]:
    """Measures learner packed, torch sampler, and vLLM after a weight sync.

    Args:
        family: A key of `FAMILIES`.
        folder: Where its model is written.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config)
    for vector in (parameter for parameter in model.parameters() if parameter.ndim == 1):
        vector.data += 0.1 * torch.randn(vector.shape)
    model.save_pretrained(folder)
    cpu = torch.device("cpu")
    sampling = SamplingParams(max_tokens=8)
    cells = [
        _cell(lambda: _learner(folder, config)),
        _cell(lambda: compute_proof(config, cpu, "fp32", sampling).decoded),
        vllm_with_refit(folder),
    ]
    return [Cell(cell.gap, cell.reason.replace(str(folder), family)) for cell in cells]


def _learner(folder: Path, config: PreTrainedConfig) -> float:
    load_causal_lm(folder)
    return compute_proof(config, torch.device("cpu"), "fp32", None).scored


def _cell(gap: Callable[[], float]) -> Cell:
    try:
        return Cell(gap())
    except LockstepError as error:
        return Cell(None, str(error))


def table(rows: dict[str, list[Cell]]) -> str:
    """A row for each outcome, with the largest difference of its families and, below, the reasons
    for refusals.
    """
    groups: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
    for family, cells in rows.items():
        groups.setdefault(tuple(cell.outcome for cell in cells), {})[f"`{family}`"] = cells
    lines = [
        "| learner, packed | torch sampler | vLLM, synced | `model_type` |",
        "|---|---|---|---|",
    ]
    for outcomes, members in groups.items():
        largest = [
            max(cell.gap or 0.0 for cell in column)
            for column in zip(*members.values(), strict=True)
        ]
        words = [outcome.format(gap) for outcome, gap in zip(outcomes, largest, strict=True)]
        lines.append(f"| {' | '.join(words)} | {', '.join(members)} |")
    lines += ["", "Why, in the program's words:", ""]
    lines += [
        f"- {', '.join(families)}: {shorten(reason, 160)}"
        for reason, families in _reasons(rows).items()
    ]
    return "\n".join(lines) + "\n"


def _reasons(rows: dict[str, list[Cell]]) -> dict[str, list[str]]:
    """Families by reason; the torch sampler refuses what the learner does, since it runs the same
    network.
    """
    found: dict[str, list[str]] = {}
    for family, (learner, sampler, engine) in rows.items():
        for reason in dict.fromkeys((learner.reason or sampler.reason, engine.reason)):
            if reason:
                found.setdefault(reason.replace(f" in {family} ", " "), []).append(f"`{family}`")
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help="default: all")
    parser.add_argument("--save", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    rows: dict[str, list[Cell]] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-families-") as folder:
        for family in options.families:
            rows[family] = measure(family, Path(folder) / family)
            print(f"{family:<20}", *(f"{cell!s:<10}" for cell in rows[family]))
            print(
                *(f"    {cell.reason}\n" for cell in rows[family] if cell.reason),
                sep="",
                end="",
                flush=True,
            )
    if options.save:
        head = PAGE.read_text().split("\n| learner, packed")[0]
        PAGE.write_text(f"{head}\n{table(rows)}")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    return int(
        any(cell.gap is not None and cell.gap > RIGHT for cells in rows.values() for cell in cells)
    )


if __name__ == "__main__":
    sys.exit(main())
