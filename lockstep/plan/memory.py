"""The estimated peak memory of one rank of a learner, and of a sampler.

Allocations come and go, so they are not summed: the model computes memory at each moment of a step
that can be the peak. Weights, gradients, moments and caches are exact. Saved activations are
counted tensor by tensor, as autograd saves them in a layer of the Llama, Qwen2 and Qwen3 families;
other families are assumed to be similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.algorithms.roles import Load
from lockstep.config import LearnerSection, SamplerSection
from lockstep.core.types import HeadKind
from lockstep.learners.packing import MOST_KEYS
from lockstep.models.heads import scores_tokens
from lockstep.models.parallelize import gathers_half
from lockstep.plan.sizes import FP32, HALF, INT64, ModelSizes
from lockstep.samplers.backend import find_backend
from lockstep.samplers.cache_budget import CacheBudget

_FEWEST_SEQUENCES = 16
"""Minimum number of longest sequences that an engine must have room for.

With fewer, most of a GPU is idle.
"""


@dataclass(frozen=True)
class MemoryMoment:
    """A moment that can be the memory peak, and its contents.

    Attributes:
        name: Name of the moment.
        parts: Bytes of each part.
    """

    name: str
    parts: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class ModelRank:
    """One rank of a model.

    Attributes:
        sizes: Sizes of the model.
        learner: Its layout and micro-batches.
        load: Its largest step.
        head: Head on the backbone.
        trained: Whether it is trained; a reference policy only scores.
        state: Numbers that its optimizer keeps for each weight; 2 for AdamW.
    """

    sizes: ModelSizes
    learner: LearnerSection
    load: Load
    head: HeadKind = "logits"
    trained: bool = True
    state: int = 2

    @property
    def shard_count(self) -> int:
        """Number of ranks among which FSDP shards this rank's weights."""
        return self.learner.parallel.dp * self.learner.parallel.cp

    @property
    def is_cut(self) -> bool:
        """True if FSDP manages the weights: they are sharded, or replicated over `dp_replicate`."""
        return self.shard_count * self.learner.parallel.dp_replicate > 1

    @property
    def gathers_half(self) -> bool:
        """True if layers, except vectors, are gathered in 16 bits."""
        return self.is_cut and gathers_half(self.learner) and self.sizes.vectors

    @property
    def layer_bytes(self) -> int:
        """Bytes of a layer's weights."""
        return FP32 * self.sizes.layer_of(self.learner.parallel.tp)

    @property
    def gathered_layer(self) -> int:
        """Bytes of a gathered layer's weights."""
        if self.gathers_half:
            return self.layer_bytes // FP32 * HALF
        return self.layer_bytes

    @property
    def root_bytes(self) -> int:
        """Bytes of the gathered weights outside the layers."""
        return FP32 * self.sizes.root_of(self.learner.parallel.tp, self.head)

    @property
    def used_bytes(self) -> int:
        """Bytes of all weights that this rank computes with."""
        return self.sizes.layers * self.layer_bytes + self.root_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of weights that this rank holds."""
        return self._shard_bytes(self.used_bytes)

    @property
    def learned_bytes(self) -> int:
        """Bytes of all trained weights that this rank computes with."""
        if not self.trained:
            return 0
        if self.sizes.adapters:
            return FP32 * self.sizes.count_trainable(self.head)
        return self.used_bytes

    @property
    def updated_bytes(self) -> int:
        """Bytes of trained weights on this rank; gradients and each moment need the same."""
        return self._shard_bytes(self.learned_bytes)

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay on the device between steps."""
        if self.learner.cpu_offload:
            return 0
        return self.held_bytes + self.state * self.updated_bytes

    @property
    def on_host(self) -> int:
        """Bytes in host memory."""
        if self.learner.cpu_offload:
            return self.held_bytes + (1 + self.state) * self.updated_bytes
        return 0

    @property
    def peak_moment(self) -> MemoryMoment:
        """The fullest moment of a step."""
        return max(self.list_moments(), key=lambda moment: moment.total_bytes)

    def list_moments(self) -> list[MemoryMoment]:
        """Moments that can be the peak, in order."""
        if not self.trained:
            return [
                MemoryMoment(
                    "scoring",
                    self._standing_parts()
                    | self._list_gathered_parts(2)
                    | {"activations": self._scoring_bytes()},
                )
            ]
        standing = self._standing_parts()
        gradients = self._on_device(self.updated_bytes)
        several = self.load.count_micro_batches(self.learner, self.load.rows) > 1
        summed_late = several and self.is_cut and not self.learner.sync_every_pass
        earlier = self.learned_bytes if summed_late else gradients
        before = standing | {"gradients": earlier if several else 0}
        outside = 0 if self.sizes.adapters else self.root_bytes
        all_but_one = (
            gradients
            * (self.used_bytes - self.root_bytes - self.layer_bytes)
            // (self.used_bytes - self.root_bytes + outside)
        )
        meanwhile = standing | {"gradients": earlier if several else all_but_one}
        last = {
            "activations": self.activation_bytes,
            "head": self._head_bytes(),
            # those that products save for backward
            "16-bit copies of weights": self._cast_bytes(
                1 if self.learner.activation_checkpointing else None
            ),
        }
        first = {
            "activations": self._input_bytes() + self.layer_activation_bytes(),
            "16-bit copies of weights": self._cast_bytes(1),
        }
        if scores_tokens(self.head) and not self.sizes.adapters:
            table = self._vocabulary_bytes
        else:
            table = 0
        # The head's gradient is unsharded until the end of the pass if ranks reduce it or a tied
        # embedding adds to it.
        if self.shard_count > 1 or not self.sizes.head or not several:
            waits = table
        else:
            waits = 0
        return [
            MemoryMoment(
                "end of the forward pass",
                before | self._list_gathered_parts(1) | last | self._forward_parts(),
            ),
            MemoryMoment(
                "head's backward pass",
                before | self._list_gathered_parts(1) | last | self._head_backward_parts(table),
            ),
            MemoryMoment(
                "last layer's backward pass",
                before | self._list_gathered_parts(3) | last | self._gradients_in_flight(waits),
            ),
            MemoryMoment(
                "first layer's backward pass",
                meanwhile | self._list_gathered_parts(2) | first | self._gradients_in_flight(waits),
            ),
            MemoryMoment(
                "end of the backward pass",
                standing | {"gradients": gradients} | self._outside_parts(several),
            ),
        ]

    @property
    def saved_tensors(self) -> int:
        """Bytes that a forward pass saves for its backward pass."""
        return self.activation_bytes + self._head_bytes() + self._cast_bytes()

    @property
    def activation_bytes(self) -> int:
        """Bytes that all layers save for backward.

        If recomputed, these are the layers' inputs and all that one layer saves.
        """
        if not self.learner.activation_checkpointing:
            return self.sizes.layers * self.layer_activation_bytes()
        return self.sizes.layers * self._input_bytes() + self.layer_activation_bytes()

    def layer_activation_bytes(self) -> int:
        """Bytes that one layer saves, including its input."""
        sizes = self.sizes
        tp = self.learner.parallel.tp
        a = self.type_bytes
        queries = sizes.queries // tp
        keys = sizes.keys // tp
        hidden = sizes.intermediate // tp
        own = self.own_tokens
        # each product casts its state separately
        if a == FP32:
            copies = 2
        else:
            copies = 5
        states = (
            self._sequence_parallel_tokens * (2 * self._norm_states * sizes.hidden + 2) * FP32
            + own * copies * sizes.hidden * a
        )
        attention = (
            own * (3 * queries * a + sizes.heads // tp * FP32)
            + self._attention_cells()[0] * 2 * keys * a
        )
        normed = own * sizes.normed // tp * (FP32 + (self._norm_states - 1) * a)
        return (
            states
            + attention
            + normed
            + own * (4 * hidden + sizes.inner) * a
            + self._attention_cells()[1] * a
        )

    @property
    def type_bytes(self) -> int:
        """Bytes per number in matrix products."""
        if self.learner.is_half:
            return HALF
        return FP32

    @property
    def own_tokens(self) -> int:
        """Tokens per pass that this rank reads."""
        return -(-self.load.count_micro_batch_tokens(self.learner) // self.learner.parallel.cp)

    @property
    def _norm_states(self) -> int:
        """States that a norm saves: its input and, if its weight is trained, the normalized
        input.
        """
        if self.sizes.adapters:
            return 1
        return 2

    @property
    def _sequence_parallel_tokens(self) -> int:
        return -(-self.own_tokens // self.learner.parallel.tp)

    @property
    def _vocabulary_bytes(self) -> int:
        """Bytes of this rank's rows of the vocabulary head."""
        return -(-FP32 * self.sizes.table // self.learner.parallel.tp)

    def _shard_bytes(self, size: int) -> int:
        return -(-size // self.shard_count)

    def _on_device(self, size: int) -> int:
        if self.learner.cpu_offload:
            return 0
        return size

    def _standing_parts(self) -> dict[str, int]:
        parts = {"weights": self._on_device(self.held_bytes)}
        return parts | (
            {"moments": self._on_device(self.state * self.updated_bytes)} if self.trained else {}
        )

    def _list_gathered_parts(self, layers: int) -> dict[str, int]:
        """Bytes of weights that FSDP gathers: some layers, and all weights outside the layers."""
        if self.shard_count > 1:
            return {"gathered weights": self.root_bytes + layers * self.gathered_layer}
        return {}

    def _cast_bytes(self, layers: int | None = None) -> int:
        """Bytes of weights cast to 16 bits, for all layers until the end of the forward pass.

        Recomputation does not change this. 0 if weights are gathered in 16 bits.
        """
        layers = layers or self.sizes.layers
        tp = self.learner.parallel.tp
        if self.type_bytes == FP32 or self.gathers_half:
            return 0
        return -(-HALF * layers * self.sizes.products // tp)

    def _forward_parts(self) -> dict[str, int]:
        """Additional memory at the end of forward, including working memory of a recomputed
        layer.
        """
        copies = {
            "16-bit copies of weights": self._cast_bytes(),
            "logits during shaping": self.logit_bytes * 5 // 4,
        }
        if not self.learner.activation_checkpointing:
            return copies
        return copies | {
            "activations": self.sizes.layers * self._input_bytes() + self._scoring_bytes()
        }

    def _input_bytes(self) -> int:
        """Bytes of a layer's input, which is all that a recomputed layer keeps."""
        if self.learner.activation_checkpointing:
            return self._sequence_parallel_tokens * self.sizes.hidden * FP32
        return 0

    def _attention_cells(self) -> tuple[int, int]:
        """Keys that a rank's attention sees, and entries of its masks."""
        cp = self.learner.parallel.cp
        sequence = self.load.sequence
        if cp == 1:
            copies = min(MOST_KEYS, 1 / self.load.share_computed(self.learner))
            return int(self.own_tokens * copies), 0
        chunk = -(-sequence // (2 * cp))
        keys = (2 * cp + 1) * chunk  # for an early chunk and a late one
        sequences = -(-self.load.count_micro_batch_tokens(self.learner) // sequence)
        return sequences * keys, sequences * chunk * keys

    def _head_bytes(self) -> int:
        """Bytes of the last states, their norm, and the head."""
        tokens = self.own_tokens
        hidden = self.sizes.hidden
        norm = self._norm_states * self._sequence_parallel_tokens * hidden * FP32
        states = tokens * hidden * FP32
        if not scores_tokens(self.head):
            return norm + states
        penalties = 0
        if self.load.sampling.penalizes:
            # for each token and earlier token: five indices and one fp32 number
            penalties = tokens * self.load.sequence // 2 * (5 * INT64 + FP32)
        return norm + states + tokens * hidden * self.type_bytes + self.logit_bytes + penalties

    @property
    def logit_bytes(self) -> int:
        """Bytes of a pass's logits, which filters or penalties materialize."""
        if not scores_tokens(self.head) or not self.load.sampling.needs_logits:
            return 0
        item = FP32 if self.load.sampling.penalizes else self.type_bytes
        return self.own_tokens * self._vocabulary_bytes // FP32 // self.sizes.hidden * item

    def _head_backward_parts(self, table: int) -> dict[str, int]:
        """Bytes of gradients in the head's backward pass, including materialized logits."""
        found = self._gradients_in_flight(table, layer=False)
        return {name: size + self.logit_bytes * 3 // 2 for name, size in found.items()}

    def _gradients_in_flight(self, table: int, layer: bool = True) -> dict[str, int]:
        """Bytes of live gradients: of states, a layer's hidden units, and the vocabulary head."""
        states = 2 * self.own_tokens * self.sizes.hidden * FP32
        if layer:
            units = (
                2
                * self.own_tokens
                * self.sizes.intermediate
                // self.learner.parallel.tp
                * self.type_bytes
            )
        else:
            units = 0
        return {"gradients in flight": table + states + units}

    def _outside_parts(self, several: bool) -> dict[str, int]:
        """The embedding's gradient, as large as the embedding, and a copy for a sum over ranks."""
        frozen = self.sizes.adapters > 0
        if self.shard_count == 1:
            return {"gradients in flight": self._vocabulary_bytes if several and not frozen else 0}
        return {
            "gathered weights": self.root_bytes,
            "gradients in flight": 0 if frozen else 2 * self.root_bytes,
        }

    def _scoring_bytes(self) -> int:
        """Bytes of a no-grad pass: states, their norm, and a layer's hidden units."""
        units = self.sizes.intermediate // self.learner.parallel.tp
        return self.own_tokens * 4 * (self.sizes.hidden * FP32 + units * self.type_bytes)


@dataclass(frozen=True)
class EngineMemory:
    """The memory of an inference engine on each of its devices.

    Attributes:
        weights: Bytes of weights; 0 if it shares the learner's.
        cache: Bytes of keys and values of the longest sequences that run concurrently.
        least: Bytes of the smallest cache it can start with; 0 if its cache grows or has a set
            size.
        stays: Whether it keeps its cache, in a separate process, while learners work.
        seen: Bytes of the tables of tokens in each response, for penalties.
    """

    weights: int
    cache: int
    least: int = 0
    stays: bool = False
    seen: int = 0

    @classmethod
    def from_sampler(
        cls,
        sizes: ModelSizes,
        learner: LearnerSection,
        sampler: SamplerSection,
        load: Load,
        sequences: int,
        shares: bool = True,
        penalizes: bool = False,
    ) -> EngineMemory:
        """Estimates a sampler, which may share the learner's weights in the same process."""
        backend = find_backend(sampler)
        if backend is None:
            return cls(0, 0)
        alone = shares and sampler.in_process and learner.in_process and learner.lora is None
        width = sampler.tensor_parallel
        if alone:
            weights = 0
        else:
            weights = -(-sizes.policy_parameters * backend.weight_dtype(learner).itemsize // width)
        fixed = backend.cache_bytes(sampler)
        stays = backend.reserves_cache
        seen = backend.penalty_bytes(sequences, sizes.table // sizes.hidden, penalizes)
        if fixed is not None:
            return cls(weights, fixed, stays=stays, seen=seen)
        # Devices split the KV heads; with fewer heads than devices, several devices hold the same
        # head.
        per_token = -(
            -sizes.cache * (HALF if learner.is_half else FP32) // min(width, sizes.key_heads)
        )
        context = min(sizes.context, sampler.context_limit or sizes.context)
        if stays:
            least = max(context, min(sequences, _FEWEST_SEQUENCES) * load.generated)
        else:
            least = 0
        return cls(
            weights,
            per_token * max(sequences * load.generated, least),
            per_token * least,
            stays,
            seen,
        )

    def cache_budget(self, others: int) -> CacheBudget | None:
        """Bounds of its KV cache; None if its size is set or it grows.

        `others` is the bytes of other programs on the device.
        """
        if self.least:
            return CacheBudget(self.cache, self.least, others + self.weights + self.seen)
        return None

    def limit_cache(self, memory: int, others: int) -> EngineMemory:
        """Returns the engine with a KV cache that fits a device along with `others` bytes.

        It is unchanged if the size is set.
        """
        budget = self.cache_budget(others)
        if budget is None:
            return self
        return replace(self, cache=budget.choose_bytes(memory))

    @property
    def total_bytes(self) -> int:
        """Bytes in total."""
        return self.weights + self.cache + self.seen
