"""A fault is what a mistake does to one side's real code; here such sides are built, also with two faults at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from types import new_class
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.models import Ground
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep.config import DType
from lockstep.doctor.base import USUAL, Conditions, Side
from lockstep.errors import InputError
from lockstep.types import Request, SamplingParams

Kind = Literal["hf", "torch"]
Split = Literal["tuning", "held-out"]
Stream = Iterable[tuple[str, Tensor]]
"""Weights on their way to a side."""
PLAINLY = SamplingParams(max_tokens=64)
_CLASSES: dict[Kind, type[HFSide] | type[TorchSide]] = {"hf": HFSide, "torch": TorchSide}


@dataclass(frozen=True)
class Change:
    """What a fault does to one side.

    Attributes:
        mixin: A subclass of that side's backend; those of several faults are inherited from together, so each calls
            `super()` and keeps no state of a common name.
        alter: Done to the model after each build.
        asked: Done to the model each time that it is asked for, by the conditions.
        received: Done to weights that are sent to it.
        said: Settings that it reports besides.
        config: Fields of the model's configuration.
        dtype: Of the computation.
        side: None: that of the fault.
    """

    mixin: type[HFSide] | type[TorchSide] | None = None
    alter: Alteration | None = None
    asked: Callable[[PreTrainedModel, Conditions], None] | None = None
    received: Callable[[Stream], Stream] | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: DType | None = None
    side: Side | None = None

    def overlay(self, backend: Any) -> None:
        """Puts what it does to a backend's methods over them."""
        load, model, settings = backend.load, backend.model, backend.settings
        received, asked = self.received, self.asked
        if received is not None:
            vars(backend)["load"] = lambda stream: load(received(stream))
        if asked is not None:
            vars(backend)["model"] = lambda conditions=USUAL: _after(model(conditions), conditions, asked)
        vars(backend)["settings"] = lambda: {**settings(), **self.said}


def _after(
    model: PreTrainedModel, conditions: Conditions, asked: Callable[[PreTrainedModel, Conditions], None]
) -> PreTrainedModel:
    asked(model, conditions)
    return model


@dataclass(frozen=True)
class Setup:
    """What a fault needs around it; None: it does not matter, so that another fault, or the default, may say.

    Attributes:
        model: A name that `Ground` knows.
        train: Backend of the training side.
        infer: Backend of the inference side.
        dtype: Both sides compute in it.
        batch_size: Sequences side by side.
        sampling: What responses are drawn with.
        config: Fields of both sides' configuration.
        alter: Done to the model of both sides.
    """

    model: str | None = None
    train: Kind | None = None
    infer: Kind | None = None
    dtype: DType | None = None
    batch_size: int | None = None
    sampling: SamplingParams | None = None
    config: tuple[tuple[str, Any], ...] | None = None
    alter: Alteration | None = None

    def joined(self, other: Setup) -> Setup:
        """Both needs at once; raises ValueError where they contradict each other."""
        values: dict[str, Any] = {}
        for name in (item.name for item in fields(self)):
            said = {value for value in (getattr(self, name), getattr(other, name)) if value is not None}
            if len(said) > 1:
                raise InputError(f"{name} cannot be {' and '.join(map(str, said))} at once; choose other faults")
            values[name] = said.pop() if said else None
        return Setup(**values)


@dataclass(frozen=True)
class Case:
    """Two sides to examine. Close it when done."""

    train: HFSide | TorchSide
    infer: HFSide | TorchSide
    folder: str
    requests: tuple[Request, ...]
    sampling: SamplingParams

    def close(self) -> None:
        """Closes both sides."""
        self.train.close()
        self.infer.close()


@dataclass(frozen=True)
class Fault:
    """A mistake that can be made on purpose, in any strength.

    Attributes:
        number: In the lists of faults that the doctor is measured by.
        round: Which list it was written for; 2 is the list of 1 in other code, the others have an author each.
        name: Of this fault, unique.
        causes: Its right names in `places.PLACES`; the first is the best one.
        side: The one that is wrong; None: neither more than the other.
        unit: What its magnitude counts. Towards 0 the fault goes away.
        magnitudes: A large and a small one.
        changes: What it does at a magnitude.
        setup: What it needs around it at a magnitude.
        after: Done once both sides are built, as a refit is.
        split: Whether rules were tuned on it.
    """

    number: int
    round: int
    name: str
    causes: tuple[str, ...]
    side: Side | None
    unit: str
    magnitudes: tuple[float, float]
    changes: Callable[[float], tuple[Change, ...]]
    setup: Callable[[float], Setup] = lambda magnitude: Setup()
    after: Callable[[Case, float], None] | None = None
    split: Split = "tuning"

    def at(self, magnitude: float) -> Injected:
        """This fault in one strength."""
        return Injected(self, magnitude)

    @property
    def large(self) -> Injected:
        """This fault, strong."""
        return self.at(self.magnitudes[0])

    @property
    def small(self) -> Injected:
        """This fault, weak."""
        return self.at(self.magnitudes[1])


@dataclass(frozen=True)
class Injected:
    """A fault in one strength."""

    fault: Fault
    magnitude: float

    def changes(self, side: Side) -> list[Change]:
        """What it does to a side."""
        return [one for one in self.fault.changes(self.magnitude) if (one.side or self.fault.side) == side]

    @property
    def setup(self) -> Setup:
        """What it needs."""
        return self.fault.setup(self.magnitude)


def build(ground: Ground, *injected: Injected) -> Case:
    """Two sides with these faults, ready to be examined.

    Raises:
        ValueError: If the faults need different surroundings.
    """
    train, infer = ([change for one in injected for change in one.changes(side)] for side in ("train", "infer"))
    case = built(ground, _joined(injected), train, infer)
    for one in injected:
        if one.fault.after is not None:
            one.fault.after(case, one.magnitude)
    return case


def healthy(ground: Ground, *injected: Injected) -> Case:
    """The same surroundings without the faults."""
    return built(ground, _joined(injected))


def _joined(injected: Iterable[Injected]) -> Setup:
    return reduce(Setup.joined, (one.setup for one in injected), Setup())


def built(ground: Ground, setup: Setup, train: Sequence[Change] = (), infer: Sequence[Change] = ()) -> Case:
    """Two sides with changes, in some surroundings."""
    model = setup.model or "llama"
    return Case(
        _side(ground.folder(model), setup.train or "hf", setup, train),
        _side(ground.folder(model), setup.infer or "torch", setup, infer),
        ground.folder(model),
        ground.requests(model),
        setup.sampling or PLAINLY,
    )


def _side(folder: str, kind: Kind, setup: Setup, changes: Sequence[Change]) -> HFSide | TorchSide:
    mixins = [change.mixin for change in changes if change.mixin is not None]
    made: Any = new_class("".join(m.__name__ for m in mixins), tuple(mixins)) if mixins else _CLASSES[kind]
    dtype = next((change.dtype for change in changes if change.dtype is not None), setup.dtype or "fp32")
    config = dict(setup.config or ()) | {name: value for change in changes for name, value in change.config.items()}
    alter = chained(setup.alter, *(change.alter for change in changes))
    backend = made(folder, dtype, setup.batch_size or 8, alter, config)
    for change in changes:
        change.overlay(backend)
    return backend


def chained(*alterations: Alteration | None) -> Alteration:
    """One alteration after the other."""

    def alter(model: PreTrainedModel) -> None:
        for one in alterations:
            if one is not None:
                one(model)

    return alter
