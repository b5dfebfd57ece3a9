"""Two ranks over gloo against one process, and what happens when a rank dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, WeightedLogprob, over, ragged

from lockstep.cluster.child_process import ChildProcess
from lockstep.cluster.learner_group import MeshLearner, RankSender, launch_learner
from lockstep.cluster.sampler_pool import SamplerLost, SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.worker_proxy import WorkerDied
from lockstep.config import SamplerSection
from lockstep.learners.base import copy_weights, train
from lockstep.losses.kto import KTOLoss
from lockstep.objectives.kto import estimate_reference_point
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.fingerprints import fingerprint_tensor
from lockstep.weight_sync.outgoing import OutgoingWeights, SentFingerprint, choose_sent_dtype

pytestmark = pytest.mark.needs("gloo")
LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)


@pytest.fixture(scope="module")
def spec(models: Callable[..., Path]) -> LearnerSpec:
    return LearnerSpec(str(models("qwen3")), "logits", SECTION, OPTIMIZER, seed=0)


@pytest.fixture(scope="module")
def two(spec: LearnerSpec) -> Iterator[MeshLearner]:
    learner = launch_learner(over(spec, dp=2), timeout_s=400.0)
    yield learner
    learner.close()


def kill(name: str) -> None:
    """Kills a worker by its name."""
    pid = next(child.pid for child in multiprocessing.active_children() if child.name == name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill_soon(learner: MeshLearner, rank: int) -> None:
    """Stops a rank at once, so that the others wait for it, and kills it soon after."""
    # not by its name, which ranks of other learners have, too
    process = learner.ranks[rank]._transport
    assert isinstance(process, ChildProcess)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()


def test_kto_on_two_ranks_matches_one_process(
    two: MeshLearner, spec: LearnerSpec, tmp_path: Path
) -> None:
    """With KTO's reference point, which is of the whole batch."""
    two.save(tmp_path)
    assert two.poll_save(wait=True)
    one = spec.build()
    one.load(tmp_path)
    batch = ragged(LENGTHS, 5)
    mask = batch.mask | (batch.position == 0)
    column = torch.full((len(mask),), -9.0)
    batch = batch.with_columns(
        {"mask": mask, "ref_logprob": column}, {"desirable": torch.arange(len(batch)) % 3 > 0}
    )
    ratios = [(learner.logprobs(batch) + 9.0) * mask for learner in (one, two)]
    points = [estimate_reference_point(batch.per_sample(ratio_N)) for ratio_N in ratios]
    assert points[0] > 0
    assert points[1] == pytest.approx(points[0], rel=1e-5)
    loss = KTOLoss(0.1, (1.0, 2.0), points[0])
    alone, together = (train(learner, batch, loss).floats() for learner in (one, two))
    assert together == pytest.approx(alone, rel=1e-5)
    expected = dict(one.weights())
    for name, tensor in two.weights():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0.0)


def test_two_ranks_match_one_process_when_a_rank_has_no_rows(
    two: MeshLearner, spec: LearnerSpec, tmp_path: Path
) -> None:
    two.save(tmp_path)
    assert two.poll_save(wait=True)
    one, batch = spec.build(), ragged((15,))
    one.load(tmp_path)
    torch.testing.assert_close(two.logprobs(batch), one.logprobs(batch), atol=1e-6, rtol=0.0)
    for learner in (one, two):
        train(learner, batch, WeightedLogprob())
    expected = dict(one.weights())
    for name, tensor in two.weights():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0.0)


def test_hand_over_copies_weights_and_removes_its_folder(
    two: MeshLearner, spec: LearnerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is named as seen from the command's working directory, and may hold what a killed
    process has left.
    """
    monkeypatch.chdir(tmp_path)
    folder, one = Path("handed_over"), spec.build()
    folder.mkdir()
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"half of it")
    train(two, ragged(LENGTHS), WeightedLogprob())
    copy_weights(two, one, folder)
    assert list(tmp_path.iterdir()) == []
    expected = dict(two.weights())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in one.weights())


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_sent_by_two_ranks_have_fingerprints_of_full_weights(
    two: MeshLearner, models: Callable[..., Path], transfer: str, dtype: torch.dtype
) -> None:
    """In the engine's type: fingerprints of what ranks cast in parts, or before they gather, are
    those of the whole.
    """
    section = SamplerSection.model_validate({"replicas": 2, "transfer": transfer})
    pool = SamplerPool(SamplerSpec(str(models("qwen3", seed=1)), section, SECTION))
    outgoing = OutgoingWeights(two.weights, dtype, two.sender)
    try:
        for version in (1, 2):
            held = pool.load_weights(outgoing, version)
    finally:
        pool.close()
    whole = {name: tensor.to(choose_sent_dtype(tensor, dtype)) for name, tensor in two.weights()}
    assert outgoing.sent_fingerprints == {
        name: SentFingerprint(fingerprint_tensor(tensor), None) for name, tensor in whole.items()
    }
    expected = {name: fingerprint_tensor(tensor.float()) for name, tensor in whole.items()}
    assert [dict(one.fingerprints) for one in held] == [expected, expected]


class Killing:
    """Sends as another sender does, but kills an engine, once, when the first bucket is on its
    way.
    """

    def __init__(self, sender: RankSender, victim: str) -> None:
        self._sender, self._victim = sender, victim
        self.route: TransferRoute | None = None
        self.file_paths, self.on_host, self.one_machine = (
            sender.file_paths,
            sender.on_host,
            sender.one_machine,
        )

    def stream_weights(self, dtype: torch.dtype | None) -> Iterator[tuple[str, torch.Tensor]]:
        return self._sender.stream_weights(dtype)

    def open_route(self, route: TransferRoute) -> None:
        self._sender.open_route(route)
        self.route = route

    def fill_buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        for bucket in self._sender.fill_buckets(stream, columns):
            if self._victim:
                kill(self._victim)
                self._victim = ""
            yield bucket

    def ship_bucket(self, bucket: WeightBucket) -> None:
        self._sender.ship_bucket(bucket)

    def free_buckets(self) -> None:
        self._sender.free_buckets()


@pytest.mark.parametrize("transfer", ["shared_memory", "process_group"])
def test_learner_ranks_survive_engine_killed_during_weight_sync(
    two: MeshLearner, models: Callable[..., Path], transfer: str
) -> None:
    section = SamplerSection.model_validate(
        {"replicas": 2, "transfer": transfer, "timeout_s": 60.0}
    )
    pool = SamplerPool(SamplerSpec(str(models("qwen3", seed=1)), section, SECTION))
    expected = {name: fingerprint_tensor(tensor) for name, tensor in two.weights()}
    try:
        pool.wait_until_ready()
        with pytest.raises(SamplerLost):
            pool.load_weights(
                OutgoingWeights(two.weights, torch.float32, Killing(two.sender, "sampler 2")), 1
            )
    finally:
        pool.close()
    assert {name: fingerprint_tensor(tensor) for name, tensor in two.weights()} == expected


def test_rank_killed_during_optim_step_is_named_in_error(two: MeshLearner) -> None:
    batch = ragged(LENGTHS)
    two.forward_backward(batch, WeightedLogprob())
    kill_soon(two, 1)  # rank 0 waits for it in the sum of the gradients
    with pytest.raises(
        WorkerDied, match="worker logits learner rank 1 died in optim_step: killed by SIGKILL"
    ):
        two.optim_step()
    assert not any(rank.is_alive() for rank in two.ranks)
    with pytest.raises(WorkerDied, match="died before"):
        two.logprobs(batch)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_while_sending_weights_is_named_in_error(spec: LearnerSpec, rank: int) -> None:
    learner = launch_learner(over(spec, dp=2), timeout_s=400.0)
    learner.sender.open_route(TransferRoute("shared_memory", learner.sender.file_paths))
    kill_soon(learner, rank)
    with pytest.raises(
        WorkerDied,
        match=f"worker logits learner rank {rank} died in begin_sending: killed by SIGKILL",
    ):
        list(
            learner.sender.fill_buckets(
                OutgoingWeights(learner.weights, torch.float32, learner.sender), columns=True
            )
        )
    assert not any(rank.is_alive() for rank in learner.ranks)
