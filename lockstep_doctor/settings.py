"""Settings of a model in this process: all numbers, words and tensors that its modules and its configuration hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ModelSetting:
    """A value that a model holds.

    Attributes:
        owner: Path of its module; `config`: the configuration.
    """

    owner: str
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}".lstrip(".")


@dataclass(frozen=True)
class Difference:
    """A setting that two engines have otherwise.

    Attributes:
        right: The reference's; None: it has none.
        own: The other engine's; None: it has none.
    """

    right: ModelSetting | None
    own: ModelSetting | None

    @property
    def setting(self) -> ModelSetting:
        """Either of them."""
        one = self.own or self.right
        assert one is not None
        return one

    @property
    def only_type(self) -> bool:
        """True for the same numbers in another dtype."""
        match self:
            case Difference(ModelSetting(value=Tensor() as a), ModelSetting(value=Tensor() as b)) if a.shape == b.shape:
                a, b = a.detach().cpu(), b.detach().cpu()
                return a.dtype != b.dtype and (torch.equal(a.to(b.dtype), b) or torch.equal(b.to(a.dtype), a))
            case _:
                return False

    def __str__(self) -> str:
        own, right = ("absent" if one is None else _show(one.value) for one in (self.own, self.right))
        match self:
            case Difference(ModelSetting(value=Tensor() as a), ModelSetting(value=Tensor() as b)) if a.shape == b.shape:
                if a.dtype != b.dtype and self.only_type:
                    return f"{self.setting} is {name_type(b)}, {name_type(a)} in the reference"
                off = (b.detach().double().cpu() - a.detach().double().cpu()).abs()
                hit = f"{int((off > 0).sum())} of {off.numel()} numbers"
                return f"{self.setting} differs in {hit}, by up to {off.max():.3g}"
            case _:
                return f"{self.setting} is {own}, {right} in the reference"


def find_settings(model: nn.Module) -> Iterator[ModelSetting]:
    """Yields all settings: fields of the configuration, then modules, each with class, attributes, weights, buffers."""
    config = getattr(model, CONFIG, None)
    fields = vars(config) if hasattr(config, "__dict__") else {}
    yield from (ModelSetting(CONFIG, name, value) for name, value in _plain(fields))
    for path, module in model.named_modules():
        yield ModelSetting(path, "class", type(module).__qualname__)
        yield from (ModelSetting(path, name, value) for name, value in _plain(vars(module)))
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield ModelSetting(path, name, tensor)


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
    right, own = ({(one.owner, one.name): one for one in find_settings(model)} for model in (reference, other))
    shared = {owner for owner, _ in right} & {owner for owner, _ in own}
    keys = [key for key in {**right, **own} if key[0] in shared]
    return [
        Difference(right.get(key), own.get(key))
        for key in keys
        if not _equal(right[key].value if key in right else None, own[key].value if key in own else None)
    ]


def select_inside(differences: Iterable[Difference], ends: Sequence[str], given: Sequence[str]) -> list[Difference]:
    """Selects the settings that a segment can have read: of the modules at its ends, and of those around these.

    Args:
        ends: Modules where the segment begins and where it ends.
        given: Modules whose outputs it was given.
    """
    return [
        one
        for one in differences
        if (owner := one.setting.owner) == CONFIG
        or (owner not in given and any(_is_within(owner, end) or _is_within(end, owner) for end in ends))
    ]


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


@contextmanager
def undo(model: nn.Module, differences: Sequence[Difference]) -> Iterator[None]:
    """Gives a model the reference's settings in the block."""
    with ExitStack() as back:
        for one in differences:
            if one.right is not None and one.own is not None:
                back.callback(_put(model, one.right, one.own.value))
        yield


def _put(model: nn.Module, right: ModelSetting, own: Any) -> Callable[[], None]:
    """Sets one; returns what puts it back."""
    if isinstance(own, Tensor):
        kept = own.detach().clone()
        with torch.no_grad():
            own.copy_(right.value)

        def restore() -> None:
            with torch.no_grad():
                own.copy_(kept)

        return restore
    owner: Any = model.config if right.owner == CONFIG else model.get_submodule(right.owner)
    *inner, name = right.name.split(".")
    if inner:
        for part in inner:
            owner = vars(owner)[part] if not isinstance(owner, Mapping) else owner[part]
        owner[name] = right.value
        return lambda: owner.__setitem__(name, own)
    setattr(owner, name, right.value)
    return lambda: setattr(owner, name, own)


def can_undo(one: Difference) -> bool:
    """True where both engines hold the setting, in one shape."""
    match one:
        case Difference(None, _) | Difference(_, None) | Difference(right=ModelSetting(name="class")):
            return False
        case Difference(ModelSetting(value=Tensor() as a), ModelSetting(value=Tensor() as b)):
            return a.shape == b.shape
        case _:
            return True


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return a.is_meta or b.is_meta or torch.equal(a.detach().cpu(), b.detach().cpu())
    return type(a) is type(b) and a == b


def _show(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
