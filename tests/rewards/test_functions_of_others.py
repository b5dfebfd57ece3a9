"""Reward functions of TRL and verl are called as they are; those of others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.core.errors import InputError
from lockstep.core.types import Prompt
from lockstep.rewards.python_reward import PythonReward
from lockstep.rewards.reward_function import answers

FUNCTIONS = """
import functools
def trl(completions, answer, **kwargs):
    return [float(c == a) + len(kwargs["prompts"]) for c, a in zip(completions, answer)]
def trl_of_talks(prompts, completions):
    return [float(c[0]["content"] == p[-1]["content"]) for p, c in zip(prompts, completions)]
async def trl_async(completions, **kwargs): return [len(kwargs), *(None for _ in completions[1:])]
def trl_of_a_column(completions, solution): return [1.0 for _ in completions]
def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "source": data_source + extra_info["split"]}
async def verl_async(solution_str, ground_truth, **kwargs): return float(solution_str == ground_truth)
def verl_scaled(solution_str, ground_truth, scale): return scale * (solution_str == ground_truth)
verl_by_half = functools.partial(verl_scaled, scale=0.5)
def verl_of_a_batch(data_sources, solution_strs, ground_truths, extra_infos=None): return [0.0]
def openrlhf(queries, prompts, labels, *rest): return 0.0
def ours(prompt, completion, ground_truth, row): return 1.0
def forgetful(completions, **kwargs): [len(c) for c in completions]
def forgets_all(prompt, response, answer, row): len(response)
"""
ROWS: list[dict[str, Any]] = [
    {"prompt": "2?", "answer": "2", "data_source": "a", "extra_info": {"split": "b"}},
    {"prompt": "3?", "answer": "3", "data_source": "a", "extra_info": {"split": "b"}},
]


def verl_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"reward_model": {"ground_truth": row["answer"]}}


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "theirs.py").write_text(FUNCTIONS)
    return f"{tmp_path}/theirs.py:"


def score(function: str, rows: list[dict[str, Any]] = ROWS, talks: bool = False) -> list[Any]:
    """What a function says of two responses, of which the second is wrong."""
    told = [
        ["?", response, "", row, [{"role": "user", "content": row["answer"]}] if talks else None]
        for response, row in zip("24", rows, strict=True)
    ]
    return [reply.get("reward", reply.get("wrong")) for reply in answers(function, "reward")(told)]


def test_trl_function_gets_prompts_completions_and_columns(functions: str) -> None:
    assert score(f"{functions}trl") == [3.0, 2.0]
    assert score(f"{functions}trl_async") == [4.0, None]


def test_trl_function_gets_conversations_as_messages(functions: str) -> None:
    assert score(f"{functions}trl_of_talks", talks=True) == [1.0, 0.0]


def test_trl_function_without_its_column_is_told_which_columns_there_are(functions: str) -> None:
    [first, _] = score(f"{functions}trl_of_a_column")
    assert first.startswith("takes (completions, solution), but its rows lack a column (missing a")


def test_verl_function_gets_ground_truth_and_returns_a_score(functions: str) -> None:
    rows = [verl_row(row) for row in ROWS]
    for name in ("verl", "verl_async"):
        assert score(f"{functions}{name}", rows) == [1.0, 0.0]
    assert score(f"{functions}verl_by_half", rows) == [0.5, 0.0]  # its own arguments are bound


def test_function_that_returns_none_for_all_is_told_by_name_at_its_first_call(
    functions: str,
) -> None:
    told = list[str]()
    reward = PythonReward(f"{functions}forgets_all", 60.0, told.append)
    for _ in range(2):
        assert reward([Prompt("rows:1", "", (0,), {})] * 2, ["a", "b"], ["", ""]) == [None, None]
    [line] = told
    assert "forgets_all returned None, which is no verdict, for all 2 responses" in line
    [first, _] = score(f"{functions}forgetful")
    assert first == "returned None; return a list of rewards"


@pytest.mark.parametrize("name", ["verl_of_a_batch", "openrlhf"])
def test_reward_function_with_signature_of_other_library_is_rejected(
    name: str, functions: str
) -> None:
    with pytest.raises(InputError, match="a signature of a different library"):
        answers(functions + name, "reward")


def test_reward_function_may_use_different_argument_names(functions: str) -> None:
    assert score(f"{functions}ours") == [1.0, 1.0]
