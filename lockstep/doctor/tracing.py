"""Two networks, module by module: what each computes from the other's inputs, so that errors do not add up.

In one pass of the second network every module is given what the same module of the first was given, and what it gives
is replaced by what the first one's gave. So an output that differs is that module's own doing, and an input that would
have differed is the doing of the code between modules (attention, residual sums, gates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.doctor.base import ROTARY, Network

Node = str
"""`path:in`, `path:out` or `logits`; the input is what other code hands a module."""

Hook = Callable[..., Any]

_ROUNDING = 1e-5
"""What fp32 leaves of a number, at most, where a position is not changed."""


@dataclass
class Trace:
    """What modules were given and gave, in order; but for those that were called more than once.

    Attributes:
        seen: By node, the first tensor, fp32.
        given: By path, all that a module gave.
    """

    seen: dict[Node, Tensor] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Local:
    """How a node of the second network differs, given the first one's inputs.

    Attributes:
        node: Its name.
        error: |difference| over |value|, root mean squares.
        first: The first position that differs; 0 where all do.
        constant: Whether the difference is the same at every position.
    """

    node: Node
    error: float
    first: int
    constant: bool


def traced(network: Network, tokens_T: Tensor) -> Trace:
    """What the modules of a network are given, and give, for one sequence."""
    trace = Trace()
    calls: Counter[str] = Counter()

    def given(path: str, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if inputs and _is_real(inputs[0]):
            trace.seen[f"{path}:in"] = inputs[0].detach().float().clone()

    def gave(path: str, output: Any) -> None:
        calls[path] += 1
        trace.seen[f"{path}:out"] = _tensor(output).detach().float().clone()
        trace.given[path] = _copied(output)

    with _hooked(network.modules, given, gave):
        logits = network.logits(tokens_T).float()
    for path in (path for path, count in calls.items() if count > 1):
        trace.given.pop(path)
        for end in ("in", "out"):
            trace.seen.pop(f"{path}:{end}", None)
    trace.seen["logits"] = logits
    return trace


def compared(reference: Trace, network: Network, tokens_T: Tensor) -> list[Local]:
    """The nodes of a network in order, each with its own difference from the reference."""
    found: list[Local] = []

    def given(path: str, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        right = reference.seen.get(f"{path}:in")
        if right is None or not inputs or not _is_real(inputs[0]) or right.shape != inputs[0].shape:
            return None
        found.append(_local(f"{path}:in", right, inputs[0]))
        return (right.to(inputs[0].dtype), *inputs[1:]), dict(named)

    def gave(path: str, output: Any) -> Any:
        right = reference.given.get(path)
        pairs = list(zip(_reals(right), _reals(output), strict=False))
        if not pairs or pairs[0][0].shape != pairs[0][1].shape:
            return None
        found.append(max((_local(f"{path}:out", *pair) for pair in pairs), key=lambda local: local.error))
        return _like(right, output)

    with _hooked(network.modules, given, gave):
        logits = network.logits(tokens_T)
    found.append(_local("logits", reference.seen["logits"], logits))
    return found


def patched(reference: Trace, network: Network, tokens_T: Tensor, chosen: Callable[[Node], bool]) -> Tensor:
    """Logits [T, V] of a network in which some nodes have the reference's values."""

    def given(path: str, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        node = f"{path}:in"
        if not chosen(node) or node not in reference.seen or not inputs:
            return None
        return (reference.seen[node].to(inputs[0].dtype), *inputs[1:]), dict(named)

    def gave(path: str, output: Any) -> Any:
        node = f"{path}:out"
        return _like(reference.given[path], output) if chosen(node) and node in reference.seen else None

    with _hooked(network.modules, given, gave):
        return network.logits(tokens_T)


@torch.no_grad()
def of_zeros(right: Network, own: Network, path: str, tokens_T: Tensor) -> tuple[Tensor, Tensor]:
    """What a module of either network gives for states of zero, and else for what the first one's was given."""
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    module = right.modules.get_submodule(path)
    with module.register_forward_pre_hook(lambda _, *seen: given.append(seen), with_kwargs=True):  # pyright: ignore[reportArgumentType]
        right.logits(tokens_T)
    (states, *others), named = given[0]
    zeros = torch.zeros_like(states)
    both = (network.modules.get_submodule(path) for network in (right, own))
    first, second = (_tensor(one(zeros, *others, **named)).float() for one in both)
    return first, second


@contextmanager
def unturned(modules: nn.Module) -> Iterator[None]:
    """Rotary embeddings give cosines of 1 and sines of 0, so that no position is turned."""

    def still(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple) and len(output) == 2:
            return torch.ones_like(output[0]), torch.zeros_like(output[1])
        return None

    with ExitStack() as hooks:
        for path, module in modules.named_modules():
            if path.endswith(ROTARY):
                hooks.callback(module.register_forward_hook(still).remove)
        yield


@contextmanager
def _hooked(modules: nn.Module, given: Hook, gave: Hook) -> Iterator[None]:
    """Calls `given` before and `gave` after each module that has none inside, or weights of its own."""
    with ExitStack() as hooks:
        for path, module in modules.named_modules():
            if path and (not any(module.children()) or any(True for _ in module.parameters(recurse=False))):
                before = module.register_forward_pre_hook(
                    lambda _, inputs, named, path=path: given(path, inputs, named), with_kwargs=True
                )
                after = module.register_forward_hook(lambda _, inputs, output, path=path: gave(path, output))
                hooks.callback(before.remove)
                hooks.callback(after.remove)
        yield


def _local(node: Node, right: Tensor, own: Tensor) -> Local:
    if own.shape[-1] != right.shape[-1]:
        return Local(node, float("inf"), 0, False)
    right = right.float() if right.ndim > 1 else right.float()[:, None]
    right = right.reshape(-1, right.shape[-2], right.shape[-1]) if right.ndim > 2 else right[None]
    off = own.float().reshape(right.shape) - right
    scale = float(right.square().mean().sqrt()) or 1.0
    by_position = off.abs().amax((0, 2)) > _ROUNDING * scale
    first = int(by_position.nonzero()[0]) if bool(by_position.any()) else 0
    constant = bool(torch.allclose(off, off[:, :1].expand_as(off), rtol=1e-2, atol=0.01 * float(off.abs().max())))
    return Local(node, float(off.square().mean().sqrt()) / scale, first, constant)


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _reals(output: Any) -> list[Tensor]:
    """All numbers that a module gave."""
    return [x for x in (output if isinstance(output, tuple) else (output,)) if _is_real(x)]


def _copied(output: Any) -> Any:
    """What a module gave, as it is now."""
    if isinstance(output, tuple):
        return tuple(_copied(x) for x in output)
    return output.detach().clone() if isinstance(output, Tensor) else output


def _like(right: Any, own: Any) -> Any:
    """What one module gave, in the types of what another gave."""
    if isinstance(own, tuple):
        return tuple(_like(a, b) for a, b in zip(right, own, strict=True))
    return right.to(own.dtype) if isinstance(own, Tensor) else right
