"""Training and inference backends by name, and the part of each that depends only on options.

Imports no torch.

A backend is a folder of `learners/` or `samplers/` whose `backend.py` holds one declaration; the
tables below give its import path. `learners/backend.py` and `samplers/backend.py` derive from these
classes and add the parts that need tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pydantic_core import CoreSchema, core_schema

from lockstep.config.section import Section
from lockstep.config.user_code import load_object

B = TypeVar("B")
S = TypeVar("S", bound=Section)
"""Type of the options section: `LearnerSection` or `SamplerSection`, which import this module."""


class TrainingOptions(ABC, Generic[S]):
    """The part of a training backend that depends only on options."""

    is_exact: ClassVar[bool] = False
    """True if it can compute with the kernels of `models.exact`."""

    shares_prefixes: ClassVar[bool] = False
    """True if it computes a prefix that sequences of a pass share once."""

    @abstractmethod
    def in_process(self, section: S) -> bool:
        """True if a learner with these options can run in the caller's process."""

    @abstractmethod
    def refuse_options(self, section: S) -> None:
        """Raises ValueError for an option that the backend does not support."""


class InferenceOptions(ABC, Generic[S]):
    """The part of an inference backend that depends only on options.

    The backend is an engine that Lockstep starts, or a server.
    """

    is_server: ClassVar[bool] = False
    """True for a server, which is already running, takes no weights and has its own engines."""

    is_exact: ClassVar[bool] = False
    """True if it can compute with the kernels of `models.exact`."""

    changes_no_result: ClassVar[tuple[str, ...]] = ()
    """Options of its section that may differ between sessions of the same run."""

    @abstractmethod
    def in_process(self, section: S) -> bool:
        """True if an engine with these options can run in the caller's process."""

    @abstractmethod
    def refuse_options(self, section: S) -> None:
        """Raises ValueError for an unsupported option or a missing required one."""

    def explain_fixed_weights(self, section: S) -> str | None:
        """Names the option that prevents loading a learner's weights; None if none does."""
        return None

    def context_limit(self, section: S) -> int | None:
        """Longest sequence that the section allows; None means the model's context."""
        return None


class BackendRegistry(Generic[B]):
    """The backends that an option can name; as the option's annotation, it validates the name."""

    def __init__(self, option: str, base: type[B], places: Mapping[str, str]) -> None:
        """Registers backends by import path; `find_backend` imports one on demand.

        Args:
            option: Key of the option, for messages.
            base: Base class of all declarations.
            places: Import path of each declaration, `package.module:Class`, by backend name.
        """
        self._option = option
        self._base = base
        self._places = places

    @property
    def backend_names(self) -> tuple[str, ...]:
        """Names of all backends; the first is the default."""
        return tuple(self._places)

    def find_backend(self, name: str) -> B:
        """The declaration of backend `name`, which the option's annotation has checked."""
        kind = load_object(self._places[name], self._option, "class")
        found = kind()
        assert isinstance(found, self._base), f"{self._places[name]} is not a {self._base.__name__}"
        return found

    def iterate_backends(self) -> Iterator[tuple[str, B]]:
        """Yields all backends with their names."""
        for name in self._places:
            yield name, self.find_backend(name)

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.backend_names))


TRAINING: BackendRegistry[TrainingOptions[Any]] = BackendRegistry(
    "learner.backend",
    TrainingOptions,
    {
        "torch": "lockstep.learners.torch.backend:TorchTraining",
        "megatron": "lockstep.learners.megatron.backend:MegatronTraining",
    },
)
INFERENCE: BackendRegistry[InferenceOptions[Any]] = BackendRegistry(
    "sampler.backend",
    InferenceOptions,
    {
        "torch": "lockstep.samplers.torch.backend:TorchInference",
        "vllm": "lockstep.samplers.vllm.backend:VLLMInference",
        "openai": "lockstep.samplers.openai.backend:OpenAIServer",
    },
)


def list_engines() -> tuple[str, ...]:
    """Names of the inference backends that take a learner's weights: all except servers."""
    return tuple(name for name, backend in INFERENCE.iterate_backends() if not backend.is_server)
