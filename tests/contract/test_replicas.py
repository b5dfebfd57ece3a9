"""Samplers that die or hang: what is finished stays, and what is missing is made, with the same bits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from diary import SAMPLING, Start
from tiny_models import CONTEXT, SECTION, VOCABULARY, requests, responses
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerLost
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.worker_proxy import WorkerDied, spawn_worker
from lockstep.core.batch import Batch
from lockstep.weight_sync.sync import random_probe, sync_weights


def answered(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in (folder / "answered").read_text().split())


@pytest.mark.parametrize("count", [1, 2])
def test_after_a_death_only_what_is_missing_is_made(start: Start, tmp_path: Path, count: int) -> None:
    notes: list[str] = []
    replicas, wanted = start(replicas=count, notes=notes), requests()
    calm = replicas.generate(wanted, SAMPLING)
    (tmp_path / "answered").unlink()
    longest = max(wanted, key=lambda request: len(request.tokens))
    (tmp_path / f"doom-{longest.key}").touch()
    stormy = replicas.generate(wanted, SAMPLING)
    assert responses(stormy) == responses(calm)
    assert torch.equal(stormy["sampler_logprob"], calm["sampler_logprob"])
    assert replicas.restarts == 1
    assert "killed by SIGKILL; starting it again (1 of 3 times)" in notes[0]
    assert answered(tmp_path) == Counter(request.key for request in wanted)


@pytest.mark.full
def test_one_that_hangs_is_found_by_its_deadline(start: Start, tmp_path: Path) -> None:
    notes: list[str] = []
    replicas, wanted = start(signal.SIGSTOP, notes, timeout_s=10.0), requests()
    (tmp_path / f"doom-{wanted[3].key}").touch()
    batch = replicas.generate(wanted, SAMPLING)
    assert len(batch) == len(wanted)
    assert "took longer than 10 s over pieces" in notes[0]


def test_in_the_end_it_is_given_up(start: Start, tmp_path: Path) -> None:
    replicas, wanted = start(max_restarts=1), requests()
    for request in wanted[:2]:
        (tmp_path / f"doom-{request.key}").touch()
    with pytest.raises(SamplerLost, match=r"died in pieces: killed by SIGKILL; it is not .* sampler.max_restarts=1"):
        replicas.generate(wanted, SAMPLING)


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
def test_one_that_is_started_again_gets_the_newest_weights(
    start: Start, models: Callable[..., Path], tmp_path: Path, transfer: str
) -> None:
    replicas, wanted = start(replicas=2, transfer=transfer), requests()
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    sync_weights(learner, replicas, 7)
    (tmp_path / f"doom-{wanted[4].key}").touch()
    batch = replicas.generate(wanted, SAMPLING)
    assert replicas.restarts == 1
    assert batch["version"].tolist() == [7] * len(wanted)
    torch.testing.assert_close(batch["sampler_logprob"], learner.logprobs(batch), atol=1e-5, rtol=0.0)
    probe = random_probe(VOCABULARY, CONTEXT)
    assert sync_weights(learner, replicas, 8, probe).floats()["refit/probe_gap_max"] < 1e-5
    assert [scored.any() for scored in replicas.logprobs_of_each(probe.batch)] == [True, True]
    assert replicas.generate(wanted, SAMPLING)["version"].unique().tolist() == [8]


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
def test_a_death_during_a_refit_is_survived(start: Start, models: Callable[..., Path], transfer: str) -> None:
    replicas = start(replicas=2, transfer=transfer, timeout_s=30.0)
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    replicas.ready()
    pid = replicas.remotes[1].call("pid")

    class Slow:
        """Learner's weights, on whose way one of the receivers dies."""

        sender = None

        def weights(self) -> Iterator[tuple[str, Tensor]]:
            for number, pair in enumerate(learner.weights()):
                if number == 3 and replicas.restarts == 0:
                    os.kill(pid, signal.SIGKILL)
                yield pair

        def logprobs(self, batch: Batch) -> Tensor:
            return learner.logprobs(batch)

    metrics = sync_weights(Slow(), replicas, 3)
    assert replicas.restarts >= 1
    assert metrics.floats()["refit/version"] == 3
    batch = replicas.generate(requests(), SAMPLING)
    torch.testing.assert_close(batch["sampler_logprob"], learner.logprobs(batch), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
def test_a_learner_that_dies_during_a_refit_is_no_samplers_death(
    start: Start, models: Callable[..., Path], transfer: str
) -> None:
    replicas = start(replicas=2, transfer=transfer)
    remote = spawn_worker(LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build, "learner", 60.0)

    class Dying:
        """Its process is killed while its weights are on their way."""

        sender = None

        def weights(self) -> Iterator[tuple[str, Tensor]]:
            for number, pair in enumerate(remote.stream("weights")):
                if number == 3:
                    remote.close(at_once=True)
                yield pair

        def logprobs(self, batch: Batch) -> Tensor:
            return remote.call("logprobs", batch)

    with pytest.raises(WorkerDied, match="worker learner died in weights"):
        sync_weights(Dying(), replicas, 3)
    assert replicas.restarts == 0


def test_work_that_is_left_ends_its_workers(start: Start) -> None:
    replicas = start()
    pieces = replicas.blocks(enumerate([requests()] * 3), SAMPLING)
    next(pieces)
    pieces.close()
    assert threading.active_count() < 20
    assert len(replicas.generate(requests(), SAMPLING)) == 10


def test_workers_that_are_abandoned_are_not_started_again(start: Start, tmp_path: Path) -> None:
    notes, ends = list[str](), list[BaseException]()
    replicas, wanted = start(signal.SIGSTOP, notes, replicas=2), requests()
    (tmp_path / f"doom-{wanted[3].key}").touch()

    def generate() -> None:
        try:
            replicas.generate(wanted, SAMPLING)
        except SamplerLost as error:
            ends.append(error)

    waiting = threading.Thread(target=generate)
    waiting.start()
    while (tmp_path / f"doom-{wanted[3].key}").exists():
        time.sleep(0.01)
    replicas.abandon()
    waiting.join(30.0)
    assert not waiting.is_alive()
    assert [str(end).split("; ")[1] for end in ends] == ["it is not started again, since no one waits for it any more"]
    assert not any(remote.alive() for remote in replicas.remotes)
    assert notes == []
