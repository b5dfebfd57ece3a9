"""Sentences with given words: rows that nothing trained on, and what their checks accept."""

from __future__ import annotations

from pathlib import Path

from row_files import read_rows

from lockstep.rewards.instruction_reward import READER
from lockstep.tasks.given_words import HELD_OUT, TRAINED, GivenWords


def test_words_of_held_out_sentences_are_in_no_training_row(tmp_path: Path) -> None:
    files = GivenWords(name="given_words").write(tmp_path)
    for path, words, count in ((files.train, TRAINED, 512), (files.validation, HELD_OUT, 256)):
        rows = read_rows(path)
        assert {word for row in rows for word in row["asked"][0]["words"]} == {*words.split()}
        assert len({row["question"] for row in rows}) == count
    assert not {*TRAINED.split()} & {*HELD_OUT.split()}


def test_sentence_earns_a_reward_only_with_each_word_once_and_an_end(tmp_path: Path) -> None:
    row = read_rows(GivenWords(name="given_words").write(tmp_path).validation)[0]
    assert "bread, chair and baker" in row["question"]
    accepted = {
        "The baker left bread on a chair.": True,
        "The baker sat on a chair.": False,
        "Bread, bread on the chair of a baker.": False,
        "The baker left bread on a chair": False,
        "The baker left bread. It is on a chair.": False,
    }
    for response, wanted in accepted.items():
        followed = [READER.validate_python(one).is_followed(response) for one in row["asked"]]
        assert all(followed) == wanted, response
