"""Cures in messages: as overrides for the command line, as keyword arguments for a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.api.words import translate_overrides
from lockstep.config.loading import RecipeError
from lockstep.errors import InputError

ROWS = [{"question": "Once upon a time there was a dog"}]


@pytest.mark.parametrize(
    ("said", "section", "meant"),
    [
        ("""data.answer='""' asks for none""", "", """data={"answer": ""} asks for none"""),
        ("lower it (learner.dtype=fp32)", "", """lower it (learner={"dtype": "fp32"})"""),
        ("lower it (learner.dtype=fp32)", "learner", """lower it (dtype="fp32")"""),
        ("say learner.parallel.dp=2; or", "learner", """say parallel={"dp": 2}; or"""),
        ("model.path=FOLDER names it", "", """model={"path": FOLDER} names it"""),
        ("policy.schedule=null, or policy.lr=…", "", """policy={"schedule": None}, or policy={"lr": …}"""),
        ("which data.prompt={openin} asks for", "", """which data={"prompt": "{openin}"} asks for"""),
        ("data.shuffle=false", "", """data={"shuffle": False}"""),
        ("grid.methods=[{temperature: 1}]", "", "grid.methods=[{temperature: 1}]"),
        ("run.save_every= says nothing, and http://x.y/z?a.b=c neither", "", None),
    ],
)
def test_overrides_become_arguments(said: str, section: str, meant: str | None) -> None:
    assert translate_overrides(said, section) == (said if meant is None else meant)


def grpo(**options: Any) -> lockstep.GRPO:
    options = {"data": {"max_prompt_tokens": 32}, "train": ROWS, "policy": {"lr": 1e-3}, **options}
    return lockstep.GRPO(model="nowhere", **options)


def test_a_run_s_message_is_in_python_s_words(assets: Path, in_tmp: Path) -> None:
    folder = assets / "models/stories260K/hf"
    trainer = lockstep.GRPO(model=folder, train=ROWS, data={"max_prompt_tokens": 32}, reward=lambda *_: 0.0)
    for ask in (trainer.train, trainer.dry_run):
        with pytest.raises(InputError, match=r"""data=\{"answer": ""\} asks for none"""):
            ask()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"learning_rate": 1e-3}, """learning_rate in other libraries is policy={"lr": …} here"""),
        ({"policy": {"learning_rate": 1e-3}}, """learning_rate in other libraries is policy={"lr": …} here"""),
        ({"beta": 0.1}, """beta in other libraries is grpo={"kl": {"coef": …}} here"""),
        (
            {"max_completion_length": 8},
            """max_completion_length in other libraries is sampling={"max_tokens": …} here""",
        ),
    ],
)
def test_words_of_other_libraries_are_known(in_tmp: Path, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(RecipeError) as told:
        grpo(**options)
    assert hint in str(told.value)
