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
        where = {
            name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(sorted(tensors))
        }
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


def end_texts(tree: dict[str, Any]) -> None:
    """Has a tokenizer put its end-of-sequence token behind every text."""
    text, end = (
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<eos>", "type_id": 0}},
    )
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
    "model: config nested 100,000 deep": model(
        write(CONFIG, '{"a": ' + DEEP + "}"), "config.json", "JSON"
    ),
    "model: config with a mark": model(
        lambda folder: (folder / CONFIG).write_bytes(
            b"\xef\xbb\xbf" + (folder / CONFIG).read_bytes()
        ),
        "config.json",
        "BOM",
    ),
    "model: model type is missing": config({"model_type": None}, "config.json", "model_type"),
    "model: no vocabulary": config({"vocab_size": 0}, "config.json", "vocab_size"),
    "model: minus one layer": config({"num_hidden_layers": -1}, "num_hidden_layers"),
    "model: context of zero": config({"max_position_embeddings": 0}, "max_position_embeddings"),
    "model: epsilon is NaN": config({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    "model: a type of numbers that is not there": trained_config({"dtype": "float4"}, "float4"),
    "model: index: nested deep": index('{"weight_map": ' + DEEP + "}", "index", "JSON"),
    "model: index: names a file above": index(
        {"weight_map": {"model.norm.weight": "../../../etc/passwd"}}, "index"
    ),
    "model: shards: a tensor in two, of two values": model(
        two_shards(clash), "a.safetensors", "b.safetensors", "both contain"
    ),
    "model: shards: the index names the wrong one": in_order(model(two_shards(swap))),
    "model: weights: a header of 2^60 bytes": model(
        write(WEIGHTS, struct.pack("<Q", 2**60) + b"{}"), "damaged"
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
    "model: weights: fp64 beyond fp32": model(
        weights(lambda t: t.update({NORM: torch.full_like(t[NORM], 1e300, dtype=torch.float64)})),
        "model.norm.weight",
        "fp32",
    ),
    "model: weights: whole numbers": model(
        weights(lambda t: t.update({NORM: t[NORM].long()})), "model.norm.weight"
    ),
    "model: weights: a prefix of a wrapper": model(
        weights(lambda t: [t.update({"module." + k: v}) or t.pop(k) for k, v in list(t.items())]),
        "model",
    ),
    "model: adapters beside the weights": trained(
        both(
            write(
                "model/adapter_config.json",
                '{"peft_type": "LORA", "base_model_name_or_path": "nowhere", "r": 2}',
            )
        ),
        "adapter",
    ),
    "model: tokenizer: an end token that is new": model(
        change(TOKENIZER_CONFIG, eos_token="<nowhere>"), "produces token 86", "<nowhere>"
    ),
    "model: tokenizer: a class that is not there": in_order(
        model(change(TOKENIZER_CONFIG, tokenizer_class="Evil"))
    ),
    "model: tokenizer: cuts every text": in_order(
        model(
            edit(
                TOKENIZER,
                lambda t: t.update(
                    truncation={
                        "direction": "Right",
                        "max_length": 4,
                        "strategy": "LongestFirst",
                        "stride": 0,
                    }
                ),
            )
        )
    ),
    "model: tokenizer: ends every prompt": model(edit(TOKENIZER, end_texts), "end-of-sequence"),
    "model: tokenizer: draws at random": model(edit(TOKENIZER, drop_merges), "dropout"),
    "model: tokenizer: a chat template that is a list of names": chat(
        [{"name": "rag", "template": "x"}], "chat template"
    ),
    "model: tokenizer: a chat template that says nothing": chat(
        "", "rows.jsonl, line 1", "its prompt is empty"
    ),
    "model: tokenizer: a chat template that leaves the question out": chat(
        "Hello", "chat template", "omits"
    ),
    "model: tokenizer: a chat template of ten gigabytes": chat(
        "{{ 'a' * 10000000000 }}", "chat template", "memory"
    ),
    "model: tokenizer: a chat template with a large power": chat(
        "{{ 9**9**9 }}", "chat template", "a power"
    ),
    "model: generation config: stop tokens within lists": generation(
        {"eos_token_id": [[1]]}, "eos_token_id"
    ),
    "model: generation config: a mode that is not there": generation(
        {"cache_implementation": "nosuch", "num_beams": 0, "eos_token_id": 1},
        "cannot be loaded",
        "cache_implementation",
    ),
}
