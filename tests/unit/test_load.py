from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE
from torch import nn

from lockstep.models.load import ModelError, build_causal_lm, load_backbone, load_causal_lm
from lockstep.models.tokenizer import words_tokenizer

FIELDS = {key: value for key, value in SHAPE.items() if key not in ("vocab_size", "eos_token_id")}


@pytest.fixture
def broken(models: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a model folder to break."""
    return Path(shutil.copytree(models("llama"), tmp_path / "model"))


def test_masters_are_fp32_and_attention_is_ours(models: Callable[..., Path], tmp_path: Path) -> None:
    load_causal_lm(models("qwen2")).bfloat16().save_pretrained(tmp_path)
    for lm in (load_causal_lm(tmp_path), load_backbone(tmp_path)):
        assert {parameter.dtype for parameter in lm.parameters()} == {torch.float32}
        assert lm.config._attn_implementation == "lockstep"


def test_nothing_drops_out(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    lm = load_causal_lm(broken).train()
    assert all(module.p == 0.0 for module in lm.modules() if isinstance(module, nn.Dropout))


@pytest.mark.parametrize("load", [load_causal_lm, load_backbone])
def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path, load: Callable[[Path], object]) -> None:
    with pytest.raises(ModelError, match=r"no-such-folder is no Hugging Face model folder: it has no config\.json"):
        load(tmp_path / "no-such-folder")


def test_a_folder_without_weights_is_named(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the model in .*model cannot be opened"):
        load_causal_lm(broken)


def test_pickled_weights_are_not_opened(broken: Path) -> None:
    torch.save({}, broken / "pytorch_model.bin")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be opened"):
        load_causal_lm(broken)


def test_torn_weights_are_named(broken: Path) -> None:
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot be opened"):
        load_causal_lm(broken)


def test_missing_tensors_are_not_made_up(broken: Path) -> None:
    weights = load_file(broken / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_causal_lm(broken)


def test_an_unknown_architecture_is_named(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    with pytest.raises(ModelError, match="abacus"):
        load_causal_lm(broken)


def test_a_model_from_scratch_is_made_by_its_seed() -> None:
    tokenizer = words_tokenizer(["one two three", "four five"])
    first, same, other = (build_causal_lm({"model_type": "qwen2", **FIELDS}, tokenizer, seed) for seed in (1, 1, 2))
    assert first.config.vocab_size == len(tokenizer)
    assert first.config.eos_token_id == tokenizer.eos_token_id
    weights = [lm.get_input_embeddings().weight for lm in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    build_causal_lm({"model_type": "qwen2", **FIELDS}, words_tokenizer(["a b"]), 0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unknown_type_from_scratch_names_the_option() -> None:
    with pytest.raises(ModelError, match=r"model\.scratch\.config: .*abacus"):
        build_causal_lm({"model_type": "abacus"}, words_tokenizer(["a b"]), 0)
