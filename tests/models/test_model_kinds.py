"""Models that are not plain transformers go through a whole run: they learn what they sample, and
are exported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

Run = Callable[..., list[dict[str, Any]]]

GAP = "agreement/max_abs_logprob_diff"
DELTA = (
    "layer_types=[linear_attention,full_attention]", "num_hidden_layers=2", "head_dim=8", "linear_num_value_heads=4",
    "linear_num_key_heads=2", "linear_key_head_dim=8", "linear_value_head_dim=8",
)  # fmt: skip
KINDS = {
    "qwen3_5_text": DELTA,
    "lfm2": ("layer_types=[conv,full_attention]", "num_hidden_layers=2"),
    "deepseek_v3": (
        "num_hidden_layers=2", "n_routed_experts=4", "n_group=2", "topk_group=1", "num_experts_per_tok=2",
        "moe_intermediate_size=16", "q_lora_rank=16", "kv_lora_rank=16", "qk_nope_head_dim=8", "qk_rope_head_dim=8",
        "v_head_dim=8", "first_k_dense_replace=1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_hybrid_and_moe_models_train_with_sampler_agreement_and_export(
    kind: str, run: Run, in_tmp: Path
) -> None:
    fields = (f"model_type={kind}", *KINDS[kind], "initializer_range=0.2")
    steps = run(*(f"model.scratch.config.{field}" for field in fields), "run.max_steps=2")
    gaps = [step[GAP] for step in steps if GAP in step]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3
    model = AutoModelForCausalLM.from_pretrained("run/final")
    assert torch.isfinite(model(torch.arange(3, 12)[None]).logits).all()


def test_untrained_router_bias_is_exported_unchanged(run: Run, in_tmp: Path) -> None:
    """The bias by which DeepSeek-V3 chooses experts is a buffer; runs ended without a model for
    want of it.
    """
    kind = "deepseek_v3"
    run(
        *(f"model.scratch.config.{field}" for field in (f"model_type={kind}", *KINDS[kind])),
        "run.max_steps=0",
    )
    folder = Path("run/initial")
    model = AutoModelForCausalLM.from_pretrained(folder)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.arange(4.0))
    model.save_pretrained("model")
    for path in folder.glob("*token*"):
        Path("model", path.name).write_bytes(path.read_bytes())
    assert json.loads(Path("model/config.json").read_text())["model_type"] == kind
    run("model.scratch=null", "model.path=model", "run.max_steps=1", "run.folder=again")
    final = AutoModelForCausalLM.from_pretrained("again/final")
    assert torch.equal(final.model.layers[1].mlp.gate.e_score_correction_bias, torch.arange(4.0))
