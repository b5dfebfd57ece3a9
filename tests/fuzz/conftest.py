"""Folders that hostile inputs spoil, made once: a furnished one, and in it a finished run and a
finished evaluation.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_commands import run_command
from workspace import furnish

EVAL = """base: eval_gsm8k
learner: {device: cpu}
data: {prompt: "{question}\\n", max_prompt_tokens: 64, max_validation_samples: 3}
sampling: null
greedy: {max_tokens: 4}
"""


@pytest.fixture(scope="session")
def furnished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("furnished") / "here"
    folder.mkdir()
    furnish(folder)
    (folder / "eval.yaml").write_text(EVAL)
    return folder


@pytest.fixture(scope="session")
def run_once(furnished_once: Path) -> Path:
    folder = furnished_once.parent / "with_a_run"
    shutil.copytree(furnished_once, folder)
    for command in (
        "train tiny.yaml run.max_steps=3 run.save_every=1 run.keep=3",
        "eval model rows.jsonl --recipe eval.yaml --out out",
    ):
        ended = run_command(folder, command)
        assert ended.code == 0, ended.said
    return folder


@pytest.fixture
def here(furnished_once: Path, tmp_path: Path) -> Path:
    """A furnished folder of the test's own."""
    return Path(shutil.copytree(furnished_once, tmp_path / "here"))


@pytest.fixture
def with_a_run(run_once: Path, tmp_path: Path) -> Path:
    """One with a run of three steps in `run`, and an evaluation in `out`."""
    return Path(shutil.copytree(run_once, tmp_path / "here", symlinks=True))


Check = Callable[[Path, str, int, str], None]


@pytest.fixture(scope="session")
def refuses() -> Check:
    """Runs a command in a folder: it ends with this code, and says this, in one sentence where that
    is no success.
    """

    def check(folder: Path, command: str, code: int, says: str) -> None:
        ended = run_command(folder, command)
        assert ended.code == code, ended.said[-2_000:]
        assert "Traceback" not in ended.said
        assert says in ended.said, ended.said[-2_000:]
        assert len(ended.sentence) < 2_000
        assert "\x1b" not in ended.said

    return check
