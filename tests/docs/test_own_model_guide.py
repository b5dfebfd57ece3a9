"""The guide's own class is trained, resumed, evaluated and exported by the guide's own commands,
and by no others.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_recipe import RECIPE, REWARDS

from lockstep.algorithms.rows import data_files
from lockstep.cli import main
from lockstep.config.loading import load_recipe
from lockstep.models.source import scratch_tokenizer
from lockstep.report.log import read_metrics

GUIDE = (Path(__file__).parents[2] / "docs/guides/own_model.md").read_text(encoding="utf-8")
MODEL, MAKE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
FILE = "my_model/modeling_sandwich.py"
TRUST = ("--trust", FILE)


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def lockstep(*words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "lockstep", *words)


@pytest.fixture
def made(in_tmp: Path) -> Path:
    """A folder with the guide's files, and a recipe that trains its model."""
    (in_tmp / "modeling_sandwich.py").write_text(MODEL)
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "first.yaml").write_text(yaml.safe_dump(RECIPE))
    first = load_recipe("first.yaml").training_recipe
    scratch_tokenizer(
        first, data_files(first.data, in_tmp / "rows").demonstrations
    ).save_pretrained("tokenizer")
    (in_tmp / "make_model.py").write_text(MAKE.replace("TOKENIZER", "tokenizer"))
    assert python("make_model.py").returncode == 0
    (in_tmp / "modeling_sandwich.py").unlink()
    recipe = {**RECIPE, "model": {"path": "my_model"}}
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    (in_tmp / "questions.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    return in_tmp


@pytest.mark.full
def test_custom_model_class_is_trained_only_if_trusted(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny.yaml"]) == 2
    refusal = capsys.readouterr().err
    assert (
        f"'sandwich' in custom Python code, which is not trusted: {made / FILE} (sha256 " in refusal
    )
    assert "if you have read it and trust it: " in refusal
    assert not (made / "run").exists()

    # in processes of their own, too
    trained = lockstep("train", "tiny.yaml", "sampler.replicas=2", *TRUST)
    assert trained.returncode == 0, trained.stderr
    assert f"note: the model in my_model runs {made / FILE} (sha256 " in trained.stderr
    steps = [row for row in read_metrics(made / "run") if "agreement/token_mult_prob_error" in row]
    assert len(steps) == 2

    assert (made / "run/final/modeling_sandwich.py").read_text() == MODEL
    assert "trust_remote_code=True" in (made / "run/final/README.md").read_text()
    assert lockstep("eval", "run", "questions.jsonl", *TRUST).returncode == 0

    with (made / FILE).open("a") as file:
        file.write("# another\n")
    shutil.rmtree("run/final")  # or the run is finished, and reads no model
    assert main(["train", "tiny.yaml", "sampler.replicas=2", *TRUST]) == 2
    assert "model.modeling_sandwich.py was " in capsys.readouterr().err
