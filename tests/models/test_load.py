from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.models.folder import build_skeleton, read_config
from lockstep.models.load import ModelError, build_causal_lm, load_backbone, load_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.models.weight_files import check_weights

FIELDS = {key: value for key, value in SHAPE.items() if key not in ("vocab_size", "eos_token_id")}


def test_models_load_as_fp32_with_lockstep_attention(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    load_causal_lm(models("qwen2")).bfloat16().save_pretrained(tmp_path)
    for lm in (load_causal_lm(tmp_path), load_backbone(tmp_path)):
        assert {parameter.dtype for parameter in lm.parameters()} == {torch.float32}
        assert lm.config._attn_implementation == "lockstep"


def test_scratch_model_is_reproducible_by_seed_and_fits_its_tokenizer() -> None:
    tokenizer = words_tokenizer(["one two three", "four five"])
    first, same, other = (
        build_causal_lm({"model_type": "qwen2", **FIELDS}, tokenizer, seed) for seed in (1, 1, 2)
    )
    assert first.config.vocab_size == len(tokenizer)
    assert first.config.eos_token_id == tokenizer.eos_token_id
    weights = [lm.get_input_embeddings().get_parameter("weight") for lm in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_model_with_own_attention_classes_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="falcon uses its own attention classes"):
        build_causal_lm({"model_type": "falcon"}, words_tokenizer(["a b"]), 0)


def alter(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "qwen3_moe", **EXPERTS},
        {"model_type": "mixtral", "num_local_experts": 4},
        {"model_type": "gpt2"},
    ],
    ids=lambda fields: fields["model_type"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_weight_check_accepts_renamed_tensors_and_refuses_stray_experts(
    fields: dict[str, object], tied: bool, tmp_path: Path
) -> None:
    """Experts are joined when they are read, and cut when they are saved; a tied head is not
    saved.
    """
    config = AutoConfig.for_model(**{**SHAPE, **fields, "tie_word_embeddings": tied})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    check_weights(tmp_path, build_skeleton(read_config(tmp_path), "here"))
    experts = [name for name in load_file(tmp_path / "model.safetensors") if ".experts.3." in name]
    if experts:
        alter(
            tmp_path,
            lambda tensors: tensors.update(
                {experts[0].replace("layers.0", "layers.7"): torch.zeros(2)}
            ),
        )
        with pytest.raises(
            ModelError, match=r"do not belong to the model in config.json: .*layers\.7"
        ):
            check_weights(tmp_path, build_skeleton(read_config(tmp_path), "here"))
