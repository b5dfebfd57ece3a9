"""A run and its code, unpacked from an archive: nothing runs that the user has not trained with, or
does not trust.
"""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from tiny_recipe import RECIPE

from lockstep.cli import main
from lockstep.config import trust
from lockstep.config.loading import load_recipe
from lockstep.config.user_code import load_object as load_code
from lockstep.core.errors import InputError
from lockstep.run.train import train_recipe
from lockstep.system import guarded_imports

MINE = """
import helper

def score(prompt, response, answer, row):
    return helper.count(response)
"""
HELPER = "import code\n\ndef count(text):\n    return float(len(text))\n"
EVIL = "open({mark!r}, 'w').close()\n"
ALGORITHM = """
from pathlib import Path
import helper
from lockstep.algorithms.grpo.options import PolicyGradient

class Mine(PolicyGradient):
    pass
"""
ASKING = (
    "eval",
    "run",
    "rows.jsonl",
    "--out",
    "out",
    "sampling.num_samples=1",
    "sampling.max_tokens=2",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is packed: a finished run, and its code next to it."""
    folder = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.py").write_text(MINE)
        Path("helper.py").write_text(HELPER)
        Path("rows.jsonl").write_text('{"question": "2 + 3?", "answer": "5"}\n')
        tree = {**RECIPE, "reward": {"type": "python", "function": "mine.py:score", "marker": None}}
        Path("tiny.yaml").write_text(yaml.safe_dump(tree))
        train_recipe(load_recipe("tiny.yaml", ["run.max_steps=1", "run.folder=run"]))
    return folder


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive in another folder of this machine, and nothing trusted."""
    shutil.copytree(archive, tmp_path / "unpacked", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "unpacked")
    for name in (guarded_imports.TRUSTED, guarded_imports._GUARDED):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def elsewhere(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same on a machine where the code never ran."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(unpacked / "cache"))
    return unpacked


def plant(file: str, mark: Path, text: str = "") -> None:
    """Lets a file leave a mark where it is imported."""
    Path(file).write_text(EVIL.format(mark=str(mark)) + text)


def test_code_trained_with_on_this_machine_needs_no_trust_flag(unpacked: Path) -> None:
    assert main(ASKING) == 0


def test_code_that_never_ran_on_this_machine_is_refused_until_it_is_trusted(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ASKING) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "has not trained" in line]
    assert (
        "recipe.yaml: reward.function mine.py:score runs code that this machine has not trained "
        "with" in told
    )
    for file in ("mine.py", "helper.py"):
        assert str(elsewhere / "unpacked" / file) in told
    assert main([*ASKING, "--trust", "mine.py"]) == 2
    assert str(elsewhere / "unpacked/mine.py") not in capsys.readouterr().err
    assert main([*ASKING, "--trust", "mine.py", "helper.py"]) == 0


@pytest.mark.parametrize("file", ["mine.py", "helper.py"])
def test_changed_code_is_refused_and_does_not_run(
    file: str, unpacked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(file, unpacked / "mark", Path(file).read_text())
    assert main(ASKING) == 2
    told = capsys.readouterr().err
    assert f"{unpacked / 'unpacked' / file} (sha256" in told
    assert f"--trust {unpacked / 'unpacked' / file}" in told or "lockstep.trust(" in told
    assert not (unpacked / "mark").exists()


@pytest.mark.parametrize("name", ["code.py", "codeop.py", "code/__init__.py", "sitecustomize.py"])
def test_local_file_shadowing_standard_library_module_is_not_executed(
    name: str, unpacked: Path
) -> None:
    """The helper imports `code`, which imports `codeop`."""
    Path(name).parent.mkdir(exist_ok=True)
    plant(name, unpacked / "mark")
    assert main(ASKING) == (0 if name == "sitecustomize.py" else 2)
    assert not (unpacked / "mark").exists()


def test_planted_bytecode_for_known_code_is_not_executed(unpacked: Path) -> None:
    text, evil = HELPER.ljust(1000, "#"), EVIL.format(mark=str(unpacked / "mark")).ljust(1000, "#")
    for content in (evil, text):
        Path("helper.py").write_text(content)
        os.utime("helper.py", (1, 1))
        if content == evil:
            py_compile.compile("helper.py", importlib.util.cache_from_source("helper.py"))
    trust.note_run_here({"reward": {"function": "mine.py:score"}})
    assert main(ASKING) == 0
    assert not (unpacked / "mark").exists()


@pytest.mark.parametrize(
    "command", [("generate", "run", "rows.jsonl"), ("check", "run"), ("export", "run", "out")]
)
def test_unknown_algorithm_code_is_rejected_by_generate_check_and_export(
    command: tuple[str, ...], unpacked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("own.py", unpacked / "mark", ALGORITHM)
    recipe = Path("run/recipe.yaml").read_text()
    Path("run/recipe.yaml").write_text(recipe.replace("algorithm: ppo", "algorithm: own.py:Mine"))
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "algorithm own.py:Mine runs code that this machine has not trained with" in told
    assert str(unpacked / "unpacked/own.py") in told
    assert str(unpacked / "unpacked/helper.py") not in told  # which ran
    assert not (unpacked / "mark").exists()


def test_known_reward_cannot_dynamically_import_untrusted_module(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a plugin; trained with, it is imported, and for another command it has to be
    trusted.
    """
    Path("plain.py").write_text("import importlib\nf = importlib.import_module('hid' + 'den').f\n")
    plant("hidden.py", unpacked / "mark", "def f(): pass\n")
    trust.note_run_here({"reward": {"function": "plain.py:f"}})
    monkeypatch.setattr(sys, "path", [*sys.path])
    trust.require_known(Path("recipe.yaml"), "reward.function", "plain.py:f")
    with pytest.raises(
        InputError, match=r"hidden\.py would be imported by a run's code.* add --trust"
    ):
        load_code("plain.py:f", "reward.function", "function")
    assert not (unpacked / "mark").exists()


def test_installed_packages_within_a_guarded_folder_are_not_guarded(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a virtual environment in the project's folder."""
    project = Path.cwd()
    monkeypatch.setattr(sys, "path", [*sys.path, str(project / ".venv/lib")])
    monkeypatch.setenv("LOCKSTEP_GUARDED", json.dumps([str(project)]))
    (unpacked / "link").symlink_to(project)
    guarded = (project, project / "pack", unpacked / "link", unpacked / "link/pack")
    assert all(guarded_imports.is_guarded(str(folder)) for folder in guarded)
    assert not any(
        guarded_imports.is_guarded(str(folder))
        for folder in (project / ".venv/lib/torch", unpacked)
    )
    monkeypatch.setattr(sys, "path", [str(project), "/usr/lib/python3"])
    assert guarded_imports.split_path() == {
        "PYTHONPATH": "/usr/lib/python3",
        "LOCKSTEP_GUARDED_PATH": json.dumps([str(project)]),
    }
