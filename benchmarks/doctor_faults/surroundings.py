"""How the lists say what a fault needs around it, and what it does to a side, at each magnitude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.doctor_faults.fault import PLAINLY, Change, Kind, Setup
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep.doctor.base import Side
from lockstep.types import SamplingParams

Changes = Callable[[float], tuple[Change, ...]]
Surroundings = Callable[[float], Setup]


def around(
    model: str,
    train: Kind,
    infer: Kind,
    sampling: SamplingParams = PLAINLY,
    alter: Callable[[float], Alteration] | None = None,
    **config: Callable[[float], Any],
) -> Surroundings:
    """A model and two backends; fields of the configuration by name, `__` for a dot."""
    return lambda magnitude: Setup(
        model,
        train,
        infer,
        sampling=sampling,
        config=tuple((field.replace("__", "."), value(magnitude)) for field, value in config.items()) or None,
        alter=alter and alter(magnitude),
    )


def drawn(model: str, train: Kind, infer: Kind, **fields: Callable[[float], Any]) -> Surroundings:
    """A model and two backends, and what responses are drawn with."""
    return lambda magnitude: Setup(
        model,
        train,
        infer,
        sampling=replace(PLAINLY, **{name: value(magnitude) for name, value in fields.items()}),
    )


def mixed(side: Side, mixin: Callable[[float], type[HFSide] | type[TorchSide]]) -> Changes:
    """A side's backend does something otherwise."""
    return lambda magnitude: (Change(side, mixin=mixin(magnitude)),)


def altered(side: Side, alter: Callable[[float], Alteration]) -> Changes:
    """A side's model is changed once built."""
    return lambda magnitude: (Change(side, alter=alter(magnitude)),)


def configured(side: Side, field: str, value: Callable[[float], object]) -> Changes:
    """A side's model has another configuration."""
    return lambda magnitude: (Change(side, config={field: value(magnitude)}),)
