"""Runs one step ahead, with samplers in processes of their own: what they log, and that they go on
exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import (
    assert_same,
    assert_same_run,
    final,
    killed_and_continued,
    killing,
    sampler_process,
)
from training import step_rows

from lockstep.cluster.worker_proxy import WorkerDied
from lockstep.report.log import read_metrics
from lockstep.run.stop import StoppedRun

Run = Callable[..., list[dict[str, Any]]]
AHEAD = ("ppo.one_step_ahead=true", "ppo.correction.kind=token_tis")
LONG = (
    *AHEAD,
    "run.max_steps=16",
    "run.save_every=100",
    "sampler.replicas=2",
    "sampler.max_batch_size=4",
)


def test_one_step_ahead_rollouts_are_one_step_stale_and_reward_rises(run: Run) -> None:
    rows = run(
        *AHEAD, "sampler.replicas=2", "run.max_steps=20", "policy.lr=0.015", "ppo.num_generations=4"
    )
    trained = step_rows(rows)
    assert [row["agreement/weights_age"] for row in trained] == [0.0] + [1.0] * 19
    assert [row["weight_sync/version"] for row in trained] == [0, *range(19)]
    assert not any(name.startswith("staleness/") for name in trained[0]), (
        "the first step is on-policy"
    )
    assert all(row["staleness/max_abs_logprob_diff"] > 1e-3 for row in trained[1:])
    assert all(0.0 < row["staleness/sequence_ess"] < 1.0 for row in trained[1:])
    assert all(row["staleness/sampler_kl_k3"] > 0.0 for row in trained[1:])
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-5 for row in trained), (
        "at the weights that sampled"
    )
    early, late = ([row["train/reward"] for row in part] for part in (trained[:5], trained[-5:]))
    assert sum(late) > sum(early) + 1.0


def test_one_step_ahead_resume_is_bit_identical_and_validation_leaves_weights_unchanged(
    run: Run,
) -> None:
    often = (*AHEAD, "run.max_steps=4", "run.validate_every=1")
    whole = run("run.folder=whole", *often)
    for _ in range(3):
        with pytest.raises(StoppedRun):
            run("run.folder=stopped", *often, "run.max_time_s=0.01", "run.save_every=3")
    assert run("run.folder=stopped", *often, "run.max_time_s=0.01", "run.save_every=3") == whole
    assert_same(final("stopped"), final("whole"))
    run("run.folder=seldom", *AHEAD, "run.max_steps=4")
    assert_same(final("seldom"), final("whole"))


@pytest.mark.proof
@pytest.mark.parametrize("kills", [12])
def test_one_step_ahead_run_killed_repeatedly_leaves_bit_identical_run_folder(
    run: Run, kills: int
) -> None:
    lasting = (*AHEAD, "sampler.replicas=2", f"run.max_steps={kills + 4}", "run.save_every=2")
    run("run.folder=whole", *lasting)
    killed_and_continued("killed", kills, lasting, random.Random(kills))
    assert_same_run("whole", "killed")


@pytest.mark.proof
def test_a_lost_sampler_ends_the_run_with_a_checkpoint(run: Run) -> None:
    run(*LONG, "run.folder=calm")
    lost = (*LONG, "run.folder=stormy", "cluster.max_restarts=0")
    with (
        killing("stormy", [5], sampler_process),
        pytest.raises(
            WorkerDied, match=r"the run was saved after step \d+; .* cluster.max_restarts=0"
        ),
    ):
        run(*lost)
    (saved,) = Path("stormy/checkpoints").glob("step_*")
    assert int(saved.name.removeprefix("step_")) >= 5
    run(*lost)
    assert_same(final("stormy"), final("calm"))
    assert [row["step"] for row in read_metrics(Path("stormy")) if "train/reward" in row] == list(
        range(1, 17)
    )


def test_one_step_ahead_dynamic_sampling_resumes_with_identical_metrics(run: Run) -> None:
    drawn = (
        *AHEAD,
        "ppo.dynamic_sampling={max_batches: 8}",
        "sampling.max_tokens=2",
        "run.max_steps=3",
    )
    whole = run("run.folder=whole", *drawn)
    with pytest.raises(StoppedRun):
        run("run.folder=stopped", *drawn, "run.max_time_s=0.01")
    assert run("run.folder=stopped", *drawn) == whole
    assert all(row["train/prompts_drawn"] >= 8 for row in whole if "train/reward" in row)


@pytest.mark.needs("vllm")
@pytest.mark.usefixtures("vllm")
@pytest.mark.proof
def test_vllm_one_step_ahead_resumes_with_checkpointed_sampler_weights(run: Run) -> None:
    engine = (*AHEAD, "sampler=vllm", "sampler.kv_cache_gib=0.05", "run.max_steps=3")
    with pytest.raises(StoppedRun):
        run(*engine, "run.max_time_s=0.01")
    trained = step_rows(run(*engine))
    assert [row["agreement/weights_age"] for row in trained] == [0.0, 1.0, 1.0]
    assert [row["weight_sync/version"] for row in trained] == [0, 0, 1]
    assert all(row["weight_sync/probe_gap_max"] < 1e-4 for row in trained), (
        "of the copies, also of those in the checkpoint"
    )
