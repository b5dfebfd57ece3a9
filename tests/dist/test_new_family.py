"""A family is one file and its name: with the guide's, ranks share a Mistral, and Megatron computes
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

pytestmark = pytest.mark.full

ROOT = Path(lockstep.__file__).parent.parent
GUIDE = (ROOT / "docs/guides/add_a_model.md").read_text(encoding="utf-8")
PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path
import lockstep
from tiny_models import ARCHITECTURES, SECTION, model_folder, ragged
from lockstep.config import Parallel
from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec

def main():
    ARCHITECTURES["mistral"] = {"model_type": "mistral", "sliding_window": None}
    alone = LearnerSpec(str(model_folder(Path("models"), "mistral")), "logits", SECTION, None, seed=0)
    batch = ragged([9, 30, 4, 17])
    gaps, wanted = {}, alone.build().logprobs(batch)
    for backend, tp in (("torch", 2), ("megatron", 1)):
        section = SECTION.model_copy(update={"backend": backend, "parallel": Parallel(tp=tp)})
        many = launch_learner(replace(alone, section=section), timeout_s=400.0)
        gaps[backend] = float((many.logprobs(batch) - wanted).abs().max())
        many.close()
    print(json.dumps({"from": lockstep.__file__, "gaps": gaps, "least": float(wanted.min())}))

if __name__ == "__main__":
    main()
"""


def install(into: Path) -> None:
    """Copies the package, and adds the guide's file and its name."""
    for package in ("lockstep", "lockstep_logprobs"):
        shutil.copytree(
            ROOT / package, into / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    folder = into / "lockstep/models/families"
    (folder / "mistral.py").write_text(
        GUIDE.partition("```python\n")[2].partition("```")[0], encoding="utf-8"
    )
    registry = (folder / "registry.py").read_text(encoding="utf-8")
    line = '    "llama",\n'
    assert registry.count(line) == 1
    (folder / "registry.py").write_text(
        registry.replace(line, f'{line}    "mistral",\n'), encoding="utf-8"
    )


def compute(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program with the copy, in the copy's folder."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests/fixtures")])}
    command = [sys.executable, "program.py"]
    return subprocess.run(
        command, cwd=folder, env=os.environ | paths, capture_output=True, text=True
    )


@pytest.mark.full
@pytest.mark.needs("gloo")
@pytest.mark.needs("megatron")
@pytest.mark.usefixtures("megatron")
def test_model_family_from_guide_matches_reference_on_torch_and_megatron(tmp_path: Path) -> None:
    install(tmp_path)
    ended = compute(tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert Path(found["from"]).is_relative_to(tmp_path)
    assert found["least"] < -1
    assert found["gaps"] == pytest.approx({"torch": 0.0, "megatron": 0.0}, abs=1e-5)
