"""Standard streams on a full disk, and the encodings of files."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lockstep(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command by a shell, for its redirections."""
    command = f"{sys.executable} -m lockstep {words}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        ["sh", "-c", command], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["config nosuch", "train nosuch"])
def test_stderr_on_full_disk_does_not_change_exit_code(command: str) -> None:
    done = lockstep(f"{command} 2>/dev/full")
    assert (done.returncode, done.stdout) == (2, "")


def test_note_to_full_disk_does_not_end_program() -> None:
    program = (
        "import sys; from lockstep.system.unread import wrap_stream; sys.stderr = wrap_stream(sys.stderr); "
        "print('a note', file=sys.stderr); print('done')"
    )
    command = ["sh", "-c", f'{sys.executable} -c "{program}" 2>/dev/full']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_source_opens_every_text_file_with_explicit_encoding() -> None:
    packages = ("lockstep", "lockstep_logprobs", "lockstep_doctor")
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert [
        f"{path.relative_to(ROOT)}:{line}" for path in files for line in _find_unsaid(path)
    ] == []


def _find_unsaid(path: Path) -> Iterator[int]:
    """Lines that read or write text in the encoding of the locale."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Call) or any(
            word.arg in ("encoding", None) for word in node.keywords
        ):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        modes = [word.value for word in node.keywords if word.arg == "mode"]
        if name in ("open", "fdopen"):
            modes += node.args[
                0 if isinstance(node.func, ast.Attribute) and name == "open" else 1 :
            ][:1]
        said = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
        is_text = bool(said) and set(said[0]) <= set("rwax+t")
        is_text = is_text or (name == "read_text" and not node.args)
        is_text = is_text or (name == "write_text" and len(node.args) < 2)
        if is_text or (isinstance(node.func, ast.Name) and name == "open" and not modes):
            yield node.lineno
