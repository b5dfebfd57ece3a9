"""Two builds of a model: the line after which a value differs, in memory as well."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.builds import compare_builds, watch_build
from lockstep_doctor import Frame


class _Angles(nn.Module):
    def __init__(self, base: float, powers: Iterator[float]) -> None:
        super().__init__()
        self.register_buffer("angle", torch.arange(4) / base)
        self.scaling = base ** next(powers)

    def forward(self, states: Tensor) -> Tensor:
        return states * self.scaling


def test_two_builds_differ_after_a_line() -> None:
    def compare(*powers: float) -> tuple[Frame, str] | None:
        """The reference is built twice, then the other one."""
        each = iter(powers)
        return compare_builds(lambda: _Angles(9.0, each), lambda: _Angles(9.0, each))

    assert compare(-0.5, -0.5, -0.5) is None
    found = compare(-0.5, -0.5, -0.6)
    assert found is not None
    assert (found[0].function, found[1]) == ("_Angles.__init__", "self.scaling")


def fill(weight: Tensor, place: slice) -> None:
    weight.data[place].copy_(torch.ones(2))


class _Loaded(nn.Module):
    """A weight whose memory is set by a function alone, in parts."""

    def __init__(self, plans: Iterator[list[slice]]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4))
        for place in next(plans):
            fill(self.weight, place)


def test_two_builds_differ_where_a_weight_is_written() -> None:
    right, wrong = [slice(0, 2), slice(2, 4)], [slice(0, 2), slice(1, 3)]

    def compare(*plans: list[slice]) -> tuple[Frame, str] | None:
        """The reference is built twice, then the other one."""
        each = iter(plans)
        return compare_builds(lambda: _Loaded(each), watch_build(lambda: _Loaded(each)))

    assert compare(right, right, right) is None
    found = compare(right, right, wrong)
    assert found is not None
    assert (found[0].function, found[1]) == ("fill", "weight")
    assert not torch.are_deterministic_algorithms_enabled()


class _Left:
    """Garbage that runs code of a model when it is collected."""

    def __init__(self) -> None:
        self.own: _Left | None = self

    def __del__(self) -> None:
        self.own = None


def test_garbage_of_others_is_no_line_of_a_build() -> None:
    def make() -> nn.Module:
        made = _Angles(9.0, iter([-0.5]))
        kept.append(list(map(list, [()] * 2 * gc.get_threshold()[0])))
        return made

    kept: list[object] = []
    gc.collect()
    _Left()
    assert compare_builds(make, make) is None
