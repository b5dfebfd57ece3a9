"""The vocabularies of models that are made for toy tasks stay as they are, token for token: runs
depend on them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from ladder_recipes import rung

from lockstep.algorithms.rows import data_files
from lockstep.config.loading import load_recipe
from lockstep.models.source import scratch_tokenizer

VOCABULARIES = {
    "sft_arithmetic": (98, "5f50e5b8f68404ab"),
    "sft_quiz": (74, "80b6fa927336d158"),
    "sft_letters": (37, "c6f290a747abdaf8"),
    "sft_letters_meta": (44, "6aa09685d9cc1aa2"),
}


SLOW = {"sft_letters": pytest.mark.full, "sft_letters_meta": pytest.mark.proof}
"""Their demonstrations take five seconds and half a minute to make."""


@pytest.mark.parametrize(
    ("recipe", "size", "digest"),
    [
        pytest.param(name, *known, marks=[SLOW[name]] if name in SLOW else [])
        for name, known in VOCABULARIES.items()
    ],
)
def test_toy_task_vocabulary_matches_recorded_digest(
    recipe: str, size: int, digest: str, tmp_path: Path
) -> None:
    training = load_recipe(rung(recipe) if "letters" in recipe else recipe).training_recipe
    found = scratch_tokenizer(
        training, data_files(training.data, tmp_path).demonstrations
    ).get_vocab()
    tokens = [token for token, _ in sorted(found.items(), key=lambda item: item[1])]
    assert len(tokens) == size
    assert hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16] == digest
