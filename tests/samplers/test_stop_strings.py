"""Stop strings in the text of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.models.tokenizer import load_tokenizer
from lockstep.samplers.stop_strings import StopStrings


@pytest.mark.parametrize(
    ("string", "end"), [("The</s>", 2), ("The dog", None), ("og", 4), ("</s> d", 3)]
)
def test_stop_string_search_reads_special_token_as_its_name(
    assets: Path, string: str, end: int | None
) -> None:
    """So a window of as many tokens as a string has bytes shows all of it."""
    folder = str(assets / "models/stories260K/hf")
    tokenizer = load_tokenizer(folder)
    the, dog = (tokenizer.encode(word, add_special_tokens=False) for word in ("The", "dog"))
    assert len(the) == 1
    assert len(dog) == 2
    end_of_sequence = tokenizer.eos_token_id
    assert isinstance(end_of_sequence, int)
    assert StopStrings(folder, (string,)).find_end([*the, end_of_sequence, *dog]) == end


@pytest.mark.parametrize(
    ("text", "string"),
    [
        ("Hello 日本語 the end", "語 the end"),
        ("日本 dog.", "本 dog."),
        ("語.語\n é", "\n é"),
        ("日本🙂", "🙂"),
        ("日本語", "のの"),
    ],
)
def test_stop_string_is_found_when_window_starts_inside_multibyte_character(
    assets: Path, text: str, string: str
) -> None:
    folder = str(assets / "models/stories260K/hf")
    tokens = load_tokenizer(folder).encode(text, add_special_tokens=False)
    stops = StopStrings(folder, (string,))
    ends = (end for end in range(1, len(tokens) + 1) if string in stops._decode_text(tokens[:end]))
    assert stops.find_end(tokens) == next(ends, None)
