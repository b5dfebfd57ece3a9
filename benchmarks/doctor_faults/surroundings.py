"""How rows of the lists say what a fault does to a side, and what it needs around it, at each magnitude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.doctor_faults.fault import PLAINLY, Change, Kind, Setup, Stream
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep.types import SamplingParams

Changes = Callable[[float], tuple[Change, ...]]
Sampling = Callable[[float], SamplingParams]


def at(magnitude: float, value: Any) -> Any:
    """A value, or what a function makes of the magnitude."""
    return value(magnitude) if callable(value) else value


def drawn(**fields: Any) -> Sampling:
    """What responses are drawn with: values, or functions of the magnitude."""
    return lambda m: replace(PLAINLY, **{name: at(m, value) for name, value in fields.items()})


def around(
    model: Any = None,
    train: Kind | None = None,
    infer: Kind | None = None,
    sampling: Sampling | None = None,
    alter: Callable[[float], Alteration] | None = None,
    **config: Any,
) -> Callable[[float], Setup]:
    """A model and two backends; fields of the configuration by name, `__` for a dot; values or functions."""
    return lambda m: Setup(
        at(m, model),
        train,
        infer,
        sampling=sampling and sampling(m),
        config=tuple((field.replace("__", "."), at(m, value)) for field, value in config.items()) or None,
        alter=alter and alter(m),
    )


def mixed(mixin: Callable[[float], type[HFSide] | type[TorchSide]], **said: Any) -> Changes:
    """The side's backend does something otherwise, and says so."""
    return lambda m: (Change(mixin(m), said={name: at(m, value) for name, value in said.items()}),)


def always(mixin: type[HFSide] | type[TorchSide], **said: Any) -> Changes:
    """The same at each magnitude."""
    return mixed(lambda _: mixin, **said)


def altered(alter: Callable[[float], Alteration], **said: Any) -> Changes:
    """The side's model is changed once built."""
    return lambda m: (Change(alter=alter(m), said={name: at(m, value) for name, value in said.items()}),)


def configured(**fields: Any) -> Changes:
    """The side's model has another configuration."""
    return lambda m: (Change(config={name.replace("__", "."): at(m, value) for name, value in fields.items()}),)


def whole(function: Callable[[int], Any]) -> Callable[[float], Any]:
    """Takes the magnitude as a count."""
    return lambda m: function(round(m))


def inverse(function: Callable[[int], Any]) -> Callable[[float], Any]:
    """Takes one over the magnitude as a count."""
    return lambda m: function(round(1 / m))


def unchanged(magnitude: float) -> tuple[Change, ...]:
    """Nothing is done before both sides are built."""
    return ()


def without(*endings: str) -> Callable[[Stream], Stream]:
    """Weights whose names end so are lost on their way."""
    return lambda stream: ((name, tensor) for name, tensor in stream if not name.endswith(endings))
