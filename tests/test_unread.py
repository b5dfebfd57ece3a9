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
def test_a_command_whose_output_no_one_reads_ends_quietly(command: list[str]) -> None:
    ended = run_unread("-m", "lockstep", *command)
    assert (ended.returncode, ended.stderr) == (exit_codes.UNREAD, b"")


def test_a_pipe_is_unread_when_its_reader_has_gone() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        assert not is_unread(stream)
        stream.write("kept back")
        os.close(reader)
        assert is_unread(stream)
        redirect_to_null(stream.fileno())
        assert not is_unread(stream)


def test_a_run_that_no_one_reads_goes_on_to_its_end(in_tmp: Path) -> None:
    Path("rewards.py").write_text(
        "def score(prompt, response, answer, row):\n    print('scored', flush=True)\n    return "
        "1.0\n"
    )
    reward = {"reward": {"type": "python", "function": "rewards.py:score"}}
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | reward))
    ended = run_unread("-m", "lockstep", "train", "tiny.yaml", "run.max_steps=2", messages_too=True)
    assert ended.returncode == exit_codes.OK
    assert Path("run/final/model.safetensors").is_file()
