"""Runs whose workers are actors of a Ray cluster, and runs whose learner is lost: the same
results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from killing import child_process, killing
from tiny_recipe import RECIPE, REWARDS
from training import train_rows
from workspace import furnish

from lockstep.cli import main
from lockstep.cluster.worker_proxy import WorkerDied
from lockstep.config.loading import load_recipe
from lockstep.run.train import train_recipe

Run = Callable[..., list[dict[str, Any]]]
RAY = "cluster=ray"


def rank() -> int | None:
    """The process of a rank: a child of this one, or an actor, which has no name of its own."""
    actors = [process.pid for process in psutil.process_iter(["cmdline"]) if _is_actor(process)]
    return child_process("value learner rank 1") or next(iter(actors), None)


def _is_actor(process: psutil.Process) -> bool:
    return any(part.startswith("ray::_Worker") for part in process.info["cmdline"] or ())


LONG = ("run.max_steps=9", "run.save_every=2", "learner.parallel.dp=2")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run logs of which nothing is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("undisturbed"))
        Path("rewards.py").write_text(REWARDS)
        Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))
        return train_rows("tiny.yaml", *LONG)


@pytest.mark.needs("gloo")
@pytest.mark.parametrize(
    "cluster", ["local", pytest.param("ray", marks=[pytest.mark.needs("ray"), pytest.mark.proof])]
)
def test_run_restarts_after_killed_rank_with_identical_metrics(
    run: Run,
    undisturbed: list[dict[str, Any]],
    cluster: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if cluster == "ray":
        request.getfixturevalue("ray")
    with killing("lost", [4], rank) as killed:
        rows = run("run.folder=lost", f"cluster={cluster}", *LONG)
    assert killed
    assert "resuming from the newest checkpoint (1 of 3 times)" in capfd.readouterr().err
    assert rows == undisturbed


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_rank_killed_with_max_restarts_0_ends_run_and_rerun_gives_same_metrics(
    run: Run, undisturbed: list[dict[str, Any]]
) -> None:
    with (
        killing("lost", [4], rank),
        pytest.raises(
            WorkerDied,
            match=r"killed by SIGKILL; the run is not restarted because cluster\.max_restarts=0$",
        ),
    ):
        run("run.folder=lost", "cluster.max_restarts=0", *LONG)
    assert run("run.folder=lost", "cluster.max_restarts=0", *LONG) == undisturbed


@pytest.mark.proof
def test_self_rewarding_on_ray_actors_picks_the_same_pairs(ray: None, in_tmp: Path) -> None:
    furnish(in_tmp)
    for folder, *options in (
        ("here",),
        ("there", RAY, "sampler.replicas=2", "learner.parallel.dp=2"),
    ):
        train_recipe(
            load_recipe(
                "judged.yaml",
                [
                    f"run.folder={folder}",
                    "run.max_steps=2",
                    "judge.max_no_verdict_rate=1",
                    *options,
                ],
            )
        )
    assert Path("here/samples.jsonl").read_bytes() == Path("there/samples.jsonl").read_bytes()


def test_generation_on_ray_replicas_is_identical_to_local_generation(
    ray: None, in_tmp: Path
) -> None:
    furnish(in_tmp)
    words = ["generate", "model", "rows.jsonl", "sampling.max_tokens=8", "learner.device=cpu"]
    words += ['data.prompt="{question}\\n"', "data.max_prompt_tokens=64"]
    assert main([*words, "--out", "here"]) == 0
    assert main([*words, "--out", "there", RAY, "sampler.replicas=2"]) == 0
    names = sorted(path.name for path in Path("here").iterdir() if path.suffix == ".jsonl")
    assert names
    assert all(
        (Path("here") / name).read_bytes() == (Path("there") / name).read_bytes() for name in names
    )


@pytest.mark.proof
@pytest.mark.needs("vllm")
def test_doctor_on_ray_measures_both_backends(ray: None, in_tmp: Path) -> None:
    furnish(in_tmp)
    words = "doctor quick model data.prompts=rows.jsonl backends=[torch,vllm] run.folder=there"
    assert main([*words.split(), 'data.prompt="{question}\\n"', RAY]) in (0, 3)
    assert json.loads(Path("there/report.json").read_text())["refused"] == []


def test_ray_cluster_with_too_few_cpus_is_rejected_with_counts(ray: None, run: Run) -> None:
    with pytest.raises(
        ValueError,
        match=r"has no room for 1 workers with 99 CPUs each \(it has 16 CPUs\), and none became",
    ):
        run(RAY, "cluster.ray.cpus_per_worker=99", "cluster.ray.timeout_s=1")


def test_ray_listens_only_on_loopback(ray: None) -> None:
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    listening = [
        c
        for c in psutil.net_connections("inet")
        if c.status == psutil.CONN_LISTEN and c.pid in ours
    ]
    assert len(listening) >= 4
    assert {c.laddr.ip for c in listening if c.laddr} <= {
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
    }
