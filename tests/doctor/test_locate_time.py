"""The time that `locate` says beforehand, what it reads in a shorter one, and what it says that it left out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doctor_tables import SMALL
from torch import Tensor
from transformers import AttentionInterface

from lockstep import exit_codes
from lockstep.batch import Batch
from lockstep.cli import main
from lockstep.config.loading import Loaded
from lockstep.doctor import locate_cost, locate_model, measure_table
from lockstep.doctor.locate_cost import LocateTime
from lockstep.doctor.locate_engines import EngineChoice, EnginePair
from lockstep.doctor.locate_model import summarize
from lockstep.models import attention
from lockstep_doctor import Capture, CutPoint
from lockstep_doctor.engines import EngineOptions

PROMPT, LENGTHS = 4, (24, 20, 20, 20, 20, 20, 20, 20)


class Clock:
    """A clock that passes alone advance."""

    now = 0.0

    def read(self) -> float:
        return self.now


class SlowTap:
    """A model that takes so long, and nothing else."""

    name = "slow"

    def __init__(self, clock: Clock, fixed: float, token: float) -> None:
        self._clock, self._fixed, self._token = clock, fixed, token

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        self._clock.now += self._fixed + self._token * len(tokens_T)
        return Capture(tokens_T, {})

    trace = functions = None  # type: ignore[assignment]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(locate_cost, "time", SimpleNamespace(monotonic=clock.read, perf_counter=clock.read))
    return clock


def choice(engine: str, **options: Any) -> EngineChoice:
    return EngineChoice(engine, Path("model"), EngineOptions(**options))


def bound(clock: Clock, budget_s: float | None) -> LocateTime:
    """Eight requests; passes of hf take 2 s, of torch 3 s, of float64 5 s and in the engines' type 1 s."""
    position = torch.cat([torch.arange(size) for size in LENGTHS])
    drawn = Batch(torch.zeros(sum(LENGTHS), dtype=torch.long), torch.tensor(LENGTHS), {"mask": position >= PROMPT})
    found = LocateTime(budget_s, clock.now, drawn)
    taps: list[Any] = [SlowTap(clock, seconds, 0.0) for seconds in (2, 3, 5, 1)]
    found.measure_witnesses(taps[2:])
    found.measure(PAIR, taps[:2])
    return found


PAIR = EnginePair(choice("hf"), choice("torch"))
DECODING = EnginePair(choice("hf"), choice("hf", prompt=PROMPT))
JUDGED = 2 + 3 + 2 * 5 + 4 * 1
"""Seconds of the passes that tell a gap of the pair from rounding."""
MEASURED = 3 * (2 + 3 + 5 + 1)


def test_predicted_are_all_passes_of_a_comparison_that_agrees(clock: Clock) -> None:
    found = bound(clock, None)
    planned, requests = found.share([PAIR])
    assert (planned, [len(one) for one in requests]) == ([PAIR], list(LENGTHS))
    assert found.predict([PAIR], 8) == (8 * (2 + 3) + JUDGED, 50 * 2 + 70 * 3 + 25 * 5)


def test_decoding_takes_a_short_pass_for_each_token_until_it_is_open(clock: Clock) -> None:
    found = bound(clock, None)
    assert found.predict([DECODING], 8)[0] == 8 * (2 + 24 * 1) + 2 + 24 * 1 + 2 * 5 + 4 * 1
    slow: Any = SlowTap(clock, -2, 1)
    found.measure(DECODING, [slow, slow])
    assert found.predict([DECODING], 8)[0] == 8 * (2 + 22) + 2 + 22 + 2 * 5 + 4 * 1


def test_each_sequence_of_a_row_takes_as_long_as_one(clock: Clock) -> None:
    beside = EnginePair(PAIR.other, PAIR.other.but(neighbors=2))
    assert bound(clock, None).predict([beside], 1)[0] == 2 * (3 + 3 * 3) + 2 * 5 + 4 * 1


@pytest.mark.parametrize(("left", "count"), [(59.5, 8), (58.5, 4), (38.5, 2), (28.5, 1)])
def test_fewer_requests_are_read_in_less_time(clock: Clock, left: float, count: int) -> None:
    found = bound(clock, MEASURED + left)
    _, requests = found.share([PAIR])
    assert len(requests) == count
    assert found.describe(requests) == f"{count} of 8 requests, 24 tokens at most"


def test_where_not_all_fit_the_last_ones_wait_and_the_others_share(clock: Clock) -> None:
    found = bound(clock, MEASURED + 2 * 24 + 0.5)
    assert len(found.share([PAIR])[1]) == 4
    planned, requests = found.share([PAIR, PAIR, PAIR])
    assert (len(planned), len(requests)) == (2, 1)


def test_too_little_time_is_refused_by_the_name_of_its_option(clock: Clock) -> None:
    found = bound(clock, MEASURED + 10)
    assert found.share([PAIR]) == ([], [])
    assert str(found.refuse(PAIR)).startswith(
        "locate needs 24.0 s for one request of 24 tokens, and 10.0 s of grid.budget_s="
    )


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets after how many questions no time is left."""

    def answer(count: int) -> None:
        answers: Iterator[bool] = iter([True] * count)
        monkeypatch.setattr(LocateTime, "is_left", lambda self: next(answers, False))

    return answer


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lockstep's attention computes with another scale."""
    kernels = AttentionInterface._global_mapping
    plain = kernels[attention.NAME]
    scaled = {attention.NAME: lambda *inputs, scaling, **named: plain(*inputs, scaling=0.8 * scaling, **named)}
    monkeypatch.setattr(AttentionInterface, "_global_mapping", {**kernels, **scaled})


def ask(model: Path, out: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["doctor", "locate", str(model), "--out", str(out), *SMALL, *more])
    return code, json.loads((out / "location.json").read_text())


def test_comparisons_that_were_not_begun_are_named(
    models: Callable[..., Path],
    tmp_path: Path,
    questions: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions(7)
    code, (found,) = ask(models("llama"), tmp_path / "out")
    left_out = ["hf vs hf by decoding", "torch vs torch among others", "torch vs torch sampler by decoding"]
    assert (code, found["agrees"], found["left_out"]) == (exit_codes.INCONCLUSIVE, True, left_out)
    assert f"not done, for want of time or memory: {', '.join(left_out)}" in capsys.readouterr().out


def test_requests_that_were_dropped_beforehand_are_named(
    models: Callable[..., Path],
    tmp_path: Path,
    questions: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    share = LocateTime.share
    monkeypatch.setattr(LocateTime, "share", lambda self, left: (left, share(self, left)[1][:2]))
    questions(1)
    code, (found,) = ask(models("llama"), tmp_path / "out")
    assert (code, found["agrees"]) == (exit_codes.INCONCLUSIVE, True)
    assert ", ".join(found["left_out"]).startswith("6 of 8 drawn requests, hf vs hf by decoding")
    assert "not done, for want of time or memory: 6 of 8 drawn requests" in capsys.readouterr().out


def test_a_page_says_what_was_left_out_of_any_comparison() -> None:
    worst = {"gap": 2.0, "left_out": ["a"], "read": "all"}
    shown = summarize([{"gap": 1.0, "left_out": ["a"]}, worst, {"gap": 0.0, "left_out": ["b", "a"]}])
    assert shown == {**worst, "left_out": ["a", "b"]}


def test_quick_has_one_budget_for_its_table_and_its_place(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = time.monotonic

    def fail_late(loaded: Loaded) -> SimpleNamespace:
        monkeypatch.setattr(time, "monotonic", lambda: read() + 1000)
        return SimpleNamespace(verdict="FAIL")

    monkeypatch.setattr(measure_table, "measure_and_report", fail_late)
    named = ["--out", str(tmp_path / "out"), "--budget", "900", *SMALL]
    assert main(["doctor", "quick", str(models("llama")), *named]) == exit_codes.BROKEN
    said = capsys.readouterr().out
    assert "the place was not looked for: locate needs" in said
    assert "0.0 s of grid.budget_s=900 are left" in said


def test_what_memory_has_no_room_for_is_named(
    models: Callable[..., Path],
    tmp_path: Path,
    faulty: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = iter([0])  # it is not said before the model is opened, and is too little behind it
    monkeypatch.setattr(locate_model, "free_bytes", lambda device: next(free, 1))
    code, (found,) = ask(models("llama"), tmp_path / "out", "learner.dtype=bf16")
    assert (code, found["switches"], found["left_out"]) == (exit_codes.BROKEN, {}, ["the gap in fp32"])
    assert "not done, for want of time or memory: the gap in fp32" in capsys.readouterr().out


def test_a_place_that_was_found_is_proved_and_the_rest_named(
    models: Callable[..., Path], tmp_path: Path, questions: Callable[[int], None], faulty: None
) -> None:
    questions(1)
    code, (found,) = ask(models("llama"), tmp_path / "out")
    (place,) = found["places"]
    assert (code, place["wrong"], place["settings"]) == (exit_codes.BROKEN, ["torch"], [])
    assert found["smallest"] == found["tokens"]
    assert found["left_out"] == ["6 of 8 requests", "settings that differ", "smaller requests"]
    assert Path(found["reproduction"]).is_file()
