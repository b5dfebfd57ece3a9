"""The options of `lockstep doctor`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.config.machinery import ClusterSection, Computation, SamplerSection
from lockstep.config.parallel import Parallel
from lockstep.config.recipe import Recipe
from lockstep.config.sampling import TokenDistribution
from lockstep.config.section import LocalPath, Probability, Section, rule
from lockstep.config.sources import DataPaths, DataSection, ModelFolder, PromptSection
from lockstep.core.errors import InputError

_LAYOUT = re.compile(r"(dp|tp|cp|pp)([1-9]\d*)")
_NAMES = (
    r"^(hf|vllm(-tp[1-9]\d*)?|torch(-((dp|tp|cp)[1-9]\d*)+)?|megatron(-((dp|tp|cp|pp)[1-9]\d*)+)?)$"
)
_ANY_LENGTH = 2**40
BackendName = Annotated[str, Field(pattern=_NAMES)]
"""`torch-dp2tp2` and `megatron-pp2` are learners over 4 and 2 ranks, `vllm-tp2` is vLLM over 2."""


def ranks_of(backend: BackendName) -> Parallel:
    """The parallel sizes in a backend's name.

    Raises:
        InputError: A size is given twice.
    """
    sizes = _LAYOUT.findall(backend.partition("-")[2])
    named = dict(sizes)
    if len(named) < len(sizes):
        raise InputError(f"backends: {backend} gives one size twice; give each once")
    return Parallel(**{name: int(size) for name, size in named.items()})


class DoctorData(PromptSection):
    """Source of real prompts."""

    prompts: DataPaths | None = Field(
        default=None,
        description="file of rows, or a list of files; null: a few that ship with Lockstep",
    )

    @property
    def idle_options(self) -> dict[str, str]:
        return {"overlong_prompts": "since prompts are cut to their last tokens"}

    def without_length_limit(self, rows: DataPaths) -> DataSection:
        """The same section for `rows`, in their order, with prompts of any length."""
        return self.model_copy(update={"max_prompt_tokens": _ANY_LENGTH}).as_data(rows, answer="")


class SamplingMethod(TokenDistribution):
    """A sampling distribution."""

    @property
    def name(self) -> str:
        """Label in a table."""
        shape: list[str] = []
        for name, value in self.of_length(1).filters_and_penalties.items():
            shape.append(f"{name}={value:g}")
        return " ".join(["greedy" if self.temperature == 0 else f"T={self.temperature:g}", *shape])


class DoctorGrid(Section):
    """The cells of the table: every length with every kind of data, method and batch size."""

    lengths: tuple[PositiveInt, ...] = Field(
        default=(100, 1000, 10000), description="tokens of a response"
    )
    data: tuple[Literal["real", "counting"], ...] = Field(
        default=("real", "counting"), description="prompts: text, or counting numbers"
    )
    methods: tuple[SamplingMethod, ...] = Field(
        default=(
            SamplingMethod(temperature=0.0),
            SamplingMethod(),
            SamplingMethod(temperature=0.7),
            SamplingMethod(top_p=0.9),
        ),
        description="sampling distributions",
    )
    batch_sizes: tuple[PositiveInt, ...] = Field(
        default=(1, 8, 32), description="sequences per batch"
    )
    sequences: PositiveInt = Field(
        default=32,
        description=(
            "sequences of a cell; fewer if max_steps or max_tokens require it, but at least one "
            "batch"
        ),
    )
    all_draw_to: PositiveInt = Field(
        default=100,
        description=(
            "up to this response length every backend that generates draws; beyond it, only the "
            "last one"
        ),
    )
    decoded_tokens: PositiveInt = Field(
        default=1000,
        description=(
            "most tokens of a response to decode and compare; a longer response begins "
            "with prompt text, which is prefilled"
        ),
    )
    max_steps: PositiveInt = Field(
        default=2000,
        description=(
            "most decoding steps of each backend in a cell, beyond one batch; bounds the time of "
            "batch size 1"
        ),
    )
    max_tokens: PositiveInt = Field(
        default=20000,
        description=(
            "most tokens of a cell that all backends rescore, beyond one sequence; the "
            "rest of a batch is only generated along with them, without text at its "
            "beginning"
        ),
    )
    repeats: PositiveInt = Field(
        default=10,
        description=(
            "number of times to repeat a cell of the shortest length, for its first 25 tokens"
        ),
    )
    budget_s: PositiveFloat | None = Field(
        default=None,
        description=(
            "time budget in seconds; cells that would exceed it are skipped and listed; null: no "
            "limit"
        ),
    )


class DoctorLimits(Section):
    """Limits of agreement."""

    max_mult_prob_error: Annotated[float, Field(ge=1.0)] = Field(
        default=1.05,
        description="largest mean of e^|Δ|, at least 1; the default is the usual limit",
    )
    max_outlier_rate: Probability = Field(
        default=1e-3,
        description="largest share of tokens with |Δ| above 1 nat; 1e-2 for mixtures of experts",
    )
    confidence: Probability = Field(
        default=0.99, description="confidence of one-sided bounds, over the whole table"
    )


class DoctorRun(Section):
    """Output of a command."""

    folder: LocalPath | None = Field(
        default=None,
        description=(
            "folder of the results; null: doctor/<model>-<hash of model, prompts and options>"
        ),
    )


class DoctorRecipe(Recipe):
    """`algorithm: doctor`"""

    command = "doctor table MODEL --recipe {recipe}"
    seed: int = Field(default=0, description="seed of all random numbers")
    model: ModelFolder
    data: DoctorData
    backends: tuple[BackendName, ...] = Field(
        default=("hf", "torch"),
        description="backends to compare pairwise; the earlier of a pair is the training side",
    )
    grid: DoctorGrid = DoctorGrid()
    limits: DoctorLimits = DoctorLimits()
    learner: Computation = Computation()
    cluster: ClusterSection = ClusterSection()
    sampler: SamplerSection = SamplerSection()
    run: DoctorRun = DoctorRun()

    @property
    def folder(self) -> str | None:
        return self.run.folder

    @rule
    def _each_backend_once(self) -> None:
        if len(self.backends) < 2:
            raise ValueError(
                "backends needs two or more to compare, such as hf, torch, vllm, megatron, "
                "torch-dp2tp2, vllm-tp2, megatron-pp2"
            )
        if len(set(self.backends)) < len(self.backends):
            raise ValueError("backends has a duplicate; name each once")
