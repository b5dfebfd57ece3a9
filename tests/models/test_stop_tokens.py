"""Stop tokens of a model: which files name them, and the end of a turn at which a model does not
stop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.models.source import describe_template, open_source

WORDS = ["<pad>", "<eos>", "<turn>", "<other>", "a", "<unk>"]
CHATML = "{% for m in messages %}{{ m.content }}<turn>{% endfor %}"


def write_model(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> Path:
    """A folder with all of a model but its weights."""
    words = Tokenizer(
        WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "<other>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    whole = {
        "model_type": "llama",
        "vocab_size": len(WORDS),
        "max_position_embeddings": 64,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "stops"),
    [
        ({"eos_token_id": [1, 2]}, None, (1, 2)),
        ({"eos_token_id": [1, 2]}, {"temperature": 0.7}, (1, 2)),
        ({"eos_token_id": [1, 3]}, {"eos_token_id": 2}, (1, 2)),
        ({"eos_token_id": 10**6}, None, (1,)),
        ({}, None, (1,)),
    ],
)
def test_stop_tokens_come_from_generation_config_or_else_from_config(
    tmp_path: Path,
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    stops: tuple[int, ...],
) -> None:
    """As in `transformers`, which reads config.json where there is no generation_config.json."""
    assert open_source(write_model(tmp_path, config, generation)).stop_token_ids == stops


def test_chat_turn_end_missing_from_stop_tokens_is_reported(tmp_path: Path) -> None:
    chat = DataSection(train="rows.jsonl", chat=True, max_prompt_tokens=9)
    said = describe_template(open_source(write_model(tmp_path, {}, {"eos_token_id": 1})), chat)
    assert said is not None
    assert "ends a turn with <turn>, which is not a stop token" in said
    assert "add 2 to eos_token_id in generation_config.json" in said
    stops = open_source(write_model(tmp_path, {}, {"eos_token_id": [1, 2]}))
    assert describe_template(stops, chat) is None


def test_unused_chat_template_is_reported(tmp_path: Path) -> None:
    source = open_source(write_model(tmp_path, {}, {"eos_token_id": [1, 2]}))
    plain = DataSection(train="rows.jsonl", max_prompt_tokens=9)
    said = describe_template(source, plain)
    assert said is not None
    assert said.endswith("if it is a chat model, set data.chat=true")
    source.tokenizer.chat_template = None
    assert describe_template(source, plain) is None
