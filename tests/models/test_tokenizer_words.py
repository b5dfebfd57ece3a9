"""The tokenizer of words: lossless, one token per number, the same whatever the order of its
texts.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.models.tokenizer import is_generic, load_tokenizer, words_tokenizer

TEXT = "Ada has 5 apples. Ben gives 12 more.\n5+12=17\n#### 17"


def pieces(text: str, *more: str) -> list[str]:
    tokenizer = words_tokenizer([text, *more])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert isinstance(tokens, list)
    return tokens


def test_words_tokenizer_makes_words_numbers_signs_and_newlines_single_tokens() -> None:
    assert pieces("Ada has 5 apples.\n5+12=17\n#### 17") == [
        "Ada", " has ", "5", " apples", ".", "\n", "5", "+", "12", "=", "17", "\n", "#### ", "17",
    ]  # fmt: skip


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_words_tokenizer_decodes_its_training_texts_exactly(texts: list[str]) -> None:
    tokenizer = words_tokenizer(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_unknown_word_maps_to_unk_token_and_special_tokens_have_fixed_ids() -> None:
    tokenizer = words_tokenizer([TEXT])
    assert tokenizer("Zoe")["input_ids"] == [tokenizer.unk_token_id]
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [0, 1, 2]
    assert tokenizer.decode([1], skip_special_tokens=True) == ""


@pytest.mark.parametrize("model_type", [None, "llama", "qwen2", "qwen3"])
def test_saved_words_tokenizer_loads_identically_with_any_model_type(
    tmp_path: Path, model_type: str | None
) -> None:
    """transformers opens any tokenizer beside a qwen2 config as a Qwen2Tokenizer, which splits text
    in its own way.
    """
    made = words_tokenizer([TEXT])
    made.save_pretrained(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert is_generic(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded(TEXT)["input_ids"] == made(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT
    assert (loaded.eos_token_id, loaded.pad_token_id) == (made.eos_token_id, made.pad_token_id)
