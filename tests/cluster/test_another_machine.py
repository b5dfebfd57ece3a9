"""Ranks of another machine, with mounts, processes and a network of its own: the results of one
machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import two_machines
import yaml
from tiny_recipe import GRPO, REWARDS

from lockstep.config.loading import load_recipe
from lockstep.run.train import train_recipe

pytestmark = [pytest.mark.full, *map(pytest.mark.needs, ("namespaces", "gloo", "ray"))]
RAY = "cluster=ray"
RANKS = "learner.parallel.dp=2"
AHEAD = ("grpo.one_step_ahead=true", "grpo.correction.kind=token_tis", RANKS)
OF_A_FOLDER = ("model.scratch=null", "model.path=grpo_there/final")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two machines beside the same run of one, and with what the former
    printed.
    """
    obstacle = two_machines.find_obstacle()
    if obstacle is not None:
        pytest.skip(f"needs namespaces: {obstacle}")
    folder = tmp_path_factory.mktemp("shared")
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "grpo.yaml").write_text(yaml.safe_dump(GRPO))
    there = [
        ("grpo.yaml", ["run.folder=grpo_there", RAY, *AHEAD]),
        ("grpo.yaml", ["run.folder=/mnt/unshared", *OF_A_FOLDER, RAY, *AHEAD]),
    ]
    machines = two_machines.start(folder, there, folder / "said.txt")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            train_recipe(load_recipe("grpo.yaml", ["run.folder=grpo_here", *AHEAD]))
        machines.wait(two_machines.DEADLINE_S)
    finally:
        machines.kill()
        machines.wait()
    return folder


def test_ranks_on_two_machines_give_bit_identical_samples_and_weights(runs: Path) -> None:
    here, there = runs / "grpo_here", runs / "grpo_there"
    assert (there / "final").is_dir(), (runs / "said.txt").read_text(errors="replace")
    for name in ("samples.jsonl", "final/model.safetensors"):
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_run_folder_missing_on_a_machine_is_rejected(runs: Path) -> None:
    said = (runs / "said.txt").read_text(errors="replace")
    assert (
        "REFUSED run.folder is /mnt/unshared, where ranks write checkpoints, but the machine "
        "of logits learner rank"
    ) in said
