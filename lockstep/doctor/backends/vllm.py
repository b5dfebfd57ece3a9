"""vLLM, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from lockstep.weight_sync.fingerprints import fingerprint

_BATCH_TOKENS = 4096
"""Token budget of one vLLM pass without chunked prefill."""


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

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.options.get("dtype", "")) if "dtype" in self.options else super().dtype


class VLLMBackend:
    """Implements `doctor.base.Backend`. An engine takes half a minute to start; there are at most two.

    Args:
        folder: A Hugging Face folder.
        section: Sizes, and options of vLLM's.
        computation: Its type, and where it computes.
        options: More of vLLM's options, by its words, such as `kv_cache_dtype`.
        sampler: What runs in the engine's process; a variation of it is a variation of how vLLM is driven.
        note: Tells the user what happens.
        workers: Says where an engine starts.
        tp: Ranks that share heads and hidden units; none of several shows weights as the model's folder has them, nor
            does an engine that quantizes them.

    Attributes:
        engine: The one that computes as usual.
    """

    name = "vllm"
    capabilities: frozenset[Capability] = frozenset(
        ("generate", "dtype", "batch_size", "config", "fresh", "unchunked", "weights", "fingerprints", "load")
    )

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
        if tp > 1 or "quantization" in self._options:
            self.capabilities -= {"weights", "fingerprints", "load"}
        self._held: dict[str, Tensor] = {}
        self._loads = 0
        self.engine = self._start(USUAL)
        self._other: tuple[Conditions, SamplerPool] | None = None
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
        engine = self._engine(conditions)
        parts = batch.split(conditions.batch_size or len(batch))
        column = torch.cat([engine.logprobs(part) for part in parts])
        seen, settings = _worker(engine).call("take_observations"), _worker(engine).call("settings")
        seen |= {"prefix_hits": sum(seen.pop("cached")), "layout": "packed", "kernel": settings["kernel"]}
        seen["unchunked"] = not settings["enable_chunked_prefill"]
        return BackendScores(column, tuple(tuple(tokens.tolist()) for tokens in batch.sequences()), seen)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        """Implements `Backend.generate`; samples carry what was observed.

        Returns:
            The batch, with per sample `prefix_hits`, tokens of the prompt whose keys and values came out of the prefix
            cache, and `rows` of the largest pass.
        """
        engine = self._engine(conditions)
        size = conditions.batch_size or len(requests)
        parts = [engine.generate(requests[start : start + size], sampling) for start in range(0, len(requests), size)]
        seen = _worker(engine).call("take_observations")
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
        for engine in self._engines():
            self._refit(engine)

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        before = {name: tensor.clone() for name, tensor in self.weights() if name in tensors}
        self.load(tensors.items())
        try:
            yield
        finally:
            self.load(before.items())

    def fingerprints(self) -> Mapping[str, int]:
        return {name: fingerprint(tensor) for name, tensor in self.weights()}

    def network(self, conditions: Conditions = USUAL) -> Network:
        raise NotImplementedError("vLLM's modules live in another process, and are others; ask `capabilities` first")

    def close(self) -> None:
        for engine in self._engines():
            engine.close()

    def _engines(self) -> list[SamplerPool]:
        return [self.engine, *(() if self._other is None else (self._other[1],))]

    def _engine(self, conditions: Conditions) -> SamplerPool:
        """The engine for some conditions, its caches dropped if they say so."""
        engine, usual = self.engine, self.settings()
        built = Conditions(
            dtype=conditions.dtype if conditions.dtype != usual["dtype"] else None,
            config=conditions.config,
            unchunked=conditions.unchunked and usual["enable_chunked_prefill"],
        )
        if built != USUAL:
            if self._other is None or self._other[0] != built:
                self._close_other()
                self._other = (built, self._start(built))
            engine = self._other[1]
        if conditions.fresh:
            _worker(engine).call("drop_caches")
        _worker(engine).call("take_observations")  # what was before
        return engine

    def _close_other(self) -> None:
        if self._other is not None:
            self._other[1].close()
            self._other = None

    def _start(self, conditions: Conditions) -> SamplerPool:
        options = dict(self._options)
        if conditions.dtype is not None:
            options["dtype"] = str(TORCH_TYPES[conditions.dtype]).removeprefix("torch.")
        if conditions.unchunked:
            options |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_BATCH_TOKENS, self.context)}
        if conditions.config:
            options["hf_overrides"] = {**options.get("hf_overrides", {}), **self._overrides(conditions.config)}
        spec = EngineSpec(
            self._folder, self._section, self._computation, raw_logprobs=False, options=options, sampler=self._sampler
        )
        self._note(f"vLLM starts with {self._folder} ({conditions})")
        engine = SamplerPool(spec, self._note, self._workers)
        try:
            engine.ready()
            if self._held:
                self._refit(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    def _overrides(self, changed: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Fields of the configuration; `a.b` is field b of the mapping a, which is given whole."""
        fields, overrides = read_config(self._folder).get_text_config().to_dict(), dict[str, Any]()
        for name, value in changed:
            outer, _, inner = name.partition(".")
            overrides[outer] = {**overrides.get(outer, fields[outer]), inner: value} if inner else value
        return overrides

    def _refit(self, engine: SamplerPool) -> None:
        stream = {name: t.to(engine.dtype) if t.is_floating_point() else t for name, t in self._held.items()}
        engine.load_weights(stream.items(), self._loads)


def _worker(engine: SamplerPool) -> Remote:
    return engine.remotes[0]


def _short(dtype: str) -> str:
    """torch's name of a type as the doctor's."""
    return next((short for short, own in TORCH_TYPES.items() if str(own) == f"torch.{dtype}"), dtype)


def _of_folder(folder: str) -> Iterator[tuple[str, Tensor]]:
    lm: nn.Module = load_causal_lm(folder)
    return tensors(lm)
