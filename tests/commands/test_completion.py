"""Shells complete commands, flags, recipes and options, as a person would press the key."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command, under its own name."""
    path = tmp_path / "bin" / "lockstep"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m lockstep "$@"\n')
    path.chmod(0o755)
    return path


def complete_in_bash(program: Path, line: str) -> list[str]:
    """What bash would put in place of the last word, or of its part behind =."""
    script = (
        f"source <({program} completion bash)\n"
        "complete -p lockstep > /dev/null || exit 1\n"
        f"COMP_WORDS=({program}); COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
        "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'\n"
        '_lockstep_complete; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    run = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd=program.parent
    )
    return run.stdout.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("lockstep tra", ["train"]),
        ("lockstep doctor an", ["analyze"]),
        ("lockstep train ppo_ar", ["ppo_arithmetic"]),
        ("lockstep train --dr", ["--dry-run"]),
        (
            "lockstep train ppo_arithmetic --dry-run ppo.gae_lambda_",
            ["ppo.gae_lambda_policy=", "ppo.gae_lambda_value="],
        ),
        ("lockstep train ppo_arithmetic seed=1 sampler=v", ["vllm"]),
        ("lockstep train ppo_arithmetic data.task.dire", ["data.task.direct_from=", "data.task.direct_share="]),
        ("lockstep train mine.yaml ppo.gae_lambda_v", ["ppo.gae_lambda_value="]),
        ("lockstep eval MODEL test.jsonl greedy.max_", ["greedy.max_tokens="]),
        ("lockstep doctor quick MODEL --recipe doctor_q", ["doctor_quick"]),
        ("lockstep train no_such_recipe pp", []),
        ("lockstep nothing ", []),
    ],
)
def test_bash_completes(program: Path, line: str, wanted: list[str]) -> None:
    (program.parent / "mine.yaml").write_text("base: ppo_gsm8k\n")
    assert complete_in_bash(program, line) == wanted


def complete_in_fish(program: Path, line: str) -> list[str]:
    """What fish would list."""
    script = f"{program} completion fish | source; complete -C {shlex.quote(line)}"
    here = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(program.parent)}
    command = ["fish", "--no-config", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=program.parent, env=here)
    return run.stdout.split()


def take(said: Path) -> str:
    """The line in a file, as soon as it is there; the file is gone then."""
    for _ in range(2400):
        if said.exists() and (text := said.read_text()).endswith("\n"):
            said.unlink()
            return text.removesuffix("\n")
        time.sleep(0.05)
    raise AssertionError(f"nothing was written to {said}")


def complete_in_zsh(program: Path, line: str) -> str:
    """The line that zsh has after the key, typed at a terminal."""
    said = program.parent / "said"
    terminal, own_end = pty.openpty()
    here = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(program.parent), "TERM": "dumb"}
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=own_end, stdout=own_end, stderr=own_end, cwd=program.parent, env=here,
        start_new_session=True,
    )  # fmt: skip
    setup = (
        "autoload -Uz compinit && compinit -u -D; source <(lockstep completion zsh)\n"
        f"tell() {{ print -r -- \"$BUFFER\" > {said} }}; zle -N tell; bindkey '^X' tell; print ready > {said}\n"
    )
    os.write(terminal, setup.encode())
    try:
        take(said)
        os.write(terminal, f"{line}\t\x18".encode())
        return take(said)
    finally:
        shell.kill()
        shell.wait()
        os.close(own_end)
        os.close(terminal)


def need_shell(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("lockstep tra", ["train"]),
        ("~/lockstep doctor an", ["analyze"]),
        ("lockstep train ppo_ar", ["ppo_arithmetic"]),
        ("lockstep train ppo_arithmetic seed=1 sampler=v", ["sampler=vllm"]),
        ("lockstep train ppo_arithmetic ppo.gae_lambda_", ["ppo.gae_lambda_policy=", "ppo.gae_lambda_value="]),
        ("lockstep report ./tra", ["./traces/"]),
    ],
)
def test_fish_completes(program: Path, line: str, wanted: list[str]) -> None:
    need_shell("fish")
    (program.parent / "traces").mkdir()
    assert complete_in_fish(program, line) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("lockstep tra", "lockstep train "),
        ("~/lockstep doctor an", "~/lockstep doctor analyze "),
        ("lockstep train ppo_ar", "lockstep train ppo_arithmetic "),
        ("lockstep train ppo_gsm8k seed=1 sampler=v", "lockstep train ppo_gsm8k seed=1 sampler=vllm "),
        ("lockstep train ppo_arithmetic learner.dev", "lockstep train ppo_arithmetic learner.device="),
        ("lockstep report ./tra", "lockstep report ./traces/"),
    ],
)
def test_zsh_completes(program: Path, line: str, wanted: str) -> None:
    need_shell("zsh")
    (program.parent / "traces").mkdir()
    assert complete_in_zsh(program, line) == wanted


def test_what_is_completed_is_not_listed_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--", ""]) == 0
    listed = capsys.readouterr().out.split()
    assert {"train", "schema", "completion"} < set(listed)
    assert "complete" not in listed
    with pytest.raises(SystemExit):
        main(["--help"])
    words = capsys.readouterr().out.split()
    assert "completion" in words
    assert "complete" not in words


def test_a_key_pressed_runs_no_code_of_a_recipe(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "bad.py").write_text("open('ran', 'w').close()\n")
    (in_tmp / "own.yaml").write_text("algorithm: bad.py:Bad\n")
    (in_tmp / "rows.yaml").write_text("base: ppo_arithmetic\ndata: {task: {name: 'bad.py:Rows'}}\n")
    for recipe, key in (("own.yaml", "learn"), ("rows.yaml", "data.task.")):
        assert main(["complete", "--", "train", recipe, key]) == 0
    assert not (in_tmp / "ran").exists()
    assert capsys.readouterr().out.split() == ["learner.", "data.task.name="]
