"""The base class of every section: frozen, and strict about its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from lockstep.system.paths import expand_path

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

LocalPath = Annotated[str, AfterValidator(expand_path)]
"""A local path; `~` and `$NAME` are expanded, and runs record the expanded path."""


S = TypeVar("S", bound="Section")


@dataclass
class BrokenRules:
    """Validation context that collects all broken rules instead of stopping at the first.

    Attributes:
        found: Each section that breaks a rule, and the sentence about it.
    """

    found: list[tuple[Section, str]] = field(default_factory=list)


def rule(check: Callable[[S], None]) -> Any:
    """Makes a method a rule of its section: it raises ValueError if the section's options break it.

    If other rules are broken, a rule that fails with another error is ignored: it may have read
    invalid options.
    """

    def run_check(self: S, info: ValidationInfo) -> S:
        broken = info.context if isinstance(info.context, BrokenRules) else None
        try:
            check(self)
        except Exception as error:
            if broken is None:
                raise
            if isinstance(error, ValueError):
                broken.found.append((self, str(error)))
            elif not broken.found:
                raise
        return self

    return model_validator(mode="after")(run_check)


class Section(BaseModel):
    """A frozen group of options that forbids unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    def idle_options(self) -> dict[str, str]:
        """Options without effect under the section's other options: dotted key to the reason.

        Validation fails if one of them differs from its default.
        """
        return {}

    @classmethod
    def narrow_class(cls, value: object) -> type[Section]:
        """The class that validates a value: this one, unless the value names a subclass."""
        return cls

    @rule
    def _no_option_is_idle(self) -> None:
        wrong: list[str] = []
        for key, reason in self.idle_options.items():
            value, default = self._value_and_default(key)
            if value != default:
                wrong.append(f"{key} has no effect {reason}; remove it")
        if wrong:
            raise ValueError("; ".join(wrong))

    def _value_and_default(self, key: str) -> tuple[object, object]:
        """Returns the value and the default of an option in this section or within it."""
        name, _, rest = key.partition(".")
        value = getattr(self, name)
        if rest and isinstance(value, Section):
            return value._value_and_default(rest)
        return value, type(self).model_fields[name].get_default(call_default_factory=True)
