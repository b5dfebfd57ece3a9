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
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.models.folder import read_config, skeleton
from lockstep.models.load import ModelError, build_causal_lm, load_backbone, load_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.models.weight_files import check_weights

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
    with pytest.raises(ModelError, match=r"has no config\.json: it is no Hugging Face model folder"):
        load(tmp_path)
    with pytest.raises(
        ModelError, match=r"there is no folder .*no-such-folder; give the folder of a model on this machine"
    ):
        load(tmp_path / "no-such-folder")


def test_a_folder_without_weights_is_named(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model has no weights: model\.safetensors missing"):
        load_causal_lm(broken)


def test_pickled_weights_are_not_opened(broken: Path) -> None:
    torch.save({}, broken / "pytorch_model.bin")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has its weights as pickles only"):
        load_causal_lm(broken)


def test_torn_weights_are_named(broken: Path) -> None:
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load_causal_lm(broken)


def test_a_missing_shard_is_named(broken: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "lm_head.weight": "model-00002.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"has no weights: model-00002\.safetensors missing"):
        load_causal_lm(broken)


def test_weights_of_another_shape_are_named_without_reading_them(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "vocab_size": 65}))
    with pytest.raises(ModelError, match=r"weight has shape \[64, 32\], but config\.json asks for \[65, 32\]"):
        load_causal_lm(broken)


def test_another_kind_of_model_is_named(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    kind = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
    (broken / "config.json").write_text(json.dumps({**config, **kind}))
    with pytest.raises(ModelError, match="holds a BertForMaskedLM, which is no causal language model"):
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
    weights = [lm.get_input_embeddings().get_parameter("weight") for lm in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    build_causal_lm({"model_type": "qwen2", **FIELDS}, words_tokenizer(["a b"]), 0)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"hidden_sizes": 32},
            r"model\.scratch\.config: a qwen2 has no field hidden_sizes; did you mean hidden_size\?",
        ),
        ({"hidden_size": "32"}, r"model\.scratch\.config: .*hidden_size"),
        ({"num_attention_heads": 3}, r"num_attention_heads \(3\) is no multiple of num_key_value_heads \(2\)"),
        ({"hidden_act": "nosuch"}, r"cannot build this model \(KeyError: 'nosuch' is no hidden_act\)"),
        ({"model_type": "qwen22"}, r"knows no model_type 'qwen22'; did you mean qwen2\?"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        build_causal_lm({"model_type": "qwen2", **FIELDS, **fields}, words_tokenizer(["a b"]), 0)


def test_an_unknown_type_from_scratch_names_the_option() -> None:
    with pytest.raises(ModelError, match=r"model\.scratch\.config: .*abacus"):
        build_causal_lm({"model_type": "abacus"}, words_tokenizer(["a b"]), 0)


def test_a_family_that_keeps_to_its_own_attention_classes_is_named() -> None:
    with pytest.raises(ModelError, match="falcon chooses its attention from classes of its own"):
        build_causal_lm({"model_type": "falcon"}, words_tokenizer(["a b"]), 0)


def alter(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "fields",
    [{"model_type": "qwen3_moe", **EXPERTS}, {"model_type": "mixtral", "num_local_experts": 4}, {"model_type": "gpt2"}],
    ids=lambda fields: fields["model_type"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_names_that_transformers_changes_are_known(fields: dict[str, object], tied: bool, tmp_path: Path) -> None:
    """Experts are joined when they are read, and cut when they are saved; a tied head is not saved."""
    config = AutoConfig.for_model(**{**SHAPE, **fields, "tie_word_embeddings": tied})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    check_weights(tmp_path, skeleton(read_config(tmp_path), "here"))
    experts = [name for name in load_file(tmp_path / "model.safetensors") if ".experts.3." in name]
    if experts:
        alter(tmp_path, lambda tensors: tensors.update({experts[0].replace("layers.0", "layers.7"): torch.zeros(2)}))
        with pytest.raises(ModelError, match=r"no place for: .*layers\.7"):
            check_weights(tmp_path, skeleton(read_config(tmp_path), "here"))


def test_buffers_of_old_checkpoints_are_passed_over(broken: Path) -> None:
    alter(broken, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    load_causal_lm(broken)


@pytest.mark.parametrize("load", [load_causal_lm, load_backbone])
def test_layers_that_the_configuration_does_not_know_are_refused(broken: Path, load: Callable[[Path], object]) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"no place for: model\.layers\.1\.input_layernorm\.weight, .* and 6 more"):
        load(broken)


def test_a_unit_that_rewards_is_of_a_backbone_alone(broken: Path) -> None:
    alter(broken, lambda tensors: tensors.update({"score.weight": torch.zeros(1, 32)}))
    load_backbone(broken)
    with pytest.raises(ModelError, match=r"no place for: score\.weight"):
        load_causal_lm(broken)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("load", [load_causal_lm, load_backbone])
def test_a_weight_that_is_not_finite_is_named(broken: Path, load: Callable[[Path], object], value: float) -> None:
    alter(broken, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"][3, 5].fill_(value))
    with pytest.raises(ModelError, match=r"model\.safetensors: model\.layers\.1\.mlp\.up_proj\.weight holds "):
        load(broken)
