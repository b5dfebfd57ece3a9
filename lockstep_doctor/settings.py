"""Settings of a model in this process: all numbers, words and tensors that its modules and its configuration hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lockstep_doctor.measures import name_type

CONFIG = "config"


@runtime_checkable
class ShowsModules(Protocol):
    """A tap whose model lies open in this process."""

    @property
    def model(self) -> nn.Module: ...


class _Absent:
    """Value of a setting that one engine has not."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


@dataclass(frozen=True)
class Difference:
    """A setting that two engines have otherwise.

    Attributes:
        owner: Path of its module; `config`: the configuration.
        right: The reference's value; `ABSENT`: it has none.
        own: The other engine's.
    """

    owner: str
    name: str
    right: Any
    own: Any

    @property
    def setting(self) -> str:
        """Owner and name in one."""
        return f"{self.owner}.{self.name}".lstrip(".")

    @property
    def can_undo(self) -> bool:
        """True where both engines hold the setting, in one shape."""
        held = self.right is not ABSENT and self.own is not ABSENT and self.name != "class"
        both = isinstance(self.right, Tensor) and isinstance(self.own, Tensor)
        return held and (not both or self.right.shape == self.own.shape)

    @property
    def only_type(self) -> bool:
        """True for the same numbers in another dtype."""
        match self.right, self.own:
            case Tensor() as a, Tensor() as b if a.shape == b.shape and a.dtype != b.dtype:
                a, b = a.detach().cpu(), b.detach().cpu()
                return torch.equal(a.to(b.dtype), b) or torch.equal(b.to(a.dtype), a)
            case _:
                return False

    def __str__(self) -> str:
        match self.right, self.own:
            case Tensor() as a, Tensor() as b if self.only_type:
                return f"{self.setting} is {name_type(b)}, {name_type(a)} in the reference"
            case Tensor() as a, Tensor() as b if a.shape == b.shape:
                off = (b.detach().double().cpu() - a.detach().double().cpu()).abs()
                hit = f"{int((off > 0).sum())} of {off.numel()} numbers"
                return f"{self.setting} differs in {hit}, by up to {off.max():.3g}"
            case _:
                return f"{self.setting} is {_show(self.own)}, {_show(self.right)} in the reference"


def find_settings(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Returns all settings by owner and name: of the configuration, then of modules, with class, weights, buffers."""
    config = getattr(model, CONFIG, None)
    found = {(CONFIG, name): value for name, value in _plain(vars(config) if hasattr(config, "__dict__") else {})}
    for path, module in model.named_modules():
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        own = [("class", type(module).__qualname__), *_plain(vars(module)), *tensors]
        found |= {(path, name): value for name, value in own}
    return found


def _plain(fields: Mapping[str, Any], depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Numbers, words and sequences of them; what lies in a mapping or another configuration is called `a.b`."""
    for key, value in fields.items():
        name = str(key)
        if name.startswith("_") and name != "_attn_implementation_internal":
            continue
        if isinstance(value, bool | int | float | str | torch.dtype):
            yield name, value
        elif isinstance(value, Sequence) and all(isinstance(x, bool | int | float | str) for x in value):
            yield name, tuple(value)
        elif depth and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", x) for inner, x in _plain(value, depth - 1))


def find_differences(reference: nn.Module, other: nn.Module) -> list[Difference]:
    """Finds the settings that differ between two models, of modules that both have."""
    right, own = find_settings(reference), find_settings(other)
    shared = {owner for owner, _ in right} & {owner for owner, _ in own}
    every = [Difference(*key, right.get(key, ABSENT), own.get(key, ABSENT)) for key in right | own if key[0] in shared]
    return [one for one in every if not _equal(one.right, one.own)]


def select_inside(differences: Iterable[Difference], ends: Sequence[str], given: Sequence[str]) -> list[Difference]:
    """Selects the settings that a segment can have read: of the modules at its ends, and of those around these.

    Args:
        ends: Modules where the segment begins and where it ends.
        given: Modules whose outputs it was given.
    """
    return [
        one
        for one in differences
        if (owner := one.owner) == CONFIG
        or (owner not in given and any(_is_within(owner, end) or _is_within(end, owner) for end in ends))
    ]


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


@contextmanager
def undo(model: nn.Module, differences: Sequence[Difference]) -> Iterator[None]:
    """Gives a model the reference's settings in the block; those that can be undone."""
    with ExitStack() as back:
        for one in differences:
            back.callback(_put(model, one))
        yield


def _put(model: nn.Module, one: Difference) -> Callable[[], object]:
    """Sets one; returns what puts it back."""
    if isinstance(one.own, Tensor):
        own, kept = one.own.detach(), one.own.detach().clone()
        own.copy_(one.right)
        return lambda: own.copy_(kept)
    owner: Any = model.config if one.owner == CONFIG else model.get_submodule(one.owner)
    *inner, name = one.name.split(".")
    for part in inner:
        owner = owner[part] if isinstance(owner, Mapping) else vars(owner)[part]
    put = owner.__setitem__ if inner else partial(setattr, owner)
    put(name, one.right)
    return lambda: put(name, one.own)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return a.is_meta or b.is_meta or torch.equal(a.detach().cpu(), b.detach().cpu())
    return type(a) is type(b) and a == b


def _show(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def find_numbers(tap: object) -> set[float]:
    """Returns the settings of an engine that are numbers, as far as they are known."""
    every = find_settings(tap.model).values() if isinstance(tap, ShowsModules) else ()
    return {float(one) for one in every if type(one) in (int, float)}
