"""Recipes for workers: small values that any process can be sent and build the worker from."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import torch
from torch import nn

from lockstep.cluster.self_check import require_proof
from lockstep.config import ClusterSection, Computation, LearnerSection, Optimizer, SamplerSection, user_code
from lockstep.distributed.ranks import ALONE, Ranks
from lockstep.errors import InputError
from lockstep.learners.rank import RankLearner, resolve_device
from lockstep.learners.torch.learner import TorchLearner
from lockstep.learners.torch.start import build_model
from lockstep.models.folder import context_of, read_config
from lockstep.models.heads import PLAIN
from lockstep.models.load import load_causal_lm
from lockstep.samplers.base import Served
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.samplers.torch.stateful import torch_sampler
from lockstep.samplers.vllm.sampler import VLLMSampler
from lockstep.types import Head


@dataclass(frozen=True)
class LearnerSpec:
    """A learner: its weights, head, computation and optimizer (without one it only scores).

    Attributes:
        code: A file of the user's that defines losses.
    """

    model: str
    head: Head
    section: LearnerSection
    optimizer: Optimizer | None
    seed: int
    code: Path | None = None

    @property
    def frozen(self) -> LearnerSpec:
        """The same model as a frozen scorer, without optimizer and adapters."""
        return replace(self, optimizer=None, section=self.section.model_copy(update={"lora": None}))

    def build(self, ranks: Ranks = ALONE) -> RankLearner:
        """Builds it with the training backend that the section names.

        Raises:
            InputError: There is no such backend.
        """
        build = _TRAINING_BACKENDS.get(self.section.backend)
        if build is None:
            raise _unknown("learner.backend", self.section.backend, _TRAINING_BACKENDS)
        if self.code is not None:
            user_code.import_file(self.code)
        return build(self, ranks)

    def torch(self, ranks: Ranks = ALONE) -> TorchLearner:
        """A torch learner."""
        device = resolve_device(self.section.device)
        model = build_model(self.model, self.head, self.seed, self.section, ranks, device)
        return TorchLearner(model, self.section, self.optimizer, ranks)

    def megatron(self, ranks: Ranks) -> RankLearner:
        """A Megatron learner."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Megatron warns of every optional package that is missing
            from lockstep.learners.megatron.start import start_learner as stage_started

            return stage_started(self.model, self.head, self.seed, self.section, self.optimizer, ranks)


_TRAINING_BACKENDS: Mapping[str, Callable[[LearnerSpec, Ranks], RankLearner]] = {
    "torch": LearnerSpec.torch,
    "megatron": LearnerSpec.megatron,
}
"""Builders of a learner, by `learner.backend`."""


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler with weights of its own, on the learner's device and in its type."""

    model: str
    section: SamplerSection
    learner: Computation
    raw_logprobs: bool = False

    def build(self) -> Served:
        """Builds it with the inference backend that the section names.

        Raises:
            InputError: There is none that can be sent weights by that name.
        """
        return self._backend.build(self)

    def vllm(self) -> VLLMSampler:
        """A vLLM sampler, which needs a process of its own."""
        return VLLMSampler(self.model, self.section, self.learner, self.raw_logprobs)

    def torch(self) -> TorchSampler:
        """A torch sampler, which can also live in this process."""
        lm = load_causal_lm(self.model)
        nn.Module.to(lm, resolve_device(self.learner.device))  # in place; its own `to` is typed for wrappers
        return torch_sampler(lm, self.section.max_batch_size, self.learner.is_bf16, self.raw_logprobs)

    def require_proof(self) -> None:
        """Raises ModelError if the backend decodes by Lockstep's own cache, and not as `transformers` computes."""
        if self._backend.ours:
            require_proof(self.model, self.learner, PLAIN)

    @property
    def context(self) -> int:
        """The longest sequence that the model reads."""
        return context_of(read_config(self.model))

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the sampler holds weights."""
        return self._backend.dtype(self.learner)

    @property
    def threads(self) -> int | None:
        """Torch threads of a worker on a CPU; None: its share of the run's."""
        return self._backend.threads

    @property
    def _backend(self) -> _InferenceBackend:
        backend = _INFERENCE_BACKENDS.get(self.section.backend)
        if backend is None:
            raise _unknown("sampler.backend", self.section.backend, _INFERENCE_BACKENDS)
        return backend


@dataclass(frozen=True)
class _InferenceBackend:
    """An inference engine that takes weight syncs.

    Attributes:
        build: Builds its sampler.
        dtype: The type in which it holds weights, by how the learner computes.
        ours: True if it decodes by Lockstep's own cache, so that a model is checked before it is opened.
        threads: Torch threads of a worker on a CPU; None: its share of the run's.
    """

    build: Callable[[SamplerSpec], Served]
    dtype: Callable[[Computation], torch.dtype]
    ours: bool
    threads: int | None


_INFERENCE_BACKENDS: Mapping[str, _InferenceBackend] = {
    # More than one thread would make bits depend on how many samplers share the machine.
    "torch": _InferenceBackend(SamplerSpec.torch, lambda learner: torch.float32, ours=True, threads=1),
    "vllm": _InferenceBackend(
        SamplerSpec.vllm,
        lambda learner: torch.bfloat16 if learner.is_bf16 else torch.float32,
        ours=False,
        threads=None,
    ),
}
"""By `sampler.backend`; a server, which takes no weights, is none of them."""


def _unknown(option: str, name: str, known: Mapping[str, object]) -> InputError:
    return InputError(f"{option} is {name}, but there is no such backend here; there are: {', '.join(known)}")


FAR_GPUS = (
    "weights cannot be sent from or to GPUs of other machines yet (docs/guides/cluster.md), so use no more of "
    "learner.parallel than this machine has GPUs, or an algorithm that samples nothing, such as sft or dpo"
)
"""Why a run with samplers stays on one machine with GPUs, and what to do."""


def require_sampler(section: SamplerSection, computation: Computation) -> None:
    """Raises InputError if the section asks for what this machine does not have."""
    cuda = resolve_device(computation.device).type == "cuda"
    match section.backend:
        case "vllm":
            _require_vllm(cuda)
        case "torch" | "openai":
            pass
        case _:
            assert_never(section.backend)
    if section.vllm.sleep and not cuda:
        raise InputError("sampler.vllm.sleep frees memory of a GPU, and torch sees none here; leave it out")
    if cuda and section.replicas > 1:
        raise InputError(
            f"sampler.replicas is {section.replicas}, but samplers cannot be spread over GPUs yet; use "
            "sampler.replicas=1, or learner.device=cpu"
        )
    match section.transfer:
        case "shared_memory":
            pass
        case "process_group":
            if cuda:
                raise InputError(
                    "sampler.transfer=process_group is by gloo, for CPUs; leave it at shared_memory, which is within "
                    "one machine"
                )
        case _:
            assert_never(section.transfer)


def require_near(cluster: ClusterSection, learner: LearnerSection, section: SamplerSection) -> None:
    """Raises InputError if a run with samplers takes more GPUs of a Ray cluster than this machine has."""
    samplers = section.engines
    if cluster.on_this_machine or not samplers or resolve_device(learner.device).type != "cuda":
        return
    (places, _), available = cluster.ray.places(learner.parallel.ranks, samplers), torch.cuda.device_count()
    if places > available:
        raise InputError(f"the run takes {places} places with a GPU each, and this machine has {available}; {FAR_GPUS}")


def _require_vllm(cuda: bool) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "sampler.backend is vllm, which is not installed; docs/guides/generation.md says how, or use "
            "sampler.backend=torch"
        )
    if cuda != torch.cuda.is_available():
        raise InputError("vLLM takes the GPU where there is one; leave learner.device at auto, or use sampler=torch")
