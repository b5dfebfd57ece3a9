"""An algorithm outside of Lockstep has all that those inside have, for what it declares.

It is `examples/custom_algorithm`, in a folder of its own, as a user would run it there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from training import train_rows
from transformers import AutoModelForCausalLM

from lockstep.cli import main
from lockstep.config import registry
from lockstep.report.log import read_metrics

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/custom_algorithm"
SHORT = ("num_prompts_per_step=16", "run.save_every=1", "run.validate_every=0")


@pytest.fixture
def example(in_tmp: Path) -> Path:
    """Its files, in the working folder."""
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, in_tmp)
    return in_tmp


def lockstep(*arguments: str) -> list[str]:
    """As a user calls it: `-P` keeps the working folder out of Python's path, as the installed
    command does.
    """
    return [sys.executable, "-P", "-m", "lockstep", *arguments]


def test_custom_algorithm_learns_and_can_be_reported_and_exported(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "recipe.yaml", "run=run"]) == 0
    rows = read_metrics(Path("run"))
    held_out = {row["step"]: row["validation/reward"] for row in rows if "validation/reward" in row}
    assert held_out[0] < 0.2
    assert held_out[40] > 0.6
    assert all(
        row["critic/grad_norm"] > 0 for row in rows if row["step"] and "critic/grad_norm" in row
    )
    assert {path.name for path in Path("run/checkpoints/step_000040").iterdir()} >= {
        "policy",
        "critic",
    }
    assert main(["report", "run"]) == 0
    assert b"uPlot" in Path("run/report.html").read_bytes()
    assert main(["export", "run", "exported", "--checkpoint", "40"]) == 0
    assert AutoModelForCausalLM.from_pretrained("exported").config.hidden_size == 64
    header = Path("exported/README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(header)["tags"] == ["lockstep", "reinforce.py:Reinforce"]


def test_dry_run_of_custom_algorithm_reports_rows_and_creates_no_run(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "recipe.yaml", "--dry-run", "run=run"]) == 0
    told = capsys.readouterr().out
    assert "1 optimizer step of 64 responses" in told
    assert not Path("run").exists()


def test_plan_reports_memory_of_custom_algorithm_policy_and_critic(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "recipe.yaml", "--gpus", "2", "--memory", "80GB"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^policy +[\d.]+ MB per rank", told, re.MULTILINE)
    assert re.search(r"^critic +[\d.]+ MB per rank", told, re.MULTILINE)


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_custom_algorithm_on_two_ranks_matches_one_rank_metrics(example: Path) -> None:
    """The loss is of a class that is in the user's file alone, and every rank is sent it."""
    one, two = (
        train_rows(
            "recipe.yaml", *SHORT, "run.max_steps=3", f"learner.parallel.dp={dp}", f"run=dp{dp}"
        )
        for dp in (1, 2)
    )
    assert [row["step"] for row in two] == [row["step"] for row in one]
    for name in (
        "policy/loss",
        "policy/grad_norm",
        "critic/loss",
        "critic/grad_norm",
        "train/reward",
    ):
        ones, twos = ([row[name] for row in rows if name in row] for rows in (one, two))
        assert len(ones) == 3
        assert twos == pytest.approx(ones, rel=1e-3, abs=1e-5)


def forget(name: str) -> None:
    """Takes a property or a method out of the class."""
    text = Path("reinforce.py").read_text()
    found = re.search(
        rf"(    @property\n)?    def {name}\(self.*?(?=\n    @property|\n    def |\n\n\n)",
        text,
        re.DOTALL,
    )
    assert found is not None
    Path("reinforce.py").write_text(text.replace(found[0], ""))


def test_algorithm_with_missing_declarations_is_rejected_with_their_names(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget("models")
    forget("open")
    assert main(["train", "recipe.yaml"]) == 2
    told = capsys.readouterr().err
    assert (
        "algorithm reinforce.py:Reinforce: reinforce.py:Reinforce does not declare: models, open"
        in told
    )
    assert "Traceback" not in told


def test_algorithm_file_is_reloaded_after_folder_change_or_edit(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = registry.find_algorithm("reinforce.py:Reinforce")
    assert registry.find_algorithm("./reinforce.py:Reinforce") is here
    Path("other").mkdir()
    shutil.copy("reinforce.py", "other/reinforce.py")
    monkeypatch.chdir("other")
    other = registry.find_algorithm("reinforce.py:Reinforce")
    assert other is not here
    with Path("reinforce.py").open("a") as file:
        file.write("\n# changed\n")
    assert registry.find_algorithm("reinforce.py:Reinforce") is not other


@pytest.mark.full
def test_algorithm_from_installed_package_trains_and_is_recorded(example: Path) -> None:
    site = Path("site")
    (site / "baselines").mkdir(parents=True)
    shutil.move("reinforce.py", site / "baselines/reinforce.py")
    (site / "baselines/__init__.py").touch()
    environment = {
        "PYTHONPATH": f"{site.resolve()}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            lockstep(*arguments), capture_output=True, text=True, check=False, env=environment
        )

    trained = run(
        "train",
        "recipe.yaml",
        "algorithm=baselines.reinforce:Reinforce",
        *SHORT,
        "run.max_steps=2",
        "run.folder=run",
    )
    assert trained.returncode == 0, trained.stderr
    assert (
        yaml.safe_load(Path("run/recipe.yaml").read_text())["algorithm"]
        == "baselines.reinforce:Reinforce"
    )
    assert '"code.algorithm"' in Path("run/checkpoints/step_000002/manifest.json").read_text()
