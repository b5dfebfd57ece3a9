"""The options of an optimizer: a class of torch.optim by name, the learning rate, its schedule. Imports no torch."""

from __future__ import annotations

import json
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

OptimizerName = Literal["AdamW", "Adam", "RMSprop", "SGD"]
_Kind = Literal["share", "switch"]


@dataclass(frozen=True)
class TorchClass:
    """An optimizer of torch.optim whose steps are elementwise, so that ranks may hold any pieces of a weight.

    Attributes:
        options: Its options besides `takes`, with the kind of number that each is.
        state: fp32 tensors that it keeps for each weight, of the weight's shape, each with the option that turns it on;
            None: it is always kept.
        takes: Those of betas, eps and weight_decay that the class has.
        scalars: Numbers that it keeps for each parameter.
        fused: True if it updates each parameter by one kernel.
        moves_by_rate: True if a weight's first steps are of about the learning rate, however large its gradient is.
    """

    options: Mapping[str, _Kind]
    state: Mapping[str, str | None]
    takes: tuple[str, ...] = ("betas", "eps", "weight_decay")
    scalars: tuple[str, ...] = ("step",)
    fused: bool = False
    moves_by_rate: bool = True


_OF_ADAM: Mapping[str, str | None] = {"exp_avg": None, "exp_avg_sq": None, "max_exp_avg_sq": "amsgrad"}
CLASSES: Mapping[OptimizerName, TorchClass] = {
    "AdamW": TorchClass({"amsgrad": "switch"}, _OF_ADAM, fused=True),
    "Adam": TorchClass({"amsgrad": "switch", "decoupled_weight_decay": "switch"}, _OF_ADAM, fused=True),
    "RMSprop": TorchClass(
        takes=("eps", "weight_decay"),
        options={"alpha": "share", "momentum": "share", "centered": "switch"},
        state={"square_avg": None, "momentum_buffer": "momentum", "grad_avg": "centered"},
    ),
    "SGD": TorchClass(
        takes=("weight_decay",),
        options={"momentum": "share", "dampening": "share", "nesterov": "switch"},
        state={"momentum_buffer": "momentum"},
        scalars=(),
        moves_by_rate=False,
    ),
}


class Schedule(Section):
    """Learning rate over optimizer steps: linear warm-up, then constant, linear or cosine."""

    warmup_steps: NonNegativeInt = Field(default=0, description="optimizer steps over which the rate rises to lr")
    decay: Literal["constant", "linear", "cosine"] = Field(default="constant", description="what follows the warm-up")
    decay_steps: PositiveInt | None = Field(
        default=None, description="optimizer steps until the end of the decay, warm-up included"
    )
    final_fraction: Probability = Field(default=0.0, description="the decay ends at lr times this")

    @rule
    def _decay_has_an_end(self) -> None:
        if (self.decay == "constant") != (self.decay_steps is None):
            raise ValueError("decay_steps goes with decay: linear and decay: cosine, and only with them")
        if self.decay == "constant" and self.final_fraction:
            raise ValueError("final_fraction goes with decay: linear and decay: cosine, and only with them")
        if self.decay_steps is not None and self.decay_steps < self.warmup_steps:
            raise ValueError(f"decay_steps includes the warm-up: it takes at least warmup_steps, {self.warmup_steps}")


_Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Optimizer(Section):
    """An optimizer of torch.optim, AdamW (Loshchilov & Hutter 2019) unless named, with fp32 weights and moments."""

    name: OptimizerName = Field(default="AdamW", description="class of torch.optim")
    lr: PositiveFloat = Field(description="learning rate after the warm-up")
    betas: tuple[_Decay, _Decay] = Field(
        default=(0.9, 0.999), description="decay of the running means of the gradient and of its square"
    )
    eps: PositiveFloat = Field(default=1e-8, description="added to the root of the mean square")
    weight_decay: NonNegativeFloat = Field(
        default=0.0,
        description="a step of AdamW takes lr times this of each weight; of most others it is an L2 penalty",
    )
    options: Mapping[str, bool | float] = Field(
        default_factory=dict, description="other options of the class, such as momentum: 0.9 of SGD, by torch's names"
    )
    max_grad_norm: PositiveFloat | None = Field(default=1.0, description="clip the gradient's norm; null: do not")
    schedule: Schedule = Schedule()

    def __hash__(self) -> int:
        """Hash of its JSON, since a mapping has none."""
        return hash(self.model_dump_json())

    @property
    def torch_class(self) -> TorchClass:
        """The facts about its class."""
        return CLASSES[self.name]

    @property
    def arguments(self) -> dict[str, bool | float | tuple[float, float]]:
        """The class's arguments but for parameters and learning rate."""
        own = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        return {name: own[name] for name in self.torch_class.takes} | dict(self.options)

    @property
    def state(self) -> tuple[str, ...]:
        """Tensors that are kept for each weight."""
        return tuple(name for name, option in self.torch_class.state.items() if not option or self.options.get(option))

    @property
    def idle_options(self) -> dict[str, str]:
        return {
            name: f"with name: {self.name}"
            for name in ("betas", "eps", "weight_decay")
            if name not in self.torch_class.takes
        }

    @rule
    def _options_are_of_the_class(self) -> None:
        kinds = self.torch_class.options
        for name, value in self.options.items():
            if name in type(self).model_fields:
                raise ValueError(f"options has {name}, which has a key of its own: say {name} beside options")
            if name not in kinds:
                known = f"it has: {', '.join(kinds)}" if kinds else "it has none"
                raise ValueError(f"options: {self.name} has no option {name}; {known}")
            _require_kind(name, value, kinds[name])

    @rule
    def _momentum_has_its_own(self) -> None:
        momentum, dampening = self.options.get("momentum"), self.options.get("dampening")
        if dampening and not momentum:
            raise ValueError("options: dampening does nothing where momentum is 0; leave it out, or say momentum")
        if self.options.get("nesterov") and (dampening or not momentum):
            raise ValueError("options: nesterov needs a momentum, and no dampening")


def _require_kind(name: str, value: bool | float, kind: _Kind) -> None:
    """Raises ValueError where an option's value is not of its kind."""
    match kind:
        case "switch":
            right, wanted = isinstance(value, bool), "true or false"
        case "share":
            right, wanted = not isinstance(value, bool) and 0 <= value < 1, "a number from 0 to below 1"
        case _:
            assert_never(kind)
    if not right:
        raise ValueError(f"options: {name} is {json.dumps(value)}, but should be {wanted}")
