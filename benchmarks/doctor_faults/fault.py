"""A fault is what a mistake does to one side's real code; here such sides are built, also with two faults at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import new_class
from typing import Any, Literal

from transformers import PreTrainedModel

from benchmarks.doctor_faults.model_ground import Ground
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep.doctor.base import DType, Side
from lockstep.errors import InputError
from lockstep.types import Request, SamplingParams

Kind = Literal["hf", "torch"]
PLAINLY = SamplingParams(max_tokens=64)
_CLASSES: dict[Kind, type[HFSide] | type[TorchSide]] = {"hf": HFSide, "torch": TorchSide}


@dataclass(frozen=True)
class Change:
    """What a fault does to one side.

    Attributes:
        mixin: A subclass of that side's backend; those of several faults are inherited from together, so each calls
            `super()` and keeps no state of a common name.
        alter: Done to the model after each build.
        config: Fields of the model's configuration.
        dtype: Of the computation.
    """

    side: Side
    mixin: type[HFSide] | type[TorchSide] | None = None
    alter: Alteration | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: DType | None = None


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


def anyhow(magnitude: float) -> Setup:
    """A fault that shows in the default setup."""
    return Setup()


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
        number: In the list of faults that the doctor is measured by.
        name: Of this fault, unique.
        causes: Its right names in `causes.CAUSES`; the first is the best one.
        side: The one that is wrong; None: neither more than the other.
        unit: What its magnitude counts. Towards 0 the fault goes away.
        magnitudes: A large and a small one.
        changes: What it does at a magnitude.
        setup: What it needs around it at a magnitude.
        after: Done once both sides are built, as a refit is.
    """

    number: int
    name: str
    causes: tuple[str, ...]
    side: Side | None
    unit: str
    magnitudes: tuple[float, float]
    changes: Callable[[float], tuple[Change, ...]]
    setup: Callable[[float], Setup] = anyhow
    after: Callable[[Case, float], None] | None = None

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

    @property
    def changes(self) -> tuple[Change, ...]:
        """What it does."""
        return self.fault.changes(self.magnitude)

    @property
    def setup(self) -> Setup:
        """What it needs."""
        return self.fault.setup(self.magnitude)


def build(ground: Ground, *injected: Injected) -> Case:
    """Two sides with these faults, ready to be examined.

    Raises:
        ValueError: If the faults need different surroundings.
    """
    setup = Setup()
    for one in injected:
        setup = setup.joined(one.setup)
    case = built(ground, setup, [change for one in injected for change in one.changes])
    for one in injected:
        if one.fault.after is not None:
            one.fault.after(case, one.magnitude)
    return case


def healthy(ground: Ground, *injected: Injected) -> Case:
    """The same surroundings without the faults."""
    setup = Setup()
    for one in injected:
        setup = setup.joined(one.setup)
    return built(ground, setup, ())


def built(ground: Ground, setup: Setup, changes: Sequence[Change]) -> Case:
    """Two sides with changes, in some surroundings."""
    model = setup.model or "llama"
    return Case(
        _side(ground.folder(model), setup.train or "hf", setup, [c for c in changes if c.side == "train"]),
        _side(ground.folder(model), setup.infer or "torch", setup, [c for c in changes if c.side == "infer"]),
        ground.folder(model),
        ground.requests(model),
        setup.sampling or PLAINLY,
    )


def _side(folder: str, kind: Kind, setup: Setup, changes: Sequence[Change]) -> HFSide | TorchSide:
    mixins = [change.mixin for change in changes if change.mixin is not None]
    made: Any = new_class("".join(m.__name__ for m in mixins), tuple(mixins)) if mixins else _CLASSES[kind]
    dtype = next((change.dtype for change in changes if change.dtype is not None), setup.dtype or "fp32")
    config = dict(setup.config or ()) | {name: value for change in changes for name, value in change.config.items()}
    alter = _chained([one for one in (setup.alter, *(change.alter for change in changes)) if one is not None])
    return made(folder, dtype, setup.batch_size or 8, alter, config)


def _chained(alterations: Iterable[Alteration]) -> Alteration:
    every = tuple(alterations)

    def alter(model: PreTrainedModel) -> None:
        for one in every:
            one(model)

    return alter
