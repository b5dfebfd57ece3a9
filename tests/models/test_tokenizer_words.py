"""The tokenizer of words: lossless, one token per number, the same whatever the order of its texts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

from lockstep.models.tokenizer import is_misread, load_tokenizer, words_tokenizer

TEXT = "Ada has 5 apples. Ben gives 12 more.\n5+12=17\n#### 17"


def pieces(text: str, *more: str) -> list[str]:
    tokenizer = words_tokenizer([text, *more])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert isinstance(tokens, list)
    return tokens


def test_words_numbers_signs_and_newlines_are_one_token_each() -> None:
    assert pieces("Ada has 5 apples.\n5+12=17\n#### 17") == [
        "Ada", " has ", "5", " apples", ".", "\n", "5", "+", "12", "=", "17", "\n", "#### ", "17",
    ]  # fmt: skip


def test_a_number_is_the_same_token_wherever_it_stands() -> None:
    tokenizer = words_tokenizer(["5 has 5\n5=5 #### 5"])
    five = tokenizer.convert_tokens_to_ids("5")
    assert tokenizer("5 has 5\n5=5 #### 5")["input_ids"].count(five) == 5
    assert not [token for token in tokenizer.get_vocab() if "5" in token and token != "5"]


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_decoding_gives_back_any_text_it_was_made_from(texts: list[str]) -> None:
    tokenizer = words_tokenizer(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", ["", "007", " a  b\t\n\n", "don't -- (x) 3 , 4", "é 日本 12", "A_1 _ 2", "10 000"])
def test_decoding_gives_back_hard_cases(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_every_number_in_range_can_be_emitted_and_007_is_not_7() -> None:
    vocabulary = words_tokenizer(["007 and 30"]).get_vocab()
    assert {str(n) for n in range(31)} <= vocabulary.keys()
    assert vocabulary["007"] != vocabulary["7"]


def test_large_numbers_do_not_fill_the_vocabulary() -> None:
    vocabulary = words_tokenizer(["1000000 and 3"]).get_vocab()
    assert "1000000" in vocabulary
    assert len(vocabulary) < 10


def test_the_vocabulary_does_not_depend_on_the_order_of_texts() -> None:
    texts = TEXT.split("\n")
    assert words_tokenizer(texts).get_vocab() == words_tokenizer(texts[::-1]).get_vocab()


def test_unknown_words_are_unknown_and_special_tokens_are_there() -> None:
    tokenizer = words_tokenizer([TEXT])
    assert tokenizer("Zoe")["input_ids"] == [tokenizer.unk_token_id]
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [0, 1, 2]
    assert tokenizer.decode([1], skip_special_tokens=True) == ""


@pytest.mark.parametrize("model_type", [None, "llama", "qwen2", "qwen3"])
def test_a_saved_tokenizer_is_the_same_beside_any_model(tmp_path: Path, model_type: str | None) -> None:
    """transformers opens any tokenizer beside a qwen2 config as a Qwen2Tokenizer, which splits text in its own way."""
    made = words_tokenizer([TEXT])
    made.save_pretrained(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    loaded = load_tokenizer(tmp_path)
    assert loaded(TEXT)["input_ids"] == made(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT
    assert (loaded.eos_token_id, loaded.pad_token_id) == (made.eos_token_id, made.pad_token_id)


def test_a_real_tokenizer_loads(assets: Path) -> None:
    tokenizer = load_tokenizer(assets / "models/stories260K/hf")
    assert tokenizer.decode(tokenizer("Once upon a time")["input_ids"], skip_special_tokens=True) == "Once upon a time"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*absent; give the folder of a model on this machine"):
        load_tokenizer(tmp_path / "absent")


def test_a_folder_without_a_tokenizer_is_named_even_if_it_holds_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ValueError, match=r"has no tokenizer \(no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="its tokenizer cannot be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("model_type", "misread"), [("qwen2", True), ("llama", False)])
def test_a_tokenizer_that_auto_tokenizer_misreads_is_known(model_type: str, misread: bool, tmp_path: Path) -> None:
    words_tokenizer(["Tom has 3 apples.\n"]).save_pretrained(tmp_path)
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    assert is_misread(tmp_path) == misread
    read, own = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "Tom has 3 apples."
    assert own.decode(own(text)["input_ids"]) == text
    assert (read(text)["input_ids"] != own(text)["input_ids"]) == misread
