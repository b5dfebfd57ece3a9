"""Hostile folders of models."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile import (
    CONFIG,
    DEEP,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Hostile,
    both,
    chat,
    config,
    edit,
    generation,
    in_order,
    index,
    model,
    trained,
    trained_config,
)
from safetensors.torch import load_file, save_file
from workspace import change, weights, write

NORM = "model.norm.weight"
Parts = dict[str, dict[str, torch.Tensor]]


def two_shards(alter: Callable[[Parts, dict[str, str]], object]) -> Callable[[Path], None]:
    """Cuts the weights into two files with an index, both altered."""

    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        where = {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(sorted(tensors))}
        parts: Parts = {file: {} for file in where.values()}
        for name, file in where.items():
            parts[file][name] = tensors[name]
        alter(parts, where)
        for file, part in parts.items():
            save_file(part, folder / "model" / file, metadata={"format": "pt"})
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))

    return spoil


def clash(parts: Parts, where: dict[str, str]) -> None:
    name, tensor = next(iter(parts["a.safetensors"].items()))
    parts["b.safetensors"][name] = tensor + 1


def swap(parts: Parts, where: dict[str, str]) -> None:
    where[next(iter(parts["a.safetensors"]))] = "b.safetensors"


def raw(header: object, body: bytes = b"") -> bytes:
    """A file of safetensors, byte by byte."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def without_format(folder: Path) -> None:
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS)


def end_texts(tree: dict[str, Any]) -> None:
    """Has a tokenizer put its end-of-sequence token behind every text."""
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    tokens = {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}}
    tree["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text],
        "special_tokens": tokens,
    }


def drop_merges(tree: dict[str, Any]) -> None:
    """Has a tokenizer cut texts at random."""
    pieces = ["<pad>", "<eos>", "<unk>", *"0123456789+=-* #", "1+"]
    names = ("continuing_subword_prefix", "end_of_word_suffix")
    tree["model"] = {
        "type": "BPE", "dropout": 0.5, "unk_token": "<unk>", "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [["1", "+"]],
        **dict.fromkeys(names),
    }  # fmt: skip


MODELS = {
    "model: config nested 100,000 deep": model(write(CONFIG, '{"a": ' + DEEP + "}"), "config.json", "JSON"),
    "model: config with a mark": model(
        lambda folder: (folder / CONFIG).write_bytes(b"\xef\xbb\xbf" + (folder / CONFIG).read_bytes()),
        "config.json",
        "BOM",
    ),
    "model: architectures is text": config({"architectures": "LlamaForCausalLM"}, "config.json", "architectures"),
    "model: model type is missing": config({"model_type": None}, "config.json", "model_type"),
    "model: no vocabulary": config({"vocab_size": 0}, "config.json", "vocab_size"),
    "model: negative width": config({"hidden_size": -32}, "config.json", "hidden_size"),
    "model: minus one layer": config({"num_hidden_layers": -1}, "num_hidden_layers"),
    "model: context of zero": config({"max_position_embeddings": 0}, "max_position_embeddings"),
    "model: context is infinite": config({"max_position_embeddings": float("inf")}, "max_position_embeddings"),
    "model: epsilon is NaN": config({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    "model: rope parameters is a list": config({"rope_parameters": [1]}, "config.json", "rope_parameters"),
    "model: stop token is text": config({"eos_token_id": "</s>"}, "eos_token_id"),
    "model: an attention of its own": trained_config(
        {"_attn_implementation": "flash_attention_2", "attn_implementation": "flash_attention_2"},
        "config.json",
        "_attn_implementation",
    ),
    "model: a type of numbers that is not there": trained_config({"dtype": "float4"}, "config.json", "dtype"),
    "model: dropout of 2": in_order(trained_config({"attention_dropout": 2.0})),
    "model: an encoder with a decoder": in_order(trained_config({"is_encoder_decoder": True})),
    "model: index: nested deep": index('{"weight_map": ' + DEEP + "}", "index", "JSON"),
    "model: index: names a file above": index({"weight_map": {"model.norm.weight": "../../../etc/passwd"}}, "index"),
    "model: index: leaves tensors out": in_order(index({"weight_map": {"model.norm.weight": "model.safetensors"}})),
    "model: shards: a tensor in two, of two values": model(
        two_shards(clash), "a.safetensors", "b.safetensors", "both hold"
    ),
    "model: shards: the index names the wrong one": in_order(model(two_shards(swap))),
    "model: weights: a header of 2^60 bytes": model(write(WEIGHTS, struct.pack("<Q", 2**60) + b"{}"), "damaged"),
    "model: weights: a header nested deep": model(
        write(WEIGHTS, raw(b'{"a": ' + b"[" * 50000 + b"]" * 50000 + b"}")), "damaged"
    ),
    "model: weights: offsets that overlap": model(
        write(
            WEIGHTS,
            raw(
                {
                    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                    "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
                },
                bytes(12),
            ),
        ),
        "damaged",
    ),
    "model: weights: no format in the header": in_order(trained(without_format)),
    "model: weights: fp64 beyond fp32": model(
        weights(lambda t: t.update({NORM: torch.full_like(t[NORM], 1e300, dtype=torch.float64)})),
        "model.norm.weight",
        "fp32",
    ),
    "model: weights: whole numbers": model(weights(lambda t: t.update({NORM: t[NORM].long()})), "model.norm.weight"),
    "model: weights: 1e38 everywhere": Hostile(
        "train own.yaml",
        weights(lambda t: t.update({k: torch.full_like(v, 1e38) for k, v in t.items()})),
        ("learned nothing",),
    ),
    "model: weights: transposed": model(
        weights(
            lambda t: t.update(
                {"model.layers.0.mlp.up_proj.weight": t["model.layers.0.mlp.up_proj.weight"].T.contiguous()}
            )
        ),
        "shape",
    ),
    "model: weights: a prefix of a wrapper": model(
        weights(lambda t: [t.update({"module." + k: v}) or t.pop(k) for k, v in list(t.items())]), "model"
    ),
    "model: adapters beside the weights": trained(
        both(write("model/adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "nowhere", "r": 2}')),
        "adapter",
    ),
    "model: tokenizer: empty object": model(write(TOKENIZER, "{}"), "tokenizer"),
    "model: tokenizer: config nested deep": model(write(TOKENIZER_CONFIG, '{"a": ' + DEEP + "}"), "tokenizer"),
    "model: tokenizer: an end token that is new": model(
        change(TOKENIZER_CONFIG, eos_token="<nowhere>"), "makes token 86", "<nowhere>"
    ),
    "model: tokenizer: a class that is not there": in_order(model(change(TOKENIZER_CONFIG, tokenizer_class="Evil"))),
    "model: tokenizer: cuts every text": in_order(
        model(
            edit(
                TOKENIZER,
                lambda t: t.update(
                    truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
                ),
            )
        )
    ),
    "model: tokenizer: ends every prompt": model(edit(TOKENIZER, end_texts), "end-of-sequence"),
    "model: tokenizer: draws at random": model(edit(TOKENIZER, drop_merges), "dropout"),
    "model: tokenizer: a token of number 10^9": model(
        edit(
            TOKENIZER,
            lambda t: t["added_tokens"].append(
                {
                    "id": 10**9,
                    "content": "<far>",
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
            ),
        ),
        "makes token 86",
        "<far>",
    ),
    "model: tokenizer: added tokens that are a list": model(write("model/added_tokens.json", "[1]"), "tokenizer"),
    "model: tokenizer: a chat template that is a list of names": chat(
        [{"name": "rag", "template": "x"}], "chat template"
    ),
    "model: tokenizer: a chat template that says nothing": chat("", "rows.jsonl, line 1", "its prompt is empty"),
    "model: tokenizer: a chat template that leaves the question out": chat("Hello", "chat template", "leaves out"),
    "model: tokenizer: a chat template that includes a file": chat("{% include '/etc/passwd' %}", "chat template"),
    "model: tokenizer: a chat template of ten gigabytes": chat("{{ 'a' * 10000000000 }}", "chat template", "memory"),
    "model: tokenizer: a chat template with a large power": chat("{{ 9**9**9 }}", "chat template", "a power"),
    "model: tokenizer: a chat template that recurses": chat(
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "chat template"
    ),
    "model: generation config: a temperature that is not used": in_order(
        generation({"do_sample": False, "temperature": 0.7, "eos_token_id": 1})
    ),
    "model: generation config: a top_p of 5": in_order(generation({"do_sample": True, "top_p": 5, "eos_token_id": 1})),
    "model: generation config: a stop token beyond the vocabulary": generation(
        {"eos_token_id": 10**9}, "generation_config.json", "eos_token_id"
    ),
    "model: generation config: stop tokens within lists": generation({"eos_token_id": [[1]]}, "eos_token_id"),
    "model: generation config: a mode that is not there": generation(
        {"cache_implementation": "nosuch", "num_beams": 0, "eos_token_id": 1},
        "cannot be opened",
        "cache_implementation",
    ),
}
