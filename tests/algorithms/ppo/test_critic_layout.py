"""A critic with a layout of its own: the same curve and certificate, exact resumes, and what does
not go together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from killing import contents
from safetensors import safe_open
from tiers import full
from training import assert_alike

from lockstep.cli import main
from lockstep.monitor.agreement import ExactnessCertificate
from lockstep.report.log import read_metrics
from lockstep.run.stop import StoppedRun

Run = Callable[..., list[dict[str, Any]]]
THREE = ("run.max_steps=3", "run.keep=3")
CUT = ("learner.parallel.dp=2", "critic.parallel.tp=2")
ROWS, COLUMNS = [16, 32], [32, 16]
"""Shapes of a rank's part of a matrix that maps heads to states, [32, 32]: cut by dp, and by tp."""


def part(folder: str, role: str, step: int = 3) -> list[int]:
    """The shape in which the first rank of a role wrote that matrix."""
    file = Path(folder) / f"checkpoints/step_{step:06d}/{role}/model-00001-of-00002.safetensors"
    with safe_open(file, "pt") as written:
        [name] = [name for name in written.keys() if name.endswith("o_proj.weight")]  # noqa: SIM118
        return written.get_slice(name).get_shape()


def certificate(folder: str) -> dict[str, Any]:
    """What a run's certificate counts, without times and files."""
    found = json.loads(Path(folder, "certificate.json").read_text())
    return {field.name: found[field.name] for field in fields(ExactnessCertificate)}


@pytest.mark.needs("gloo")
@pytest.mark.parametrize(
    ("layouts", "policy", "critic"),
    [(("learner.parallel.tp=2", "critic.parallel.dp=2"), COLUMNS, ROWS), full(CUT, ROWS, COLUMNS)],
    ids=["tp and dp", "dp and tp"],
)
def test_separate_layouts_match_metrics_and_certificate_of_single_process(
    run: Run, layouts: tuple[str, ...], policy: list[int], critic: list[int]
) -> None:
    one = run("run.folder=one", *THREE)
    two = run("run.folder=two", *THREE, *layouts)
    assert_alike(two, one)
    alone, over_ranks = map(certificate, ("one", "two"))
    assert alone == over_ranks
    assert alone["level"] == "E2"
    assert (part("two", "policy"), part("two", "critic")) == (policy, critic)


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_separate_critic_layout_resumes_bit_identically_and_in_other_layouts(
    run: Run, in_tmp: Path
) -> None:
    whole = run("run.folder=whole", *THREE, *CUT)
    for folder in ("stopped", "moved"):
        with pytest.raises(StoppedRun):
            run(f"run.folder={folder}", *THREE, *CUT, "run.max_time_s=0.01")
    assert run("run.folder=stopped", *THREE, *CUT) == whole
    both = contents("whole"), contents("stopped")
    weights = [name for name in both[0] if name.endswith(".safetensors")]
    assert any("critic/optimizer" in name for name in weights)
    assert [name for name in weights if both[0][name] != both[1][name]] == []
    moved = ("run.folder=moved", *THREE, "learner.parallel.tp=2", "critic.parallel.dp=2")
    with pytest.raises(ValueError, match=r"recipe\.critic\.parallel\.dp was 1, is 2"):
        run(*moved)
    assert main(["train", "tiny.yaml", *moved, "--allow-changes"]) == 0
    assert_alike(read_metrics(Path("moved")), whole)
    assert (part("moved", "critic", step=1), part("moved", "critic")) == (COLUMNS, ROWS)


@pytest.mark.full
@pytest.mark.needs("megatron")
@pytest.mark.usefixtures("megatron")
def test_megatron_pipeline_policy_and_data_parallel_critic_match_torch_metrics(run: Run) -> None:
    options = ("model.scratch.config.num_hidden_layers=2", "agreement.exact=false", *THREE)
    theirs = run("run.folder=torch", *options)
    layouts = ("learner.parallel.pp=2", "critic.parallel.dp=2")
    ours = run("run.folder=megatron", "learner=megatron", *layouts, *options)
    for one, other in zip(ours, theirs, strict=True):
        for name in {
            "policy/loss",
            "policy/grad_norm",
            "critic/loss",
            "critic/grad_norm",
            "train/reward",
        } & one.keys():
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-7), name
    parts = {
        role: list(Path(f"megatron/checkpoints/step_000003/{role}").glob("model*"))
        for role in ("policy", "critic")
    }
    assert {role: len(files) for role, files in parts.items()} == {"policy": 2, "critic": 1}, (
        "copies are written once"
    )


def test_dry_run_reports_both_layouts_and_rejects_indivisible_critic_tp(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny.yaml", "--dry-run", *CUT]) == 0
    said = capsys.readouterr().out
    assert "2 ranks: dp 2 · tp 1 · cp 1 (critic: dp 1 · tp 2 · cp 1)" in said
    uneven = "model.scratch.config.num_key_value_heads=1"
    assert main(["train", "tiny.yaml", "--dry-run", *CUT, uneven]) != 0
    assert (
        "critic.parallel.tp is 2, but the model's num_key_value_heads (1)"
        in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match=r"critic\.parallel\.tp is 2, but"):
        run(*CUT, uneven)
