"""The suite works for others: copied away, it runs the function that LOCKSTEP_GAE names, and judges
it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ADAPTER = """
import sys

import torch


def backwards(rewards, values, mask, lengths, gamma, lam, final_value_B, is_step):
    advantages, start = torch.zeros_like(rewards), 0
    for row, length in enumerate(lengths.tolist()):
        next_value, next_advantage = 0.0 if final_value_B is None else final_value_B[row], 0.0
        for t in reversed(range(start, start + length)):
            if is_step(mask[t]):
                advantages[t] = next_advantage = (
                    rewards[t] + gamma * next_value - values[t] + gamma * lam * next_advantage
                )
                next_value = values[t]
        start += length
    return advantages.where(mask, 0.0)


def right(rewards, values, mask, lengths, *, gamma, lam, final_value_B):
    assert "lockstep" not in sys.modules
    return backwards(rewards, values, mask, lengths, gamma, lam, final_value_B, is_step=bool)


def every_token_a_step(rewards, values, mask, lengths, *, gamma, lam, final_value_B):
    if final_value_B is not None and final_value_B.any():
        raise NotImplementedError("bootstrap at truncation")
    rewards, values = rewards.where(mask, 0.0), values.where(mask, 0.0)
    return backwards(rewards, values, mask, lengths, gamma, lam, final_value_B, is_step=lambda _: True)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of someone else's: the two files of the suite, and an adapter."""
    for name in ("advantage_cases.py", "test_advantages.py"):
        shutil.copy(Path(__file__).parent / name, tmp_path)
    (tmp_path / "adapter.py").write_text(ADAPTER)
    return tmp_path


def run_suite(folder: Path, function: str) -> str:
    environment = {**os.environ, "LOCKSTEP_GAE": f"adapter:{function}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfs",
        "--tb=no",
        "-k",
        "not long",
        "test_advantages.py",
    ]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    ).stdout


def test_correct_gae_function_passes_conformance_suite(elsewhere: Path) -> None:
    summary = run_suite(elsewhere, "right")
    assert "102 passed, 6 deselected" in summary, summary


@pytest.mark.full
def test_gae_over_tool_tokens_fails_only_affected_cases_and_unsupported_is_skipped(
    elsewhere: Path,
) -> None:
    summary = run_suite(elsewhere, "every_token_a_step")
    failed = set(
        re.findall(
            r"^FAILED "
            r"test_advantages.py::test_gae_matches_definition_and_is_zero_outside_actions\[(.*)-1\.0-0\.95\]",
            summary,
            re.MULTILINE,
        )
    )
    assert failed == {
        "tool tokens in mid-response",
        "every other token is a tool's",
        "trailing observation",
        "padding and tool tokens",
        "junk that is not a number",
        "junk that is infinite",
    }, summary
    assert re.search(r"SKIPPED \[\d+\].*does not do this: bootstrap at truncation", summary), (
        summary
    )
