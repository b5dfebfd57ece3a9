"""vLLM, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.batch import Batch, concat
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.cluster.worker_proxy import Remote
from lockstep.cluster.workers import HERE, Workers
from lockstep.config import Computation, SamplerSection
from lockstep.doctor.backends.variants import TORCH_TYPES, flat_fields, tensors
from lockstep.doctor.base import USUAL, BackendScores, Capability, Conditions, Network
from lockstep.errors import InputError
from lockstep.models.folder import context_of, read_config
from lockstep.models.load import load_causal_lm
from lockstep.samplers.vllm.sampler import VLLMSampler
from lockstep.types import Request, SamplingParams


@dataclass(frozen=True)
class EngineSpec(SamplerSpec):
    """A vLLM with options of its own.

    Attributes:
        options: Of vLLM's, by its words.
        sampler: What to build.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    sampler: type[VLLMSampler] = VLLMSampler

    def build(self) -> VLLMSampler:
        return self.sampler(self.model, self.section, self.learner, self.raw_logprobs, self.options)


class VLLMBackend:
    """Implements `doctor.base.Backend`. An engine takes half a minute to start.

    Args:
        folder: A Hugging Face folder.
        section: Sizes, and options of vLLM's.
        computation: Its type, and where it computes.
        options: More of vLLM's options, by its words, such as `kv_cache_dtype`.
        sampler: What runs in the engine's process; a variation of it is a variation of how vLLM is driven.
        note: Tells the user what happens.
        workers: Says where an engine starts.
        tp: Ranks that share heads and hidden units; the weights of several, or quantized ones, cannot be shown.
    """

    name = "vllm"
    capabilities: frozenset[Capability] = frozenset(("generate", "batch_size", "fresh"))

    def __init__(
        self,
        folder: str,
        section: SamplerSection,
        computation: Computation,
        options: Mapping[str, Any] | None = None,
        sampler: type[VLLMSampler] = VLLMSampler,
        note: Callable[[str], object] = print,
        workers: Workers = HERE,
        tp: int = 1,
    ) -> None:
        if section.replicas > 1:
            raise InputError(f"the doctor asks one engine, not {section.replicas}; leave sampler.replicas at 1")
        # Where vLLM is one backend among several, the section need not say so.
        self._section = section.model_copy(update={"backend": "vllm", "tensor_parallel": tp})
        require_sampler(self._section, computation)
        self._folder, self._computation, self._note, self._workers = folder, computation, note, workers
        self._options, self._sampler = dict(options or {}), sampler
        self.name = f"vllm-tp{tp}" if tp > 1 else "vllm"
        self._held: dict[str, Tensor] = {}
        self._loads = 0
        self.engine = self._start()
        context = context_of(read_config(folder))
        self.context = min(context, section.context_limit or context)

    def config(self) -> Mapping[str, Any]:
        return flat_fields(_worker(self.engine).call("config"))

    def settings(self) -> Mapping[str, Any]:
        told = _worker(self.engine).call("settings")
        return told | {"dtype": _short(told["dtype"]), "batch_size": told["max_num_seqs"], "training": False}

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> BackendScores:
        """Never reads the prefix cache: vLLM does not where it is asked for log-probabilities of a prompt."""
        if batch.sampling is not None and not batch.sampling.unshaped:
            raise InputError("vLLM rescores at temperature 1 and over all tokens only; leave batch.sampling out")
        parts = batch.split(conditions.batch_size or len(batch))
        column = torch.cat([self.engine.logprobs(part) for part in parts])
        return BackendScores(column, tuple(tuple(tokens.tolist()) for tokens in batch.sequences()))

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        """Implements `Backend.generate`; samples carry what was observed.

        Returns:
            The batch, with per sample `prefix_hits`, tokens of the prompt whose keys and values came out of the prefix
            cache, and `rows` of the largest pass.
        """
        if conditions.fresh:
            _worker(self.engine).call("drop_caches")
        _worker(self.engine).call("take_observations")  # what was before
        size = conditions.batch_size or len(requests)
        parts = [
            self.engine.generate(requests[start : start + size], sampling) for start in range(0, len(requests), size)
        ]
        seen = _worker(self.engine).call("take_observations")
        return concat(parts).with_columns(
            sample={"prefix_hits": torch.tensor(seen["cached"]), "rows": torch.full((len(requests),), seen["rows"])}
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields weights as the layers use them, a tied head under its own name too; without vLLM's own tables."""
        for name in _worker(self.engine).call("tensor_names"):
            yield name, _worker(self.engine).call("show", name)

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """A refit of all weights: vLLM takes no parts. Those that are not in the stream are as they were."""
        self._held = self._held or dict(_of_folder(self._folder))
        self._held |= {name: tensor.clone() for name, tensor in stream}
        self._loads += 1
        dtype = self.engine.dtype
        sent = {name: t.to(dtype) if t.is_floating_point() else t for name, t in self._held.items()}
        self.engine.load_weights(sent.items(), self._loads)

    def network(self, conditions: Conditions = USUAL) -> Network:
        raise NotImplementedError("vLLM's modules live in another process, and are others; ask `capabilities` first")

    def close(self) -> None:
        self.engine.close()

    def _start(self) -> SamplerPool:
        spec = EngineSpec(
            self._folder,
            self._section,
            self._computation,
            raw_logprobs=False,
            options=self._options,
            sampler=self._sampler,
        )
        self._note(f"vLLM starts with {self._folder}")
        engine = SamplerPool(spec, self._note, self._workers)
        try:
            engine.ready()
        except BaseException:
            engine.close()
            raise
        return engine


def _worker(engine: SamplerPool) -> Remote:
    return engine.remotes[0]


def _short(dtype: str) -> str:
    """torch's name of a type as the doctor's."""
    return next((short for short, own in TORCH_TYPES.items() if str(own) == f"torch.{dtype}"), dtype)


def _of_folder(folder: str) -> Iterator[tuple[str, Tensor]]:
    lm: nn.Module = load_causal_lm(folder)
    return tensors(lm)
