"""Runs whose samplers live in processes of their own: the same results, and what happens when one
of them dies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import assert_same, final, killing, sampler_process
from training import step_rows

Run = Callable[..., list[dict[str, Any]]]
LONG = ("run.max_steps=40", "run.save_every=100", "sampler.replicas=2", "sampler.max_batch_size=4")


@pytest.mark.parametrize(
    ("transfer", "dp"),
    [
        pytest.param("shared_memory", 1, marks=pytest.mark.proof),
        ("process_group", 1),
        ("shared_memory", 2),
    ],
)
def test_remote_samplers_agree_with_learner_and_attest_all_weights(
    run: Run, transfer: str, dp: int
) -> None:
    rows = run(
        "sampler.replicas=2",
        f"sampler.transfer={transfer}",
        "sampler.max_batch_size=4",
        f"learner.parallel.dp={dp}",
    )
    trained = step_rows(rows)
    assert [row["weight_sync/version"] for row in trained] == [0, 1]
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-5 for row in trained)
    assert all(row["agreement/weights_age"] == 0 for row in trained)
    assert all(row["weight_sync/read_whole"] == row["weight_sync/attested"] for row in trained)


@pytest.mark.full
def test_run_with_killed_samplers_resumes_to_bit_identical_weights(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*LONG, "run.folder=calm")
    with killing("stormy", [5, 12], sampler_process) as victims:
        run(*LONG, "run.folder=stormy")
    assert len(set(victims)) == 2
    assert_same(final("stormy"), final("calm"))
    told = capsys.readouterr().err
    assert "killed by SIGKILL; the run was saved after step" in told
    assert "resuming from the newest checkpoint in 1 s (2 of 3 times)" in told


@pytest.mark.full
@pytest.mark.needs("vllm")
@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.proof)])
def test_vllm_run_restarts_after_killed_engine_and_logs_every_step(
    run: Run, capsys: pytest.CaptureFixture[str], kills: int
) -> None:
    after = [3 * kill for kill in range(1, kills + 1)]
    with killing("run", after, sampler_process) as victims:
        rows = run(
            "sampler=vllm",
            "sampler.kv_cache_gib=0.05",
            f"cluster.max_restarts={kills}",
            f"run.max_steps={after[-1] + 3}",
        )
    trained = step_rows(rows)
    assert [row["step"] for row in trained] == list(range(1, after[-1] + 4))
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-4 for row in trained)
    assert all(row["weight_sync/probe_gap_max"] < 1e-4 for row in trained)
    assert [row["weight_sync/version"] for row in trained] == list(range(after[-1] + 3))
    told = capsys.readouterr().err
    assert len(victims) == kills
    assert f"({kills} of {kills} times)" in told


def test_separately_placed_engine_runs_in_own_process_with_identical_samples(run: Run) -> None:
    """Also where it could share the learner's weights in its process."""
    run("run.folder=here", "run.max_steps=12")
    with killing("apart", [2], sampler_process) as victims:
        run("run.folder=apart", "run.max_steps=12", "cluster.placement=separate")
    assert len(victims) == 1
    assert Path("here/samples.jsonl").read_bytes() == Path("apart/samples.jsonl").read_bytes()
