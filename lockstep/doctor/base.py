"""Interface of a backend, and the conditions under which it can be made to compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from lockstep.batch import Batch
from lockstep.types import Request, SamplingParams

Side = Literal["train", "infer"]
DType = Literal["fp32", "bf16", "fp16"]
Layout = Literal["alone", "padded", "packed"]
"""One sequence per pass; side by side with padding; end to end in one row."""
Kernel = Literal["eager", "sdpa"]
Part = Literal["head", "softmax", "norm", "rope", "router", "cache"]
"""Parts that can run in fp32 alone: logits, log-softmax, norms, rotary embedding, router, KV cache."""
ROTARY = ("rotary_emb", "pos_emb")
"""Names of rotary embedding modules."""
Capability = Literal[
    "generate",  # draws responses, with the log-probabilities that it drew with
    "shaped",  # rescores under a temperature, top-k and top-p
    "batch_size",  # computes with the batch size of the conditions
    "fresh",  # drops its caches where the conditions say so
    "modules",  # shows its modules, so that its layers can be watched and replayed
]


@dataclass(frozen=True)
class Conditions:
    """Deviations from how a backend usually computes.

    Attributes:
        dtype: Of the computation; None: the backend's own.
        batch_size: Sequences side by side in a pass.
        layout: How they lie there.
        kernel: Of the attention.
        parts: What is computed in fp32 whatever the dtype.
        config: Fields of the model's configuration, the model being built anew with them.
        fresh: Drop every cache first.
        unchunked: Read prompts whole.
        evaluation: Put the model into evaluation mode.
    """

    dtype: DType | None = None
    batch_size: int | None = None
    layout: Layout | None = None
    kernel: Kernel | None = None
    parts: frozenset[Part] = frozenset()
    config: tuple[tuple[str, Any], ...] = ()
    fresh: bool = False
    unchunked: bool = False
    evaluation: bool = False

    def but(self, other: Conditions) -> Conditions:
        """These, and over them what the other ones say."""
        return Conditions(
            other.dtype or self.dtype,
            other.batch_size or self.batch_size,
            other.layout or self.layout,
            other.kernel or self.kernel,
            self.parts | other.parts,
            tuple((dict(self.config) | dict(other.config)).items()),
            self.fresh or other.fresh,
            self.unchunked or other.unchunked,
            self.evaluation or other.evaluation,
        )


USUAL = Conditions()


@dataclass(frozen=True)
class BackendScores:
    """Log-probabilities of a batch's masked tokens.

    Attributes:
        logprob: Of each masked token, nats, fp32 [N]; 0 elsewhere.
        tokens: The ids that were really scored, sequence by sequence.
    """

    logprob: Tensor
    tokens: tuple[tuple[int, ...], ...]


class Backend(Protocol):
    """One side of a comparison: something that scores tokens with a model, and perhaps generates with it."""

    name: str

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def context(self) -> int:
        """The longest sequence that the model reads."""
        ...

    def config(self) -> Mapping[str, Any]:
        """The model's configuration as this side has it, flat, by the words of `transformers`."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Returns all known settings that shape its numbers: dtype, kernel, training (mode), batch_size, layout,
        tensor_parallel_size (of more than one rank), kv_dtype, quantization."""
        ...

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> BackendScores:
        """Scores the masked tokens under `batch.sampling` (None: temperature 1, all tokens) by prefill."""
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        """Generates like `Sampler.generate`; `sampler_logprob` comes from its decoding."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Canonical names and tensors of parameters and buffers, those among them that are never saved."""
        ...

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Takes tensors by name; the others stay."""
        ...

    def network(self, conditions: Conditions = USUAL) -> Network:
        """Its modules, under some conditions."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """A model whose inside can be watched: modules by the names of `transformers`."""

    @property
    def modules(self) -> nn.Module: ...

    def logits(self, tokens_T: Tensor) -> Tensor:
        """Logits of one sequence alone, in the type that the backend takes its log-softmax of, [T, V]."""
        ...
