"""Reward functions of other libraries: verl's are called by its names, others are refused before they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.rewards.reward_function import answers

FUNCTIONS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": float((data_source, solution_str, ground_truth) == ("mine", "yes", "18")), "acc": extra_info["i"]}

async def later(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if ground_truth == "18" else 0.5

def many(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": 2.0} if truth == "18" else 0.0 for truth in ground_truths]

async def many_later(data_sources, solution_strs, ground_truths, extra_infos):
    return many(data_sources, solution_strs, ground_truths, extra_infos)

def of_three(data_source, solution_str, ground_truth): return 0.0
def of_five(data_source, solution_str, ground_truth, extra_info=None, *, tau): return 0.0

def trl(prompts, completions, completion_ids, answers): return 0.0
def trl_of_two(prompts, completions, *rest): return 0.0
def verl_in_another_order(solution_str, ground_truth, extra_info, data_source): return 0.0
def ours(prompt, completion, ground_truth, row): return 1.0
"""
ROW: dict[str, Any] = {"data_source": "mine", "reward_model": {"ground_truth": "18"}, "extra_info": {"i": 0}}
OTHER = {"data_source": "mine", "extra_info": {"i": 0}}


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "theirs.py").write_text(FUNCTIONS)
    return f"{tmp_path}/theirs.py:"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("compute_score", [1.0, 0.0]), ("later", [1.0, 0.5]), ("many", [2.0, 0.0]),
     ("many_later", [2.0, 0.0]), ("ours", [1, 1])],
)  # fmt: skip
def test_functions_of_verl_get_what_its_rows_have(name: str, expected: list[float], functions: str) -> None:
    asked = answers(functions + name, "reward", "batch" if name.startswith("many") else "")
    question = [["18 is?", "yes", "", ROW], ["18 is?", "yes", "17", OTHER]]
    assert [found["reward"] for found in asked(question)] == expected
