"""The engines that `lockstep doctor locate` compares, and how each is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from lockstep.models.device import resolve_device
from lockstep.models.precision import TORCH_TYPES
from lockstep_doctor.engines import EngineOptions, find_engine
from lockstep_doctor.table.options import DoctorRecipe, ranks_of
from lockstep_doctor.tap import Tap

REFERENCE = "hf"
"""Engine whose program in float64 says who is wrong."""

_TYPES = TORCH_TYPES | {"fp64": torch.float64}
_LEARNERS, _SAMPLERS, _NEIGHBORS = ("torch", "megatron"), {"torch": "torch_sampler"}, 2


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and how it is opened."""

    engine: str
    folder: Path
    options: EngineOptions

    @classmethod
    def of(cls, recipe: DoctorRecipe, name: str) -> EngineChoice:
        """The engine that a backend's name stands for, such as `torch-tp2`."""
        engine = name.partition("-")[0]
        sizes = {key: size for key, size in ranks_of(name).model_dump().items() if size > 1}
        device = str(resolve_device(recipe.learner.device))
        settings = recipe.sampler.vllm.model_dump(exclude_defaults=True) if engine == "vllm" else {}
        options = EngineOptions(_TYPES[recipe.learner.dtype], device, sizes, settings=settings)
        return cls(engine, Path(recipe.model.path), options)

    def __str__(self) -> str:
        sizes = "".join(f"{key}{size}" for key, size in self.options.parallel.items())
        ways = [" among others"] * bool(self.options.neighbors) + [" by decoding"] * (self.options.prompt is not None)
        return "".join([self.engine.replace("_", " "), f"-{sizes}" if sizes else "", *ways])

    @property
    def is_learner(self) -> bool:
        """True if its weights are in fp32, and several sequences lie in one row."""
        return self.engine in _LEARNERS

    def but(self, **options: Any) -> EngineChoice:
        """The same with other options."""
        return replace(self, options=replace(self.options, **options))

    def open(self) -> AbstractContextManager[Tap]:
        """Opens it for a block."""
        return find_engine(self.engine)(self.folder, self.options)

    def variants(self, prompt: int) -> Iterator[EngineChoice]:
        """Other ways in which the engine computes the same: beside other sequences, and by decoding."""
        if self.is_learner:
            yield self.but(neighbors=_NEIGHBORS)
        sampler = replace(self, engine=_SAMPLERS.get(self.engine, self.engine))
        if self.engine in (REFERENCE, *_SAMPLERS) and not self.options.parallel:
            yield sampler.but(prompt=prompt)


@dataclass(frozen=True)
class EnginePair:
    """Two engines beside each other, or one beside itself."""

    reference: EngineChoice
    other: EngineChoice

    def __str__(self) -> str:
        return f"{self.reference} vs {self.other}"

    @property
    def is_beside(self) -> bool:
        """True for an engine beside itself."""
        return self.other in self.reference.variants(self.other.options.prompt or 1)

    @property
    def sides(self) -> tuple[EngineChoice, EngineChoice]:
        """Both engines."""
        return self.reference, self.other

    @contextmanager
    def open(self) -> Iterator[tuple[Tap, Tap]]:
        """Opens both for a block."""
        with ExitStack() as open_:
            first, second = (open_.enter_context(choice.open()) for choice in self.sides)
            yield first, second


def pairs_of(recipe: DoctorRecipe) -> list[EnginePair]:
    """Each engine of a recipe with each."""
    return [EnginePair(*pair) for pair in combinations([EngineChoice.of(recipe, one) for one in recipe.backends], 2)]


def find_variants(pairs: Sequence[EnginePair], prompt: int) -> list[EnginePair]:
    """Each engine of pairs beside itself, in every other way."""
    engines = [side for pair in pairs for side in pair.sides]
    own = [one for place, one in enumerate(engines) if one not in engines[:place]]
    return [EnginePair(one, variant) for one in own for variant in one.variants(prompt)]
