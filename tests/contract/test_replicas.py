"""Samplers in processes of their own that die or hang: the error names them, and nothing is left
behind.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from diary import SAMPLING, Start
from tiny_models import SECTION, requests
from torch import Tensor

from lockstep.cluster.placement import ProcessPlace
from lockstep.cluster.sampler_pool import SamplerLost
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.worker_proxy import WorkerDied
from lockstep.cluster.workers import HERE
from lockstep.weight_sync.sync import sync_weights


def shared_files() -> int:
    """Descriptors of shared memory that this process has open."""
    return sum(
        "lockstep-weights" in str(link.readlink())
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink()
    )


def test_sampler_death_raises_after_finished_blocks_are_delivered(
    start: Start, tmp_path: Path
) -> None:
    pool, wanted = start(), requests()
    blocks = pool.generate_blocks(enumerate([wanted[:4], wanted[4:]]), SAMPLING)
    number, batch = next(blocks)
    assert (number, len(batch)) == (0, 4)
    (tmp_path / f"doom-{wanted[5].key}").touch()
    with pytest.raises(SamplerLost, match=r"^worker sampler 1 died in pieces: killed by SIGKILL$"):
        next(blocks)


@pytest.mark.full
def test_hung_sampler_raises_sampler_lost_after_timeout(start: Start, tmp_path: Path) -> None:
    pool, wanted = start(signal.SIGSTOP, timeout_s=10.0), requests()
    pool.wait_until_ready()
    (tmp_path / f"doom-{wanted[3].key}").touch()
    with pytest.raises(SamplerLost, match=r"took longer than 10 s for pieces"):
        pool.generate(wanted, SAMPLING)


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
def test_sampler_death_in_weight_sync_raises_sampler_lost_and_clears_version(
    start: Start, models: Callable[..., Path], transfer: str
) -> None:
    pool = start(replicas=2, transfer=transfer, timeout_s=30.0)
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    sync_weights(learner, pool, 2)
    pid = pool.remotes[1].call("pid")

    def weights() -> Iterator[tuple[str, Tensor]]:
        for number, pair in enumerate(learner.weights()):
            if number == 3:
                os.kill(pid, signal.SIGKILL)
            yield pair

    assert pool.version == 2
    with pytest.raises(SamplerLost, match=r"worker sampler 2 died"):
        pool.load_weights(weights(), 3)
    assert pool.version is None


def test_learner_death_in_weight_sync_is_not_reported_as_sampler_lost(
    start: Start, models: Callable[..., Path]
) -> None:
    pool = start(replicas=2)
    spec = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0)
    remote = HERE.start_worker(spec.build, "learner", 60.0, ProcessPlace(0, (0,), 0, on_gpu=False))

    def weights() -> Iterator[tuple[str, Tensor]]:
        for number, pair in enumerate(remote.stream("weights")):
            if number == 3:
                remote.close(at_once=True)
            yield pair

    with pytest.raises(WorkerDied, match="worker learner died in weights") as caught:
        pool.load_weights(weights(), 3)
    assert not isinstance(caught.value, SamplerLost)


def test_sampler_pool_generates_after_block_iterator_is_closed_early(start: Start) -> None:
    pool = start()
    others = threading.active_count()
    blocks = pool.generate_blocks(enumerate([requests()] * 3), SAMPLING)
    next(blocks)
    blocks.close()
    assert threading.active_count() < others + 20
    assert len(pool.generate(requests(), SAMPLING)) == 10


def test_abandoning_sampler_pool_ends_its_pending_generate_call(
    start: Start, tmp_path: Path
) -> None:
    ends = list[BaseException]()
    pool, wanted = start(signal.SIGSTOP, replicas=2), requests()
    (tmp_path / f"doom-{wanted[3].key}").touch()

    def generate() -> None:
        try:
            pool.generate(wanted, SAMPLING)
        except SamplerLost as error:
            ends.append(error)

    waiting = threading.Thread(target=generate)
    waiting.start()
    while (tmp_path / f"doom-{wanted[3].key}").exists():
        time.sleep(0.01)
    pool.end_workers()
    waiting.join(30.0)
    assert not waiting.is_alive()
    assert len(ends) == 1
    assert not any(remote.is_alive() for remote in pool.remotes)


def test_repeated_weight_sync_opens_no_more_shared_memory_files(
    start: Start, models: Callable[..., Path]
) -> None:
    before, pool = shared_files(), start(replicas=2)
    learner = LearnerSpec(str(models("llama", seed=1)), "logits", SECTION, None, 0).build()
    sync_weights(learner, pool, 7)
    once = shared_files() - before
    sync_weights(learner, pool, 8)
    assert shared_files() - before == once
