"""Turns on a GPU that is not there: what is on it while an engine samples, and how its memory comes
and goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from device_bytes import bytes_of
from pretend_gpu import bytes_there, pretend_gpu
from tiny_models import OPTIMIZER, SECTION, WeightedLogprob, ragged

from lockstep.cluster.judges import AwakeWhenAsked
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.turns import DeviceTurns
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.models.device import load_on_device
from lockstep.models.heads import LogitsHead
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler

Models = Callable[..., Path]
LENGTHS = (7, 2, 19, 4, 33, 12, 9, 3)
ON_GPU = SECTION.model_copy(update={"device": "cuda", "rows_per_pass": 3})


def build(folder: Path, **section: object) -> RankLearner:
    return LearnerSpec(
        str(folder), "logits", ON_GPU.model_copy(update=section), OPTIMIZER, seed=0
    ).build()


def test_learner_offload_to_pinned_memory_needs_no_gpu_wait(models: Models) -> None:
    folder = models("llama")
    with pretend_gpu() as record:
        learner, batch = build(folder), ragged(LENGTHS)
        train(learner, batch, WeightedLogprob())
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in learner.model.buffers())
        before = len(record.events)
        learner.offload()
        assert bytes_there() == buffers, "no weight and no moment stays"
        learner.offload()
        train(learner, batch, WeightedLogprob())
        events = [
            event
            for event in record.events[before:]
            if event.line.startswith("lockstep/learners/host_memory")
        ]
        tensors = len([*learner.model.parameters()]) * 4  # with two moments and a step count
        assert [event.kind for event in events].count("copy back") == tensors
        assert [event.kind for event in events].count("copy") == tensors
        assert len(events) == 2 * tensors, record.lines()


def test_a_frozen_model_is_copied_to_the_host_once(models: Models, tmp_path: Path) -> None:
    """But for weights that it is given, as a reference policy is."""
    folder, batch = models("llama"), ragged(LENGTHS)
    with pretend_gpu() as record:
        frozen, trained = (
            LearnerSpec(str(folder), "logits", ON_GPU, None, seed=0).build(),
            build(folder),
        )
        expected, tensors = frozen.logprobs(batch), len([*frozen.model.parameters()])
        for _ in range(2):
            frozen.offload()
            assert torch.equal(frozen.logprobs(batch), expected)
            assert record.count("copy back") == tensors
        train(trained, batch, WeightedLogprob())
        trained.save(tmp_path)
        assert trained.poll_save(wait=True)
        frozen.offload()
        frozen.load(tmp_path)
        frozen.offload()
        assert torch.equal(frozen.logprobs(batch), trained.logprobs(batch))


class Watched(TorchSampler):
    """Notes what the GPU has beside the engine's weights whenever it samples: in all, and of each
    learner.
    """

    learners: Sequence[RankLearner] = ()
    states: Sequence[str] = ()

    def wake(self) -> None:
        self.states = [*self.states, "awake"]
        super().wake()

    def sleep(self) -> None:
        self.states = [*self.states, "asleep"]
        super().sleep()

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        own = sum(tensor.numel() * tensor.element_size() for _, tensor in self._iterate_tensors())
        self.beside, self.held = (
            bytes_there() - own,
            [bytes_of(learner) for learner in self.learners],
        )
        return super().generate(requests, sampling)


TABLES = 400_000
"""Bytes of tables for fingerprints, and of buffers."""


def test_learners_are_offloaded_while_engine_samples(models: Models) -> None:
    folder = models("qwen2 tied")
    with pretend_gpu():
        turns, learners = DeviceTurns(), [build(folder) for _ in range(2)]
        stays = LearnerSpec(str(folder), "logits", ON_GPU, None, seed=0).build()
        for learner in learners:
            turns.add_learner(learner)
        stay = bytes_of(stays)
        engines = list[Watched]()

        def start() -> Watched:
            assert [bytes_of(learner) for learner in (*learners, stays)] == [0, 0, stay], (
                "before the engine starts"
            )
            engines.append(Watched(load_on_device(str(folder), ON_GPU), 4))
            engines[0].learners = (*learners, stays)
            return engines[0]

        session = SamplerSession(turns.start_engine(start), learners[0])
        for version in range(2):
            with session.at(version):
                session.generate([Request((3, 4), 1)], SamplingParams(max_tokens=2))
            assert engines[0].held == [0, 0, stay], "what is asked while it samples stays"
            assert engines[0].beside < stay + TABLES
            for learner in learners:
                train(learner, ragged(LENGTHS), WeightedLogprob())
            assert bytes_there() > 2 * 3 * stay


def test_judge_wakes_only_to_generate_while_learner_is_offloaded(models: Models) -> None:
    folder = models("llama")
    with pretend_gpu():
        turns, learner = DeviceTurns(), build(folder)
        turns.add_learner(learner)
        train(learner, ragged(LENGTHS), WeightedLogprob())
        engine = Watched(load_on_device(str(folder), ON_GPU), 4)
        engine.learners = [learner]
        judge = AwakeWhenAsked(turns.start_engine(lambda: engine))
        for _ in range(2):
            train(learner, ragged(LENGTHS), WeightedLogprob())
            assert bytes_of(learner) > 0
            judge.generate([Request((3, 4), 1)], SamplingParams(max_tokens=2))
            assert engine.held == [0]
            assert engine.states == ["asleep", "awake", "asleep"]
            engine.states = engine.states[-1:]


def test_sampler_sharing_policy_weights_keeps_only_them_on_gpu(models: Models) -> None:
    """Two samplers in turn, each of another learner's weights."""
    folder = models("llama")
    with pretend_gpu():
        turns, learners = DeviceTurns(), [build(folder) for _ in range(2)]
        for learner in learners:
            turns.add_learner(learner)
            train(learner, ragged(LENGTHS), WeightedLogprob())
        weights = sum(p.numel() * p.element_size() for p in learners[0].model.parameters())
        for place in (0, 1, 0, 1):
            model = learners[place].model
            assert isinstance(model, LogitsHead)
            sampler = Watched(model.lm, 4)
            sampler.learners = learners
            session = SamplerSession(turns.wrap_sampler(sampler, learners[place]), learners[place])
            with session.at() as sync_metrics:
                session.generate([Request((3, 4), 1)], SamplingParams(max_tokens=2))
            assert sampler.held == [weights * (place == other) for other in range(2)]
            assert sync_metrics.floats()["weight_sync/attested"] > 0
