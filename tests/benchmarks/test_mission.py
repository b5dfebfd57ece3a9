"""The page of `make mission` shows what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.mission import (
    agreement,
    agreement_page,
    generation,
    logprobs,
    ppo,
    self_rewarding_page,
)
from benchmarks.mission.__main__ import FILE, PAGE, write
from benchmarks.mission.judgments import (
    COMPARISON,
    QUESTION,
    judge_opposite,
    write_warm_start,
)
from benchmarks.mission.logprob_checks import CHECKS, measure
from benchmarks.mission.logprob_claims import Claim
from benchmarks.mission.opposites import name_opposite
from benchmarks.mission.programs import MissionError, Program
from lockstep.distributed import model_utils
from lockstep.judge.verdicts import ScoreParser, WinnerParser


def test_mission_page_and_figures_match_stored_results() -> None:
    files = write(json.loads(FILE.read_text()))
    assert PAGE in files
    for file, text in files.items():
        assert file.read_text(encoding="utf-8") == text, (
            f"{file} is out of date: python -m benchmarks.mission --page"
        )


ORPHAN = r"""
import subprocess, sys
from benchmarks.mission.__main__ import _await_orphans, _child_cpu_seconds, adopt_orphans

adopt_orphans()
burn = "import time\nwhile time.process_time() < 0.3: pass"
leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
subprocess.run([sys.executable, "-c", leave], check=True)
_await_orphans()
print(_child_cpu_seconds())
"""


def test_cpu_minutes_count_processes_that_outlive_their_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], check=True, capture_output=True, text=True
    )
    assert float(done.stdout) >= 0.3


def test_equal_curves_claim_fails_if_rewards_differ() -> None:
    one = {"train/reward": [[step, 0.5] for step in range(4)]}
    other = {"train/reward": [[step, 0.5 + 0.21 * (step % 2)] for step in range(4)]}
    assert ppo._verdict("equal", one, one).startswith(
        "- **Holds**: equal: equal rewards in 4 of 4 steps"
    )
    assert ppo._verdict("equal", one, other).startswith(
        "- **Does not hold**: equal: equal rewards in 2 of 4"
    )


def test_value_shift_claim_fails_if_reward_lead_alternates() -> None:
    late = {
        "train/reward": [[step, 0.5] for step in range(1, 21)],
        "critic/explained_variance": [[1, 0.0]],
    }
    right = late | {"train/reward": [[step, 0.6 if step > 12 else 0.5] for step in range(1, 21)]}
    mixed = late | {"train/reward": [[step, 0.5 + 0.1 * (-1) ** step] for step in range(1, 21)]}
    assert ppo._shift(right, late).startswith("- **Holds**: the right shift learns faster")
    assert "higher in 8 of 13 steps and lower in 0" in ppo._shift(right, late)
    assert ppo._shift(mixed, late).startswith("- **Does not hold**")


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("Cold.", 1.0),
        ("The opposite of hot is cold.", 1.0),
        ("hot", 0.0),
        ("coldness", 0.0),
        ("It may be cold, or warm, or mild, or freezing.", 0.0),
    ],
)
def test_a_short_response_with_the_right_word_is_rewarded(response: str, reward: float) -> None:
    assert name_opposite("", response, "cold", {}) == reward


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("Cold.", 5),
        ("The opposite of hot is cold.", 5),
        ("Some would say that the opposite of hot is cold, others mild.", 3),
        ("Hot.", 1),
    ],
)
def test_opposite_judgment_scores_5_only_for_rewarded_responses(
    response: str, score: float
) -> None:
    assert (
        ScoreParser(0, 5, "score|points", False)(judge_opposite("hot", response, "cold")).value
        == score
    )
    assert (score == 5) == bool(name_opposite("", response, "cold", {}))


def test_warm_start_rows_use_judge_prompts_and_parsable_replies(
    tmp_path: Path,
) -> None:
    task = {"instruction": "Sum up.", "instances": [{"input": "", "output": "In short."}]}
    other = {"instruction": "Name a bird.", "instances": [{"input": "", "output": "A lark."}]}
    (tmp_path / "tasks.jsonl").write_text(f"{json.dumps(task)}\n{json.dumps(other)}\n")
    count = write_warm_start(tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl")
    rows = [
        json.loads(line)["messages"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()
    ]
    assert len(rows) == count
    asked = {
        QUESTION[-20:]: ScoreParser(0, 5, "score|points", False),
        COMPARISON[-20:]: WinnerParser("winner"),
    }
    parsers = [(asked.get(row[-2]["content"][-20:]), row[-1]["content"]) for row in rows]
    assert {parser(reply).cause for parser, reply in parsers if parser is not None} == {None}
    assert {type(parser) for parser, _ in parsers} == {ScoreParser, WinnerParser, type(None)}


def _stage(reward: list[float], accuracy: list[float], unread: int = 0) -> dict[str, Any]:
    figures = {"reward": reward, "llmbar": accuracy, "judge_exact": accuracy, "ties": accuracy}
    return {"figures": figures, "llmbar_judgments": {"judgments": 200, "no_verdict": unread}}


def _found(
    after: list[float], accuracy: list[float], unread: int, left_out: str | None
) -> dict[str, Any]:
    step = {f"train/{name}": 0.5 for name in self_rewarding_page.METRICS}
    validation = {f"val/{name}": 0.5 for name in self_rewarding_page.METRICS if name != left_out}
    run = {
        "steps": [step],
        "validations": [validation],
        "judge_pairs": 0 if left_out else 3,
        "left_out": 1,
    }
    stages = {name: _stage(after, accuracy, unread) for name in self_rewarding_page.RUNS}
    start = {
        "raw": _stage([0.4, 0.3, 0.5], accuracy, 200),
        "warm_start": _stage([0.5, 0.4, 0.6], accuracy, unread),
    }
    return {"stages": start | stages, "runs": dict.fromkeys(self_rewarding_page.RUNS, run)}


def test_self_rewarding_claims_fail_for_poor_results() -> None:
    good = self_rewarding_page._verdicts(_found([0.8, 0.7, 0.9], [0.7, 0.6, 0.8], 4, None))
    poor = self_rewarding_page._verdicts(
        _found([0.55, 0.45, 0.65], [0.52, 0.42, 0.62], 60, "sft_loss")
    )
    assert len(good) == len(poor) == 9
    assert all(line.startswith("- **Holds**: ") for line in good), good
    assert all(line.startswith("- **Does not hold**: ") for line in poor), poor
    assert "val/sft_loss of Self-Rewarding" in "".join(poor)


def test_a_program_that_ends_before_it_is_killed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissionError, match="ended with code 0 before it could be killed"):
        generation._kill(Program("early", ("this",)), tmp_path)


TABLE: dict[str, Any] = {
    "title": "fp32",
    "cells": [
        {"state": "measured", "verdicts": {"PASS": 3}},
        {"state": "cut by budget", "verdicts": {}},
    ],
    "repeats": {"hf": [4, 4]},
}


def test_agreement_claims_hold_only_if_all_verdicts_and_repeats_pass() -> None:
    assert agreement_page.judge_table(TABLE).startswith("- **Holds**: fp32")
    assert "3 of 3 verdicts are PASS, in 1 of 2 cells" in agreement_page.judge_table(TABLE)
    for word, verdicts in {
        "Not shown by so few tokens": {"PASS": 2, "INCONCLUSIVE": 1},
        "Does not hold": {"PASS": 2, "INCONCLUSIVE": 1, "FAIL": 1},
    }.items():
        other = TABLE | {"cells": [{"state": "measured", "verdicts": verdicts}]}
        assert agreement_page.judge_table(other).startswith(f"- **{word}**")
    assert agreement_page.judge_table(TABLE | {"cells": []}).startswith("- **Does not hold**")
    assert agreement_page.judge_repeats(TABLE).startswith("- **Holds**")
    assert agreement_page.judge_repeats(TABLE | {"repeats": {"hf": [4, 3]}}).startswith(
        "- **Does not hold**"
    )
    assert agreement_page.judge_repeats(TABLE | {"repeats": {}}).startswith("- **Does not hold**")


@pytest.mark.parametrize(
    ("tokens", "mismatches", "seen", "word"),
    [
        (9, 0, 2, "Holds"),
        (9, 1, 2, "Does not hold"),
        (9, 0, 0, "Does not hold"),
        (0, 0, 2, "Does not hold"),
    ],
)
def test_exactness_claim_needs_zero_mismatches_and_detected_control(
    tokens: int, mismatches: int, seen: int, word: str
) -> None:
    own, control = {"tokens": tokens, "mismatches": mismatches}, {"tokens": 4, "seen": seen}
    assert agreement_page.judge_type("bf16", own, control).startswith(f"- **{word}**")


@pytest.mark.parametrize(
    ("exact", "usual", "word"), [(0, 5, "Holds"), (1, 5, "Does not hold"), (0, 0, "Does not hold")]
)
def test_depth_claim_needs_zero_gap_in_exact_mode_and_gap_otherwise(
    exact: int, usual: int, word: str
) -> None:
    windows = [[0, 4, 0.1, 0.01], [128, 4, 0.2, 0.02], [256, 1, 0.0, 0.0]]
    depth = {
        name: {"tokens": 9, "differ": differ, "windows": windows}
        for name, differ in (("depth_exact", exact), ("depth_usual", usual))
    }
    assert agreement_page.judge_depths(depth).startswith(f"- **{word}**")


@pytest.mark.parametrize(
    ("rank", "wrong", "word"),
    [
        (1, ["vllm"], "Holds"),
        (2, ["vllm"], "Does not hold"),
        (None, ["vllm"], "Does not hold"),
        (1, ["hf"], "Does not hold"),
    ],
)
def test_fault_claim_needs_first_ranked_line_and_right_engine(
    rank: int | None, wrong: list[str], word: str
) -> None:
    faults = [
        {"engine": "vllm", "rank": 1, "wrong": ["vllm"]},
        {"engine": "vllm", "rank": rank, "wrong": wrong},
    ]
    assert agreement_page.judge_faults(faults).startswith(f"- **{word}**")


def test_long_mission_adds_four_agreement_tables(tmp_path: Path) -> None:
    every = {one.name for one in agreement.list_programs(tmp_path, long=True)}
    short = {one.name for one in agreement.list_programs(tmp_path, long=False)}
    assert every - short == {"fp32_whole", "bf16_whole", "fp32_8000", "bf16_8000"}


def test_finished_program_is_skipped_and_failed_one_is_rerun(tmp_path: Path) -> None:
    text = tmp_path / "one.json"
    text.write_text("1")
    program = Program("program", ("json.tool", str(text), str(tmp_path / "out.json")))
    seconds = program.finish(tmp_path)
    (tmp_path / "out.json").unlink()
    assert program.finish(tmp_path) == seconds
    assert not (tmp_path / "out.json").exists()
    Program("program", (*program.arguments, "--indent=1")).finish(tmp_path)
    assert (tmp_path / "out.json").exists(), "other arguments are another program"
    failing = Program("failing", ("json.tool", "missing"))
    for _ in range(2):
        with pytest.raises(MissionError, match="missing"):
            failing.finish(tmp_path)
    assert json.loads((tmp_path / "failing.ended.json").read_text())["ended"] is False


LATER = {
    "TrainingSamplingParams", "_compute_distributed_log_softmax_with_grad", "apply_top_k_top_p",
    "cp_load_balanced_to_contiguous", "cp_shift_next", "group_all_reduce_sum", "group_all_reduce_sum_with_grad",
    "need_top_k_or_top_p_filtering", "vocab_parallel_argmax", "vocab_parallel_full_log_softmax",
    "vocab_parallel_gather_columns", "vocab_parallel_log_softmax",
}  # fmt: skip
"""Names of `model_utils` that NeMo RL's page does not have."""


def test_mission_measures_all_26_nemo_rl_functions_except_exempt_ones() -> None:
    assert len(logprobs.NAMES) == 26
    assert set(logprobs.NAMES) == set(model_utils.__all__) - LATER
    assert set(logprobs.NAMES) == CHECKS.keys() | set(logprobs.EXEMPT)


def figures(share: float) -> dict[str, Any]:
    kinds = {kind: {"value": 1e-6, "gradient": None, "share": share} for kind in ("fp32", "bf16")}
    return {name: {"tp 1": kinds} for name in CHECKS}


def test_logprob_claim_fails_if_one_function_exceeds_its_error_bound() -> None:
    assert logprobs._verdict(figures(1.0)).startswith("- **Holds**: 24 of the 26 names")
    one = figures(1.0) | {"DistributedLogprob": figures(1.01)["DistributedLogprob"]}
    assert logprobs._verdict(one).startswith("- **Does not hold**: ")
    assert logprobs._verdict(one).endswith("Not within them: `DistributedLogprob`.")
    assert "**does not hold**" in logprobs._row("DistributedLogprob", one["DistributedLogprob"])
    missing = {name: one for name, one in figures(0.5).items() if name != "DistributedLogprob"}
    assert logprobs._verdict(missing).endswith("Not within them: `DistributedLogprob`.")


def test_values_with_zero_tolerance_must_match_exactly() -> None:
    wanted = torch.tensor([1.0, -torch.inf], dtype=torch.float64)
    assert measure(Claim([wanted.float()], [wanted], [0.0]))["share"] == 0.0
    moved = torch.tensor([1.0 + 2**-23, -torch.inf])
    assert measure(Claim([moved], [wanted], [0.0]))["share"] == torch.inf
    assert measure(Claim([moved], [wanted], [torch.tensor(2.0**-22)]))["share"] == 0.5
    assert (
        measure(Claim([torch.tensor([torch.nan, 0.0])], [wanted], [torch.tensor(9.0)]))["share"]
        == torch.inf
    )


def test_nemo_rl_claim_fails_on_test_failure_without_known_reason() -> None:
    (known,) = logprobs.REASONS
    counts = {"distributed": [51, 53], "algorithms": [14, 14]}
    peer: dict[str, Any] = {"commit": "7ea279abf", "date": "2026-11-29", "failures_by_its_own": {}}
    peer["tests"] = {"counts": counts, "failures": {f"{known}[1]": "", f"{known}[2]": ""}}
    lines = logprobs._describe_tests(peer)
    assert lines[0].startswith("- **Holds**: ")
    assert "51 of 53 (distributed), 14 of 14 (algorithms)" in lines[0]
    assert all("Lockstep takes none" in line for line in lines[1:])
    peer["tests"]["failures"]["test_values"] = "AssertionError: apart"
    lines = logprobs._describe_tests(peer)
    assert lines[0].startswith("- **Does not hold**: ")
    assert (
        "`test_values` fails: it has no known reason: AssertionError: apart. With NeMo RL's own "
        "functions it passes" in (lines[-1])
    )
    assert logprobs._describe_tests(None)[0].startswith("- **Not measured**: ")
    assert "git clone" in logprobs._describe_tests(None)[0]
