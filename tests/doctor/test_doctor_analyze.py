"""Rollout dumps of several frameworks' shapes; faults made with real distributions, and what is read from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest
import torch
from torch import Tensor

from lockstep import exit_codes
from lockstep.cli import main
from lockstep.data.rows import DataError
from lockstep_doctor.commands.analyze_dump import DumpAnalysis, analyze_dump
from lockstep_doctor.dumps.names import FieldNames
from lockstep_doctor.table.verdict import EXIT_CODES

SEQUENCES, TOKENS, VOCABULARY, PROMPT = 24, 160, 150, 12


class Sampling(TypedDict, total=False):
    """As in `scores`."""

    temperature: float
    top_p: float
    padding: int


@dataclass(frozen=True)
class World:
    """What a model says, and what was drawn from it.

    Attributes:
        logits: Exact, [B, T, V].
        tokens: Drawn, [B, T].
    """

    logits: Tensor
    tokens: Tensor

    @classmethod
    def draw(cls, seed: int = 0, **sampling: Unpack[Sampling]) -> World:
        """From logits of every entropy, as text has them; `sampling` as in `scores`."""
        torch.manual_seed(seed)
        sharp = torch.empty(SEQUENCES, TOKENS, 1, dtype=torch.float64).uniform_(0.5, 6.0)
        logits = sharp * torch.randn(SEQUENCES, TOKENS, VOCABULARY, dtype=torch.float64)
        probability = scores(logits, **sampling).exp()
        tokens = torch.multinomial(probability.flatten(0, 1), 1).view(SEQUENCES, TOKENS)
        return cls(logits, tokens)

    def of(self, logits: Tensor, **sampling: Unpack[Sampling]) -> Tensor:
        """Log-probabilities of the drawn tokens, [B, T]."""
        return scores(logits, **sampling).gather(2, self.tokens[..., None])[..., 0]

    def rounded(self, size: float = 0.01) -> Tensor:
        """The logits as a pass in a low precision has them."""
        return self.logits + size * torch.randn_like(self.logits)


def scores(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0, padding: int = 0) -> Tensor:
    """Log-probabilities under a temperature and a nucleus; `padding` more tokens with a logit of 2."""
    logits = logits / temperature
    if padding:
        wide = torch.cat([logits, torch.full((*logits.shape[:2], padding), 2.0, dtype=logits.dtype)], 2)
        return wide.log_softmax(2)[..., : logits.shape[2]]
    probability = logits.softmax(2)
    ordered, order = probability.sort(dim=2, descending=True)
    before = torch.zeros_like(ordered)
    before[..., 1:] = ordered.cumsum(2)[..., :-1]
    outside = torch.zeros_like(before, dtype=torch.bool).scatter(2, order, before >= top_p)
    return logits.masked_fill(outside, -math.inf).log_softmax(2)


def write(path: Path, train: Tensor, infer: Tensor, **columns: Any) -> Path:
    """A dump with one row per sequence; a column is a list with an entry for each, or the same for all."""
    rows = [
        {"train_logprobs": a, "infer_logprobs": b} | {
            name: value[i] if isinstance(value, list) else value for name, value in columns.items()
        }
        for i, (a, b) in enumerate(zip(train.tolist(), infer.tolist(), strict=True))
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def report(path: Path, names: FieldNames | None = None) -> tuple[int, DumpAnalysis]:
    found = analyze_dump(path, names or FieldNames())
    return EXIT_CODES[found.judgement.verdict], found


Sides = tuple[Tensor, Tensor]  # training, inference


def healthy(world: World) -> Sides:
    return world.of(world.rounded()), world.of(world.rounded())


def identical(world: World) -> Sides:
    return world.of(world.logits), world.of(world.logits)


def in_fp32(world: World) -> Sides:
    return world.of(world.logits), world.of(world.rounded(1e-6))


def shifted(world: World) -> Sides:
    train, infer = healthy(world)
    return train.roll(1, 1), infer


def first_only(world: World) -> Sides:
    train, infer = healthy(world)
    other = world.of(world.logits + 2 * torch.randn_like(world.logits))
    return torch.cat([other[:, :1], train[:, 1:]], 1), infer


def renormalised(world: World) -> Sides:
    return world.of(world.rounded()), world.of(world.logits, top_p=0.9)


def padded(world: World) -> Sides:
    flat = world.logits / world.logits.std(2, keepdim=True)
    return world.of(flat + 0.002 * torch.randn_like(flat), padding=40), world.of(flat)


def heads_in_bf16(world: World) -> Sides:
    return world.of(world.rounded().bfloat16().double()), world.of(world.rounded().bfloat16().double())


def both_in_bf16(world: World) -> Sides:
    train, infer = healthy(world)
    return train.bfloat16().double(), infer.bfloat16().double()


def softmax_in_bf16(world: World) -> Sides:
    train, infer = healthy(world)
    return train, infer.bfloat16().double()


def windowed(world: World) -> Sides:
    beyond = (torch.arange(TOKENS) >= 100)[None, :, None]
    return world.of(world.rounded() + beyond * 0.5 * torch.randn_like(world.logits)), world.of(world.rounded())


def anything(world: World) -> Sides:
    return world.of(world.rounded(0.5)), world.of(world.rounded())


def permuted(world: World) -> Sides:
    train, infer = healthy(world)
    return train, infer[torch.randperm(SEQUENCES)]


def last_is_zero(world: World) -> Sides:
    train, infer = healthy(world)
    return train, torch.cat([infer[:, :-1], torch.zeros(SEQUENCES, 1)], 1)


def zeros_in_the_middle(world: World) -> Sides:
    train, infer = healthy(world)
    infer[:, 60:70] = 0
    return train, infer


def without_first(world: World) -> Sides:
    """One side reads the sequences without their first token, and its column begins a token late."""
    train, infer = healthy(world)
    return torch.cat([train[:, 1:], train[:, -1:]], 1), infer


FAULTS: tuple[tuple[Callable[[World], Sides], list[str], dict[str, float]], ...] = (
    (healthy, [], {}),
    (identical, [], {}),
    (in_fp32, [], {}),
    (healthy, [], {"temperature": 0.7}),
    (anything, [], {}),
    (shifted, ["positions moved"], {}),
    (first_only, ["off"], {}),
    (renormalised, ["renormalized over a nucleus"], {"top_p": 0.9}),
    (padded, ["offset"], {}),
    (heads_in_bf16, [], {}),
    (both_in_bf16, ["grid", "grid"], {}),
    (softmax_in_bf16, ["grid"], {}),
    (windowed, ["off"], {}),
    (permuted, ["rows moved"], {}),
    (last_is_zero, ["exactly 0"], {}),
    (zeros_in_the_middle, ["exactly 0"], {}),
    (without_first, ["positions moved"], {}),
)


@pytest.mark.parametrize(("fault", "expected", "sampling"), FAULTS)
def test_what_is_read_is_what_was_done(
    fault: Callable[[World], Sides], expected: list[str], sampling: Sampling, tmp_path: Path
) -> None:
    train, infer = fault(World.draw(**sampling))
    code, found = report(write(tmp_path / "dump.jsonl", train, infer, prompt_length=0))
    assert [one.kind for one in found.findings] == expected
    assert (
        code
        == {"PASS": exit_codes.OK, "FAIL": exit_codes.BROKEN, "INCONCLUSIVE": exit_codes.INCONCLUSIVE}[
            found.judgement.verdict
        ]
    )
    if fault in (anything, shifted):
        assert code == exit_codes.BROKEN


def test_a_side_is_named_where_its_numbers_show_it(tmp_path: Path) -> None:
    world = World.draw(0)
    _, found = report(write(tmp_path / "dump.jsonl", *softmax_in_bf16(world), prompt_length=0))
    assert [one.side for one in found.findings] == ["infer"]
    _, found = report(write(tmp_path / "swapped.jsonl", *softmax_in_bf16(world)[::-1], prompt_length=0))
    assert [one.side for one in found.findings] == ["train"]


def rows(train: str = "old_log_probs", infer: str = "rollout_log_probs", **more: Any) -> list[dict[str, Any]]:
    first = {train: [-9.0, -1.0, -2.0, 0.0], infer: [-8.0, -1.5, -2.5, 0.0]}
    return [
        first | more,
        {train: [-3.0], infer: [-3.25]} | {k: v[-1:] if isinstance(v, list) else v for k, v in more.items()},
    ]


def written(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def test_minus_infinity_is_a_probability_and_is_counted(tmp_path: Path) -> None:
    content = rows(response_mask=[1, 1, 1, 1])
    content[0]["old_log_probs"][1] = -math.inf
    code, found = report(written(tmp_path / "d.jsonl", content))
    assert found.figures["support_violations_train"] == 1
    assert (code, found.judgement.verdict) == (exit_codes.BROKEN, "FAIL")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([{"a": [-1.0]}], "has no column of log-probabilities; there are "),
        (rows(response_mask=[1, 1, 1, 2]), "line 1: response_mask has entries besides 0 and 1"),
        ([{"rollout_log_probs": [-1.0, -2.0]}], "has rollout_log_probs alone, and analyze compares two sides"),
    ],
)
def test_a_dump_that_cannot_be_analyzed_gets_one_sentence(
    content: list[dict[str, Any]], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        analyze_dump(written(tmp_path / "d.jsonl", content), FieldNames())


def test_columns_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "dump.jsonl", *shifted(World.draw(0)), prompt_length=0)
    path.write_text(path.read_text().replace("train_logprobs", "own").replace("infer_logprobs", "other"))
    assert main(["doctor", "analyze", str(path), "--columns", "train=own", "infer=other"]) == exit_codes.BROKEN
    assert main(["doctor", "analyze", str(path), "--columns", "infer=other"]) == exit_codes.INPUT
    assert "has other alone, and analyze compares two sides; name the other one by --columns" in capsys.readouterr().err
    assert main(["doctor", "analyze", str(path), "--columns", "train"]) == exit_codes.INPUT
    assert "--columns train is not ROLE=NAME; roles are train, infer, ids" in capsys.readouterr().err


def test_the_report_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "dump.jsonl", *shifted(World.draw(0)), prompt_length=0)
    assert analyze_dump(path, FieldNames()).judgement.verdict == "FAIL"
    said = capsys.readouterr().out
    assert said.startswith("# dump.jsonl: FAIL\n\n3,840 tokens of 24 sequences; Δ is `train_logprobs` − `infer_log")
    assert "**positions moved**: inference's values are training's +1 position from them" in said
    assert "3,816 tokens in rows 0 to 23 of 24" in said or "3,840 tokens in rows 0 to 23 of 24" in said
