"""Options of an optimizer: a class of torch.optim by name, the learning rate and its schedule.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from lockstep.config.section import Probability, Section, rule

OptimizerName = Literal["AdamW", "RMSprop"]


@dataclass(frozen=True)
class TorchClass:
    """An elementwise optimizer of torch.optim: ranks may hold any slices of a weight.

    Attributes:
        takes: Options of the section that the class supports, besides the learning rate.
        state: Number of fp32 tensors that it keeps for each weight, besides the step count.
        fused: Whether it updates each parameter with one kernel.
    """

    takes: tuple[str, ...]
    state: tuple[str, ...]
    fused: bool


CLASSES: Mapping[OptimizerName, TorchClass] = {
    "AdamW": TorchClass(("betas", "eps", "weight_decay"), ("exp_avg", "exp_avg_sq"), fused=True),
    "RMSprop": TorchClass(("eps", "weight_decay"), ("square_avg",), fused=False),
}


class Schedule(Section):
    """Learning rate over optimizer steps: linear warmup, then constant, linear or cosine."""

    warmup_steps: NonNegativeInt = Field(
        default=0, description="optimizer steps over which the learning rate rises to lr"
    )
    decay: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="decay after the warm-up"
    )
    decay_steps: PositiveInt | None = Field(
        default=None,
        description=("optimizer steps until the end of the decay, including the warm-up"),
    )
    final_fraction: Probability = Field(
        default=0.0, description=("final learning rate as a fraction of lr")
    )

    @rule
    def _decay_has_an_end(self) -> None:
        if (self.decay == "constant") != (self.decay_steps is None):
            raise ValueError(
                "decay_steps requires decay: linear or decay: cosine; set both or neither"
            )
        if self.decay == "constant" and self.final_fraction:
            raise ValueError(
                "final_fraction requires decay: linear or decay: cosine; set both or neither"
            )
        if self.decay_steps is not None and self.decay_steps < self.warmup_steps:
            raise ValueError(
                "decay_steps includes the warm-up, so it must be at least warmup_steps = "
                f"{self.warmup_steps}"
            )


_DecayRate = Annotated[float, Field(ge=0.0, lt=1.0)]


class Optimizer(Section):
    """An optimizer of torch.optim with fp32 weights and moments.

    The default is AdamW (Loshchilov & Hutter 2019).
    """

    name: OptimizerName = Field(default="AdamW", description="class of torch.optim")
    lr: PositiveFloat = Field(description="learning rate after the warm-up")
    betas: tuple[_DecayRate, _DecayRate] = Field(
        default=(0.9, 0.999),
        description="decay rates of the running means of the gradient and its square",
    )
    eps: PositiveFloat = Field(
        default=1e-8, description=("added to the root mean square in the denominator")
    )
    weight_decay: NonNegativeFloat = Field(
        default=0.0,
        description=("decoupled weight decay in AdamW, an L2 penalty in RMSprop"),
    )
    max_grad_norm: PositiveFloat | None = Field(
        default=1.0, description="maximum gradient norm; null: no clipping"
    )
    schedule: Schedule = Schedule()

    @property
    def torch_class(self) -> TorchClass:
        """The facts about its class."""
        return CLASSES[self.name]

    @property
    def torch_arguments(self) -> dict[str, float | tuple[float, float]]:
        """The class's arguments except parameters and learning rate."""
        own = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        return {name: own[name] for name in self.torch_class.takes}

    @property
    def idle_options(self) -> dict[str, str]:
        if "betas" in self.torch_class.takes:
            return {}
        return {"betas": f"with name: {self.name}"}
