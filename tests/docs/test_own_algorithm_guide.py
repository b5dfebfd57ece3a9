"""The guide shows the example's own lines, and its tables have all that there is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import lockstep.algorithms
from lockstep.algorithms import Algorithm, Job, Setup
from lockstep.config import Common
from lockstep.config.loading import load_recipe
from lockstep.report.log import read_metrics
from lockstep.run.train import train_recipe

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/custom_algorithm"
GUIDE = (ROOT / "docs/guides/own_algorithm.md").read_text()
EXAMPLE = (FOLDER / "reinforce.py").read_text()
MEDIAN = (FOLDER / "median.py").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
[STATE] = [block for block in BLOCKS if "def load" in block]
USED = (
    "self.average.update(float(reward_N.mean())); metrics += "
    "rl.Metrics(average=rl.Mean(self.average.value))"
)


def members(heading: str) -> set[str]:
    """The names in the first column of the table under a heading's first cell."""
    table = GUIDE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return {
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])
    }


def test_own_algorithm_guide_code_matches_example_files() -> None:
    shown = [
        block
        for block in BLOCKS
        if block.rstrip("\n") not in EXAMPLE and block.rstrip("\n") not in MEDIAN
    ]
    assert len(BLOCKS) == 9
    assert [block for block in shown if "lockstep.Trainer(" not in block] == [STATE]


def test_custom_algorithm_state_is_restored_on_resume(in_tmp: Path) -> None:
    """The example with the guide's state: stopped after a step and resumed, it logs what a whole
    run does.
    """
    (in_tmp / "rewards.py").write_text((FOLDER / "rewards.py").read_text())
    (in_tmp / "recipe.yaml").write_text((FOLDER / "recipe.yaml").read_text())
    changed = EXAMPLE
    for before, after in (
        ("from collections.abc", "import json\nfrom pathlib import Path\nfrom collections.abc"),
        ("        asked = self", "        average, asked = RewardAverage(), self"),
        ("collector, agreement),", "collector, agreement, average),"),
        ('"critic": critic}', '"critic": critic, "average": average}'),
        ("@dataclass(frozen=True)\nclass Step", f"{STATE}\n\n@dataclass(frozen=True)\nclass Step"),
        (
            "    agreement: rl.Agreement\n",
            "    agreement: rl.Agreement\n    average: RewardAverage\n",
        ),
        ("        samples =", f"        {USED}\n        samples ="),
    ):
        assert changed.count(before) == 1
        changed = changed.replace(before, after)
    (in_tmp / "reinforce.py").write_text(changed)

    def stop(step: int, values: Mapping[str, float]) -> None:
        raise RuntimeError("enough")

    short = [
        "num_prompts_per_step=8",
        "run.max_steps=2",
        "run.save_every=1",
        "run.validate_every=0",
    ]
    stopped = load_recipe("recipe.yaml", [*short, "run.folder=stopped"])
    with pytest.raises(RuntimeError, match="enough"):
        train_recipe(stopped, on_step=stop)
    resumed, whole = (
        read_metrics(train_recipe(run))
        for run in (stopped, load_recipe("recipe.yaml", [*short, "run.folder=whole"]))
    )
    assert resumed == whole
    first, second = (row["average"] for row in whole if "average" in row)
    assert 0 < first < second


def test_own_algorithm_guide_tables_list_every_public_member() -> None:
    declared = {name for name in vars(Algorithm) if not name.startswith("_")} - vars(Common).keys()
    assert members("member") == {name for name in declared if name not in Algorithm.model_fields}
    assert Algorithm.__abstractmethods__ < members("member")
    assert members("of the setup") == {name for name in vars(Setup) if not name.startswith("_")}
    assert members("of the job") == {field.name for field in dataclasses.fields(Job)}


@pytest.mark.parametrize("name", lockstep.algorithms.__all__)
def test_every_exported_algorithms_name_can_be_imported(name: str) -> None:
    assert lockstep.algorithms.__getattr__(name)
