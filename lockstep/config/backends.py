"""Training and inference backends by name, and the part of each that depends on options alone.

Imports no torch.

A backend is a folder of `learners/` or `samplers/` whose `backend.py` holds one declaration; a line
below says where. What needs tensors is declared on top of these, in `learners/backend.py` and
`samplers/backend.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pydantic_core import CoreSchema, core_schema

from lockstep.config.section import Section
from lockstep.config.user_code import load

B = TypeVar("B")
S = TypeVar("S", bound=Section)
"""The section of options: `LearnerSection` or `SamplerSection`, which import this module."""


class TrainingOptions(ABC, Generic[S]):
    """The part of a training backend that depends on options alone."""

    is_exact: ClassVar[bool] = False
    """True if it can compute by the kernels of `models.exact`."""

    @abstractmethod
    def in_process(self, section: S) -> bool:
        """True if such a learner can run in the caller's process."""

    @abstractmethod
    def refuse_options(self, section: S) -> None:
        """Raises ValueError for an option that the backend does not have."""


class InferenceOptions(ABC, Generic[S]):
    """The part of an inference backend, an engine that Lockstep starts or a server, that depends on
    options alone.
    """

    is_server: ClassVar[bool] = False
    """True if it is running already: it takes no weights, and has its own engines and chat
    template.
    """

    is_exact: ClassVar[bool] = False
    """True if it can compute by the kernels of `models.exact`."""

    changes_no_result: ClassVar[tuple[str, ...]] = ()
    """Options of its own section that may differ from one session of a run to the next."""

    @abstractmethod
    def in_process(self, section: S) -> bool:
        """True if such an engine can run in the caller's process."""

    @abstractmethod
    def refuse_options(self, section: S) -> None:
        """Raises ValueError for an option that the backend does not support, or that it needs and
        is not given.
        """

    def explain_fixed_weights(self, section: S) -> str | None:
        """Says which option keeps it from taking the weights of a learner; None: none does."""
        return None

    def context_limit(self, section: S) -> int | None:
        """Longest sequence that the section allows; None: the model's context."""
        return None


class Backends(Generic[B]):
    """The backends that one option can name; as an annotation of the option, it admits these names
    alone.
    """

    def __init__(self, option: str, base: type[B], places: Mapping[str, str]) -> None:
        """Registers the backends by place; `find` imports one when it is asked for.

        Args:
            option: The option, for messages.
            base: Base class of all declarations.
            places: Place of each declaration, `package.module:Class`, by name.
        """
        self._option = option
        self._base = base
        self._places = places

    @property
    def names(self) -> tuple[str, ...]:
        """Every backend; the first is the default."""
        return tuple(self._places)

    def find(self, name: str) -> B:
        """The declaration of the backend called `name`, which the option's annotation has
        checked.
        """
        kind = load(self._places[name], self._option, "class")
        found = kind()
        assert isinstance(found, self._base), f"{self._places[name]} is no {self._base.__name__}"
        return found

    def every(self) -> Iterator[tuple[str, B]]:
        """All of them, by name."""
        for name in self._places:
            yield name, self.find(name)

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.names))


TRAINING: Backends[TrainingOptions[Any]] = Backends(
    "learner.backend",
    TrainingOptions,
    {
        "torch": "lockstep.learners.torch.backend:TorchTraining",
        "megatron": "lockstep.learners.megatron.backend:MegatronTraining",
    },
)
INFERENCE: Backends[InferenceOptions[Any]] = Backends(
    "sampler.backend",
    InferenceOptions,
    {
        "torch": "lockstep.samplers.torch.backend:TorchInference",
        "vllm": "lockstep.samplers.vllm.backend:VLLMInference",
        "openai": "lockstep.samplers.openai.backend:OpenAIServer",
    },
)


def list_engines() -> tuple[str, ...]:
    """Names of the inference backends that take a learner's weights: all but servers."""
    return tuple(name for name, backend in INFERENCE.every() if not backend.is_server)
