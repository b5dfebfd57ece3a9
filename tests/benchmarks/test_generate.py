"""The benchmarks of generating compare like with like: the same work, honest counts, each second in its part."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
import torch

from benchmarks.generate import Cell, compare
from benchmarks.generate_sides import Case, Lockstep, Transformers, build_lm, prepare
from benchmarks.harness import Measurement, cpu_clock, status_bytes
from benchmarks.step_table import step_rows
from lockstep.samplers.torch.sampler import TorchSampler

LM = build_lm("toy")


@pytest.mark.parametrize("exact", [True, False])
def test_each_pass_of_the_sampler_is_counted(exact: bool) -> None:
    lm = prepare(build_lm("toy"), exact)
    case = Case.of("toy", "equal", responses=6, max_tokens=5)
    sampler = TorchSampler(lm, 2)
    Lockstep(sampler, case)()
    assert sampler.passes == 15


def test_generations_share_prompts_but_no_random_numbers() -> None:
    alone, shared = Case.of("toy"), Case.of("toy", generations=8)
    assert len(alone.requests()) == len(shared.requests()) == 256
    assert len({request.tokens for request in alone.requests()}) == 256
    assert len({request.tokens for request in shared.requests()}) == 32
    assert len({request.key for turn in (0, 1) for request in shared.requests(turn)}) == 512


def test_all_sides_answer_the_same_requests_in_the_same_order() -> None:
    case = replace(Case.of("toy", generations=2, responses=8).greedy, max_tokens=16)
    theirs, ours = Transformers(LM, case)(), Lockstep(TorchSampler(prepare(build_lm("toy"), True), 3), case)()
    assert ours == theirs
    assert len({len(response) for response in ours}) > 1


def test_samplers_of_other_weights_are_not_compared() -> None:
    other = build_lm("toy")
    with torch.no_grad():
        other.lm_head.weight.neg_()
    case = Case.of("toy", responses=4, max_tokens=8)
    with pytest.raises(RuntimeError, match="other tokens by exact"):
        compare("case", case, LM, {"exact": TorchSampler(prepare(other, True), 4)}, 1)


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


def test_a_clock_of_any_process_is_that_of_this_one() -> None:
    before = time.process_time()
    seen = cpu_clock(os.getpid())
    assert before <= seen <= time.process_time()
    assert status_bytes("VmHWM", os.getpid()) >= status_bytes("VmRSS") > 1e6


def test_steps_are_compared_by_the_clock_that_is_asked_for() -> None:
    theirs = {"cpu_s": 4.0, "cpu_without_gc_s": 2.0}
    rounds = [[theirs, {"cpu_s": 2.0}, {"cpu_s": 1.0}]] * 3
    assert [row.ratio for row in step_rows("step", rounds, "cpu_s")] == [2.0, 4.0]
    assert [row.ratio for row in step_rows("step", rounds, "cpu_without_gc_s")] == [1.0, 2.0]
