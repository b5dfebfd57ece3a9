"""A pipe whose reader has ended, such as `head`: a command ends quietly, and a run trains to its
end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_recipe import RECIPE

from lockstep.core import exit_codes
from lockstep.system.unread import is_unread, redirect_to_null


def run_unread(*command: str, messages_too: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Runs Python with an output that no one reads, and where asked, with messages that no one
    reads.
    """
    reader, unread = os.pipe()
    os.close(reader)
    try:
        messages = unread if messages_too else subprocess.PIPE
        return subprocess.run(
            [sys.executable, *command], stdout=unread, stderr=messages, check=False
        )
    finally:
        os.close(unread)


@pytest.mark.parametrize("command", [["schema", "ppo"], ["config", "ppo_arithmetic"]])
def test_command_ends_without_message_if_output_pipe_has_no_reader(command: list[str]) -> None:
    ended = run_unread("-m", "lockstep", *command)
    assert (ended.returncode, ended.stderr) == (exit_codes.UNREAD, b"")


def test_is_unread_detects_pipe_with_closed_reader() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        assert not is_unread(stream)
        stream.write("kept back")
        os.close(reader)
        assert is_unread(stream)
        redirect_to_null(stream.fileno())
        assert not is_unread(stream)


def test_training_run_finishes_if_output_pipes_have_no_reader(in_tmp: Path) -> None:
    Path("rewards.py").write_text(
        "def score(prompt, response, answer, row):\n    print('scored', flush=True)\n    return "
        "1.0\n"
    )
    reward = {"reward": {"type": "python", "function": "rewards.py:score"}}
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | reward))
    ended = run_unread("-m", "lockstep", "train", "tiny.yaml", "run.max_steps=2", messages_too=True)
    assert ended.returncode == exit_codes.OK
    assert Path("run/final/model.safetensors").is_file()
