"""The benchmarks of generating compare like with like: the same work, honest counts, each second in its part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.generate import Cell, compare
from benchmarks.generate_sides import Case, Lockstep, Transformers, build_lm, prepare
from benchmarks.harness import Measurement
from lockstep.samplers.torch.sampler import TorchSampler

LM = build_lm("toy")


@pytest.mark.parametrize("exact", [True, False])
def test_each_pass_of_the_sampler_is_counted(exact: bool) -> None:
    lm = prepare(build_lm("toy"), exact)
    case = Case.of("toy", "equal", responses=6, max_tokens=5)
    sampler = TorchSampler(lm, 2)
    Lockstep(sampler, case)()
    assert sampler.passes == 15


def test_all_sides_answer_the_same_requests_in_the_same_order() -> None:
    case = replace(Case.of("toy", generations=2, responses=8).greedy, max_tokens=16)
    theirs, ours = Transformers(LM, case)(), Lockstep(TorchSampler(prepare(build_lm("toy"), True), 3), case)()
    assert ours == theirs
    assert len({len(response) for response in ours}) > 1


def test_speeds_count_the_tokens_of_their_own_repetition() -> None:
    case = Case.of("toy", responses=4, max_tokens=32)
    sampler = TorchSampler(prepare(build_lm("toy"), True), 4)
    cell, again = compare("case", case, LM, {"exact": sampler}, 3), Lockstep(sampler, case)
    for _ in range(4):
        again()
    assert cell.tokens["exact"] == again.tokens[1:], "the first is not timed"
    assert len(set(again.tokens)) > 1
    (row,) = cell.rows(lambda taken: (1.0,) * len(taken.cpu_s), "transformers")
    assert (row.baseline, row.ours) == tuple(sorted(tokens)[1] for tokens in cell.tokens.values())
    assert [row.name for row in cell.memory()] == ["case, exact"]
    assert cell.rows(lambda taken: taken.cpu_s, "vllm") == []


def test_a_ratio_is_that_of_the_side_which_is_named() -> None:
    clock = Measurement((1.0,), (1.0,))
    sides = {"transformers": 1, "exact": 8, "vllm": 4}
    cell = Cell("case", {side: [n] for side, n in sides.items()}, dict.fromkeys(sides, clock), {})
    assert [row.ratio for row in cell.rows(lambda taken: taken.cpu_s, "transformers")] == [8.0, 4.0]
    assert [row.ratio for row in cell.rows(lambda taken: taken.cpu_s, "vllm")] == [2.0]
