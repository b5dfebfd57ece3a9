"""Samplers that die while nothing is generated, and what is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diary import SAMPLING, Start
from tiny_models import SECTION, requests

from lockstep.cluster.specs import LearnerSpec
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.weight_sync.sync import sync_weights


def shared_files() -> int:
    """Descriptors of shared memory that this process has open."""
    return sum(
        "lockstep-weights" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    )


def test_a_death_while_the_learner_trains_is_survived(start: Start, models: Callable[..., Path]) -> None:
    replicas = start()
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    engine = SamplerSession(replicas, learner)
    with engine.at(0):
        engine.generate(requests(), SAMPLING)
    pid = replicas.remotes[0].call("pid")
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.01)
    os.kill(pid, signal.SIGKILL)
    with engine.at(1):
        batch = engine.generate(requests(), SAMPLING)
    assert batch["version"].unique().tolist() == [1]
    torch.testing.assert_close(batch["sampler_logprob"], learner.logprobs(batch), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_several_that_is_gone_leaves_the_others_ready(start: Start, lost: int) -> None:
    replicas, wanted = start(replicas=2), requests()
    expected = replicas.generate(wanted, SAMPLING)
    victim = replicas.remotes[lost]
    os.kill(victim.call("pid"), signal.SIGKILL)
    while victim.alive():
        time.sleep(0.01)
    replicas.sleep()
    replicas.wake()
    assert replicas.restarts == 1
    assert torch.equal(replicas.generate(wanted, SAMPLING).tokens, expected.tokens)


def test_shared_memory_does_not_outlive_its_carrier(start: Start, models: Callable[..., Path], tmp_path: Path) -> None:
    before, wanted = shared_files(), requests()
    replicas = start(replicas=2)
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    sync_weights(learner, replicas, 7)
    once = shared_files() - before
    (tmp_path / f"doom-{wanted[4].key}").touch()
    replicas.generate(wanted, SAMPLING)
    sync_weights(learner, replicas, 8)
    assert shared_files() - before == once
