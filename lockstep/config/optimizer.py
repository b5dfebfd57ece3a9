"""Options of an optimizer: a class of torch.optim by name, the learning rate and its schedule.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never

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


RunShare = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A share of the run's optimizer steps."""


class Schedule(Section):
    """Learning rate over optimizer steps: linear warm-up, then constant, linear or cosine."""

    warmup_steps: NonNegativeInt | RunShare = Field(
        default=0,
        description="optimizer steps, or share of the run, until the learning rate reaches lr",
    )
    decay: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="decay after the warm-up"
    )
    decay_steps: PositiveInt | None = Field(
        default=None,
        description=(
            "optimizer steps until the end of the decay, including the warm-up; null: the whole run"
        ),
    )
    cooldown_steps: PositiveInt | RunShare | None = Field(
        default=None,
        description=(
            "decay only over this many last steps, or this share of the run (WSD); null: from the "
            "end of the warm-up"
        ),
    )
    final_fraction: Probability = Field(
        default=0.0, description=("final learning rate as a fraction of lr")
    )

    @rule
    def _decay_has_an_end(self) -> None:
        for name in ("decay_steps", "cooldown_steps", "final_fraction"):
            if not self.has_decay and getattr(self, name):
                raise ValueError(
                    f"{name} requires decay: linear or decay: cosine; set both or neither"
                )
        if self.decay_steps is None:
            return
        first = math.floor(self.warmup_steps) + math.floor(self.cooldown_steps or 0)
        if self.decay_steps < first:
            raise ValueError(
                "decay_steps includes warm-up and cooldown, so it must be at least warmup_steps + "
                f"cooldown_steps = {first}"
            )

    @property
    def has_decay(self) -> bool:
        """True if the learning rate falls after the warm-up."""
        match self.decay:
            case "constant":
                return False
            case "linear" | "cosine":
                return True
            case _:
                assert_never(self.decay)

    def fit_to_run(self, updates: int) -> Schedule:
        """The same schedule in numbers of steps, for a run of `updates` optimizer steps."""
        fitted: dict[str, int | None] = {}
        for name in ("warmup_steps", "cooldown_steps"):
            steps = getattr(self, name)
            fitted[name] = math.ceil(steps * updates) if isinstance(steps, float) else steps
        if self.has_decay:
            fitted["decay_steps"] = self.decay_steps or updates
        return self.model_copy(update=fitted)


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
        """The entry of its class in the table of supported optimizers."""
        return CLASSES[self.name]

    @property
    def depends_on_run(self) -> bool:
        """True if the learning rate depends on the number of optimizer steps of the run."""
        return self.fit_to_run(0) != self

    def fit_to_run(self, updates: int) -> Optimizer:
        """The same options with `Schedule.fit_to_run`."""
        return self.model_copy(update={"schedule": self.schedule.fit_to_run(updates)})

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
