"""The options of computation: optimizers, learners, samplers, processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationError,
    field_validator,
)

from lockstep.config.address import require_address
from lockstep.config.backends import INFERENCE, TRAINING, list_engines
from lockstep.config.parallel import Parallel
from lockstep.config.section import Section, rule
from lockstep.core.errors import InputError

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["fp32", "bf16", "fp16"]


class Computation(Section):
    """Device and precision of the computation; a sampler uses the learner's."""

    device: Device = Field(default="auto", description="auto: cuda if available")
    dtype: DType = Field(
        default="fp32", description="compute dtype; weights and moments are always fp32"
    )
    _exact: bool = PrivateAttr(default=False)

    @property
    def exact(self) -> bool:
        """True if the kernels of `models.exact` score tokens: decided by the run, not an option."""
        return self._exact

    @property
    def adapters_apart(self) -> LoRA | None:
        """Adapters that an exact sampler keeps unmerged, like the learner; None if it has none."""
        return None

    def compute_exactly(self) -> Self:
        """Returns the same computation with the kernels of `models.exact`."""
        exact = self.model_copy()
        exact._exact = True
        return exact

    @property
    def may_use_gpu(self) -> bool:
        """True if it computes on a GPU when one is available."""
        match self.device:
            case "auto" | "cuda":
                return True
            case "cpu":
                return False
            case _:
                assert_never(self.device)

    @property
    def is_half(self) -> bool:
        """True if products are computed in 16 bits."""
        match self.dtype:
            case "bf16" | "fp16":
                return True
            case "fp32":
                return False
            case _:
                assert_never(self.dtype)

    @property
    def needs_loss_scale(self) -> bool:
        """True if the loss must be scaled, because numbers above 65,504 overflow.

        Small gradients would also round to 0.
        """
        match self.dtype:
            case "fp16":
                return True
            case "fp32" | "bf16":
                return False
            case _:
                assert_never(self.dtype)


class LoRA(Section):
    """Low-rank adapters (Hu et al. 2021): W + (alpha / rank) · B·A; only A and B are trained."""

    rank: PositiveInt = Field(default=8, description=("rank of the adapters"))
    alpha: PositiveInt = Field(default=16, description="B·A is scaled by alpha / rank")
    target_modules: (
        Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] | None
    ) = Field(
        default=None,
        description="linear maps to adapt, by the ends of their names; null or all-linear: all",
    )


class LearnerSection(Computation):
    """The training backend, for policy, critic and reference model."""

    backend: Annotated[str, TRAINING] = Field(
        default=TRAINING.backend_names[0], description="training backend"
    )
    parallel: Parallel = Parallel()
    micro_batch_tokens: PositiveInt = Field(
        default=8192, description="maximum tokens packed into one forward and backward pass"
    )
    rows_per_pass: PositiveInt | None = Field(
        default=None,
        description=(
            "rows per pass, in batch order, and a fixed order of sums, so that weights do not "
            "depend on micro_batch_tokens or dp; null: as many as fit in micro_batch_tokens"
        ),
    )
    share_prefixes: bool = Field(
        default=True, description="compute a prefix that several sequences of a pass share once"
    )
    activation_checkpointing: bool = Field(
        default=False,
        description=(
            "keep only each layer's inputs and recompute the rest in the backward pass: less memory"
        ),
    )
    compile: bool = Field(
        default=False,
        description=(
            "compile each layer with torch.compile: the first steps take minutes, later steps are "
            "faster"
        ),
    )
    cpu_offload: bool = Field(
        default=False,
        description="keep shards of weights, gradients and moments in host memory; needs dp or cp",
    )
    sync_every_pass: bool = Field(
        default=False,
        description=(
            "reduce gradients in every pass instead of once per batch: less memory (ranks "
            "hold no full gradients), more traffic"
        ),
    )
    lora: LoRA | None = Field(
        default=None, description="train only LoRA adapters of policy and critic; null: all weights"
    )
    _layout_key: str = PrivateAttr(default="learner.parallel")

    @property
    def layout_key(self) -> str:
        """Key of the option that sets the layout."""
        return self._layout_key

    def lay_out(self, parallel: Parallel, key: str) -> Self:
        """Returns the same learner with its own layout.

        Args:
            parallel: The layout.
            key: Key of the option that sets it.

        Raises:
            InputError: Another option conflicts with this layout.
        """
        other = self.model_copy(update={"parallel": parallel})
        other._layout_key = key
        try:
            self.model_validate(other.model_dump())
        except ValidationError as error:
            raise InputError(
                f"{key}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
            ) from error
        return other

    @classmethod
    def from_computation(
        cls,
        computation: Computation,
        backend: str = TRAINING.backend_names[0],
        parallel: Parallel | None = None,
    ) -> LearnerSection:
        """A learner with this device and precision, and defaults otherwise."""
        return cls(
            device=computation.device,
            dtype=computation.dtype,
            backend=backend,
            parallel=parallel or Parallel(),
        )

    @property
    def in_process(self) -> bool:
        """True if the learner can run in the caller's process."""
        return TRAINING.find_backend(self.backend).in_process(self)

    @property
    def adapters_apart(self) -> LoRA | None:
        if self.exact:
            return self.lora
        return None

    def explain_inexact(self) -> str | None:
        """Names the option that rules out the kernels of `models.exact`; None if there is none."""
        if not TRAINING.find_backend(self.backend).is_exact:
            return f"learner.backend={self.backend} uses different kernels"
        if self.compile:
            return "learner.compile generates different kernels"
        return None

    def explain_unshared(self) -> str | None:
        """Names the option that rules out sharing prefixes; None if there is none."""
        if not self.share_prefixes:
            return "learner.share_prefixes=false"
        if not TRAINING.find_backend(self.backend).shares_prefixes:
            return f"learner.backend={self.backend} computes each sequence by itself"
        if self.parallel.cp > 1:
            return "learner.parallel.cp splits each sequence across ranks"
        return None

    @property
    def idle_options(self) -> dict[str, str]:
        shards = self.parallel.dp * self.parallel.cp
        idle: dict[str, str] = {}
        if shards == 1:
            idle["cpu_offload"] = "without parallel.dp or parallel.cp above 1"
        if shards * self.parallel.dp_replicate == 1:
            idle["sync_every_pass"] = (
                "without parallel.dp, parallel.cp or parallel.dp_replicate above 1"
            )
        return idle

    @rule
    def _backend_supports_options(self) -> None:
        TRAINING.find_backend(self.backend).refuse_options(self)

    @rule
    def _what_is_compiled_holds_its_weights_whole(self) -> None:
        if self.compile and self.parallel.tp > 1:
            raise ValueError(
                "torch.compile does not support tp with varying batch lengths; remove compile, or "
                "use parallel.dp and parallel.cp"
            )

    @rule
    def _adapters_are_of_whole_maps(self) -> None:
        if self.lora is not None and self.parallel.tp > 1:
            raise ValueError(
                "lora does not support tp, which splits the linear maps; use parallel.dp and "
                "parallel.cp"
            )

    @rule
    def _sums_have_an_order(self) -> None:
        shares = self.parallel.row_shares
        uneven = self.parallel.ranks != shares or shares & (shares - 1)
        if self.rows_per_pass is not None and uneven:
            raise ValueError(
                "rows_per_pass fixes the order of sums of gradients, which needs parallel.dp=2, 4, "
                "8, … without tp, cp and pp; remove one of them"
            )


class VLLM(Section):
    """Options for vLLM only."""

    max_model_len: PositiveInt | None = Field(
        default=None, description="maximum tokens of prompt and response; null: the model's context"
    )
    quantization: str | None = Field(
        default=None,
        description=(
            "vLLM weight quantization, such as fp8, if no learner sends weights; null: the "
            "model's own"
        ),
    )
    engine_args: Mapping[str, Any] = Field(
        default_factory=dict,
        description="other vLLM EngineArgs, such as enforce_eager",
    )


class OpenAI(Section):
    """A running server that speaks OpenAI's protocol."""

    base_url: str = Field(description="server address, such as http://localhost:8000/v1")
    model: str = Field(description="model name on the server")
    api_key_env: str = Field(
        default="OPENAI_API_KEY",
        description="environment variable with the server's API key; if unset, no key is sent",
    )
    max_concurrency: PositiveInt = Field(default=64, description="maximum concurrent requests")
    max_retries: NonNegativeInt = Field(
        default=5,
        description=("number of retries after a lost connection, a timeout, 429 or 5xx"),
    )

    @field_validator("base_url")
    @classmethod
    def _an_address_and_no_secret(cls, base_url: str) -> str:
        return require_address(base_url, "http://localhost:8000/v1")


class SamplerSection(Section):
    """The inference engine that generates."""

    backend: Annotated[str, INFERENCE] = Field(
        default=INFERENCE.backend_names[0], description="inference engine"
    )
    max_batch_size: PositiveInt = Field(
        default=256, description="maximum sequences generated at the same time"
    )
    kv_cache_gib: PositiveFloat | None = Field(
        default=None,
        description=(
            "KV cache of an engine on each of its devices; sequences that do not fit "
            "wait; null: torch uses what it needs, vLLM 1 on a CPU and what the plan "
            "leaves on a GPU"
        ),
    )
    replicas: PositiveInt = Field(
        default=1, description="number of engines that share the prompts, each in its own process"
    )
    tensor_parallel: PositiveInt = Field(
        default=1, description="number of devices per engine, on one machine"
    )
    timeout_s: PositiveFloat = Field(
        default=600.0,
        description="an engine that does not respond or start within this time counts as hung",
    )
    transfer: Literal["auto", "shared_memory", "process_group", "cuda_ipc"] = Field(
        default="auto",
        description=(
            "how weights reach an engine in another process; auto: cuda_ipc if each "
            "engine's GPUs are those of ranks, shared_memory on one machine's CPUs, else "
            "process_group"
        ),
    )
    vllm: VLLM = VLLM()
    openai: OpenAI | None = None
    _takes_turns: bool = PrivateAttr(default=False)
    _gets_weights: bool = PrivateAttr(default=False)

    @property
    def takes_turns(self) -> bool:
        """True if it frees its GPUs for the learners while idle; decided by the placement."""
        return self._takes_turns

    @property
    def gets_weights(self) -> bool:
        """True if a learner sends weights before first use, so the engine's own can be dropped."""
        return self._gets_weights

    def take_turns(self, gets_weights: bool = False) -> Self:
        """Returns the same engine, set to take turns with the learners on its GPUs."""
        found = self.model_copy()
        found._takes_turns = True
        found._gets_weights = gets_weights
        return found

    @property
    def engine_count(self) -> int:
        """Number of engines that Lockstep starts; a server has its own engines."""
        if self.is_server:
            return 0
        return self.replicas

    @property
    def is_server(self) -> bool:
        """True if it is a server, which is already running and takes no weights."""
        return INFERENCE.find_backend(self.backend).is_server

    @property
    def context_limit(self) -> int | None:
        """Longest sequence that the engine takes; None means the model's context."""
        return INFERENCE.find_backend(self.backend).context_limit(self)

    @property
    def in_process(self) -> bool:
        """True if the engine can run in the caller's process."""
        return INFERENCE.find_backend(self.backend).in_process(self)

    @rule
    def _options_of_the_backend(self) -> None:
        for name in INFERENCE.backend_names:
            if name == self.backend or name not in type(self).model_fields:
                continue
            value, default = self._value_and_default(name)
            if value != default:
                raise ValueError(
                    f"{name} requires that backend, but backend is {self.backend}; remove it"
                )
        INFERENCE.find_backend(self.backend).refuse_options(self)


def _holds_weights(section: SamplerSection) -> SamplerSection:
    if section.is_server:
        raise ValueError(
            "a server cannot receive weights and returns only text, so backend: "
            f"{section.backend} cannot be used here; choose {' or '.join(list_engines())}"
        )
    return section


EngineSection = Annotated[SamplerSection, AfterValidator(_holds_weights)]
"""A sampler that takes weights."""


class RaySection(Section):
    """A Ray cluster, and the resources of each worker."""

    address: str | None = Field(
        default=None,
        description=(
            "address of a cluster to join; auto: this machine's; null: start one here, on loopback"
        ),
    )
    cpus_per_worker: PositiveFloat = Field(
        default=1.0, description="CPUs per worker; on GPUs a worker also has one GPU"
    )
    timeout_s: PositiveFloat = Field(
        default=300.0, description="how long to wait for free cluster resources"
    )


class ClusterSection(Section):
    """The cluster on which processes run."""

    backend: Literal["local", "ray"] = Field(
        default="local",
        description=(
            "local: child processes of this machine, none if every size is 1; ray: actors"
        ),
    )
    placement: Literal["colocated", "separate"] = Field(
        default="colocated",
        description=(
            "colocated: engines take turns with the learner on its devices; separate: "
            "they have their own"
        ),
    )
    ray: RaySection = RaySection()

    @property
    def is_apart(self) -> bool:
        """True if engines have their own devices."""
        match self.placement:
            case "separate":
                return True
            case "colocated":
                return False
            case _:
                assert_never(self.placement)

    @property
    def on_this_machine(self) -> bool:
        """True if processes are children of the process that starts them."""
        match self.backend:
            case "local":
                return True
            case "ray":
                return False
            case _:
                assert_never(self.backend)

    @rule
    def _options_of_the_backend(self) -> None:
        if self.backend != "ray" and self.ray != RaySection():
            raise ValueError(f"cluster.ray requires cluster.backend=ray, but it is {self.backend}")


class Cluster(ClusterSection):
    """The cluster on which processes run, with timeouts and restarts."""

    timeout_s: PositiveFloat = Field(
        default=1800.0,
        description=("maximum time of one worker call, after which the worker is ended"),
    )
    max_restarts: NonNegativeInt = Field(
        default=3,
        description=(
            "number of times in one session that a run resumes from its newest checkpoint after "
            "losing a worker"
        ),
    )
    offload_idle: bool = Field(
        default=True,
        description=(
            "move learners to host memory while engines on the same GPUs work, and let "
            "engines sleep while learners work; false: both stay on the GPU, which saves "
            "copies if memory allows"
        ),
    )

    @property
    def idle_options(self) -> dict[str, str]:
        if self.is_apart:
            return {"offload_idle": "with placement: separate"}
        return {}
