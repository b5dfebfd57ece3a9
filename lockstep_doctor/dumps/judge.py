"""Compares a dump with its model: finds which side deviates from the model's log-probabilities, and
at which stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep_doctor.columns import (
    TEMPERATURES,
    ColumnFinding,
    ColumnSide,
    TokenColumns,
    examine_columns,
)
from lockstep_doctor.dumps.names import DumpError, FieldNames
from lockstep_doctor.dumps.read import Dump, read_dump
from lockstep_doctor.hf import load_model
from lockstep_doctor.locate import FLOORS
from lockstep_doctor.statistics import CAP, find_gap, score_tokens

DumpStage = Literal["ids", "model", "temperature", "log-probabilities", "column"]
"""The stage at which a side deviates from the model: the input ids, the forward pass, the division
of logits by a temperature, changes to single log-probabilities, or the order of the column.
"""

_NEARBY = (0.96, 0.98, 1.02, 1.04)
_OWN_TEMPERATURE = "at the dump's temperature"
_CLOSER = 0.3
_LEAST_FLOOR = 1e-4
_FEW_ROWS = 8
FEW_TOKENS = 64
_MOST_IDS = 16_384
"""Only the first rows, up to this number of ids in total, are computed."""
_STAGES: Mapping[str, DumpStage] = {
    **dict.fromkeys(("rows moved", "positions moved", "exactly 0", "constant"), "column"),
    **dict.fromkeys(
        ("grid", "floor", "ceiling", "offset", "scaled", "not finite"), "log-probabilities"
    ),
    "renormalized over a nucleus": "log-probabilities",
}
"""Stage by kind of finding."""

_COARSE = ("numbers of bf16", "numbers of 1 decimal", "numbers of 2 decimals")
"""Number formats that move a log-probability by more than 0.001."""


@dataclass(frozen=True)
class SideVerdict:
    """One side of a dump compared with the model.

    Attributes:
        rms: Root mean square difference from the model's log-probabilities, nats; each difference
            counts at most 3.
        change: Change of the model's log-probabilities that fits best, such as `at temperature
            0.7`; empty if none.
        left: Root mean square difference after the change.
        stage: Stage at which the side deviates; None if it agrees.
        findings: Patterns in the remaining differences.
    """

    side: ColumnSide
    name: str
    rms: float
    change: str
    left: float
    stage: DumpStage | None
    findings: Sequence[ColumnFinding]


@dataclass(frozen=True)
class DumpLocation:
    """Result of `locate_dump`.

    Attributes:
        gap: Difference between both sides, nats, as in `SideVerdict.rms`; None if the dump has one
            side.
        floor: Difference that bf16 rounding causes, nats.
        rows: Number of rows computed.
        of_rows: Number of rows in the dump.
        doubt: Missing information that the verdict depends on; empty if none.
    """

    model: str
    sides: Sequence[SideVerdict]
    gap: float | None
    floor: float
    tokens: int
    rows: int
    of_rows: int
    doubt: str = ""

    @property
    def wrong_sides(self) -> list[SideVerdict]:
        """The sides that deviate from the model.

        Two sides that divide by the same temperature follow a convention and are not wrong.
        """
        explained: set[DumpStage | None] = {None}
        if len(self.sides) > 1 and len({one.change for one in self.sides}) == 1:
            explained.add("temperature")
        return [one for one in self.sides if one.stage not in explained]


def locate_dump(
    dump: Dump | Path | str,
    folder: Path | str,
    names: FieldNames | None = None,
    heard: Callable[[str], object] = lambda phase: None,
) -> DumpLocation:
    """Finds which side of a dump deviates from the model, and at which stage.

    Args:
        dump: File or folder, or the result of `read_dump`.
        folder: Folder of the model that generated it, as `transformers` saves it.
        names: Names of columns that are not in `KNOWN`.

    Raises:
        DumpError: The dump or the model cannot be read, the dump has no ids, or an id is not in the
            model's vocabulary.
    """
    if not isinstance(dump, Dump):
        dump = read_dump(dump, names)
    if dump.columns.ids is None:
        raise DumpError("the dump has no token ids; write the ids of prompt and response into it")
    heard(f"load {folder}")
    model = _load_model(Path(folder))
    most = int(dump.columns.ids.max())
    if most >= (size := model.get_input_embeddings().weight.shape[0]):
        raise DumpError(
            f"{folder}: the model has {size} token ids, but the dump has id {most}; give the "
            "model that wrote the dump"
        )
    own = dump.columns.take_rows(max(1, int((dump.columns.offsets[1:] <= _MOST_IDS).sum())))
    heard(f"compute {own.train.numel():,} ids of {own.row_lengths.numel()} rows")
    judge = _DumpJudge(model, own)
    heard("measure bf16 rounding")
    floor = judge.measure_floor(_load_model(Path(folder), torch.bfloat16))
    named: list[tuple[ColumnSide, str | None]] = [("train", dump.train), ("infer", dump.infer)]
    sides = [judge.judge_side(side, name, floor) for side, name in named if name is not None]
    gap = None
    if len(sides) > 1:
        gap = find_gap(own.train[judge.compared], own.infer[judge.compared])
    rows = own.row_lengths.numel()
    of_rows = dump.columns.row_lengths.numel()
    tokens = int(judge.compared.sum())
    fitted = sorted({one.change for one in sides if one.change.startswith("at temperature")})
    doubt = ""
    if fitted and "temperature" not in dump.columns.facts:
        doubt = (
            "the dump has no temperature, so 1 is assumed; if it was sampled "
            f"{' or '.join(fitted)}, a side that fits is right and a side at 1 is wrong; add a "
            "temperature column to the dump"
        )
    return DumpLocation(str(folder), sides, gap, floor, tokens, rows, of_rows, doubt)


def _load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    if not (folder / "config.json").is_file():
        raise DumpError(
            f"{folder}: missing config.json; give a model folder as transformers saves it"
        )
    try:
        return load_model(folder, dtype, "cpu")
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DumpError(f"{folder}: transformers cannot load it: {reason}") from error


@torch.no_grad()
def _score_rows(
    model: Any,
    columns: TokenColumns,
    temperatures: Mapping[str, Tensor | float],
    change: Callable[[Tensor], Tensor] = torch.clone,
    rows: int | None = None,
) -> dict[str, Tensor]:
    """Returns log-probabilities of all entries by name, float64; NaN for the first id of a row.

    Sequences are computed one at a time, without padding.

    Args:
        model: Called with `input_ids`; its result has `logits`.
        temperatures: Temperatures by name: one for all rows, or one for each row, [B].
        change: Changes the first ids of a row.
        rows: Number of rows to compute, from the first; None: all.

    Raises:
        DumpError: The model gives NaN.
    """
    assert columns.ids is not None
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    found = {name: torch.full_like(columns.train, torch.nan) for name in temperatures}
    for row, ids in enumerate(columns.ids.split(columns.row_lengths.tolist())[:rows]):
        given = change(ids)
        end = int(columns.offsets[row + 1])
        logits = model(input_ids=given[None], use_cache=False).logits[0, :-1].float()
        for name, each in temperatures.items():
            scaled = logits / (float(each[row]) if isinstance(each, Tensor) else each)
            own = score_tokens(scaled, given[1:]).double()[-ids.numel() :]
            if bool(own.isnan().any()):
                raise DumpError(
                    f"the model in {dtype} returns NaN log-probabilities; it cannot judge the dump"
                )
            found[name][end - own.numel() : end] = own
    return found


class _DumpJudge:
    """The model's log-probabilities for the rows of a dump, under several changes, compared with
    both sides.
    """

    def __init__(self, model: Any, columns: TokenColumns) -> None:
        self._model = model
        self._columns = columns
        self._own_change = ""
        self._temperature: Tensor | float = 1.0
        drawn = columns.facts.get("temperature")
        if drawn is not None and not bool(((drawn == 1) | (drawn == 0)).all()):
            self._own_change = _OWN_TEMPERATURE
            self._temperature = drawn.clamp(min=1e-6)
        temperatures: dict[str, Tensor | float] = {"": 1.0, self._own_change: self._temperature}
        temperatures |= {f"at temperature {one:g}": one for one in TEMPERATURES}
        self._by = _score_rows(model, columns, temperatures)
        self.compared = columns.mask & ~self._by[""].isnan()
        if not bool(self.compared.any()):
            raise DumpError("no generated token follows another token; nothing to compare")

    def measure_floor(self, rounded: Any) -> float:
        """Returns the difference between the model in bf16 and in fp32 over the first rows,
        nats.
        """
        again = _score_rows(rounded, self._columns, {"": 1.0}, rows=_FEW_ROWS)[""]
        floor = max(_LEAST_FLOOR, self._measure_gap(self._by[""], again))
        if not FLOORS * floor < CAP:
            raise DumpError(
                f"the model in bf16 differs from fp32 by {floor:.2g} nats; it cannot judge the dump"
            )
        return floor

    def judge_side(self, side: ColumnSide, name: str, floor: float) -> SideVerdict:
        """Returns the verdict on a side."""
        if side == "train":
            column = self._columns.train
        else:
            column = self._columns.infer
        change, off = self._find_nearest(column)
        if not change and not off[""] < _CLOSER * off[self._own_change]:
            change = (
                self._own_change
            )  # nothing fits: look for the fault at the dump's own temperature
        if change.startswith("at temperature"):
            near = [float(change.split()[-1]) * factor for factor in _NEARBY]
            self._by |= _score_rows(
                self._model, self._columns, {f"at temperature {one:.3g}": one for one in near}
            )
            change, off = self._find_nearest(column)
        names: Mapping[ColumnSide, str] = {"train": "the model", "infer": side}
        own = replace(
            self._columns, train=self._by[change], infer=column, mask=self.compared, names=names
        )
        findings = examine_columns(own)
        left = off[change]
        stage: DumpStage | None = None
        for one in findings:
            # rounding to three or more decimals is not a fault
            is_fault = one.kind in _STAGES and (one.kind != "grid" or one.what in _COARSE)
            if is_fault and one.side != "train":
                stage = _STAGES[one.kind]
                break
        if stage is None and left > FLOORS * floor:
            stage = "model"
            front = self._find_front(column, left) if change == self._own_change else None
            if front is not None:
                change, left = front
                findings = []
                stage = "ids"
        elif (
            stage is None and change != self._own_change and off[self._own_change] > FLOORS * floor
        ):
            stage = "temperature"
        return SideVerdict(side, name, off[""], change, left, stage, findings)

    def _find_nearest(self, column: Tensor) -> tuple[str, dict[str, float]]:
        """Returns the change that fits much better than no change (empty if none does), and the
        difference after each change.
        """
        off = {change: self._measure_gap(column, own) for change, own in self._by.items()}
        best = min(off, key=off.__getitem__)
        return best if off[best] < _CLOSER * off[""] else "", off

    def _measure_gap(self, column: Tensor, own: Tensor) -> float:
        """The difference between a column and the model's, on entries that the model scored."""
        there = self.compared & ~own.isnan()
        return find_gap(column[there], own[there])

    def _find_front(self, column: Tensor, left: float) -> tuple[str, float] | None:
        """Returns the change of the first ids that fits the first rows better, and the remaining
        difference; None if no change fits.
        """
        fronts: dict[str, Callable[[Tensor], Tensor]] = {
            "without the first id": lambda ids: ids[1:]
        }
        bos = self._model.config.bos_token_id
        if isinstance(bos, int):
            fronts[f"with id {bos} in front"] = lambda ids: torch.cat([ids.new_tensor([bos]), ids])
        for what, change in fronts.items():
            own = _score_rows(
                self._model, self._columns, {"": self._temperature}, change, _FEW_ROWS
            )[""]
            off = self._measure_gap(column, own)
            if off < _CLOSER * left:
                return what, off
        return None


def describe_dump(found: DumpLocation) -> Iterator[str]:
    """Yields the report line by line."""
    part = ""
    if found.rows < found.of_rows:
        part = f" of {found.of_rows}"
    yield (
        f"{found.tokens:,} generated tokens of {found.rows}{part} rows, compared with "
        f"{found.model} in float32"
    )
    yield f"bf16 rounding alone: {found.floor:.2g} nats (root mean square, as in the lines below)"
    if found.gap is not None:
        yield f"the sides differ by {found.gap:.2g}"
    for one in found.sides:
        near = ""
        if one.change:
            near = f", and {one.left:.2g} {one.change}"
        how = "rounding explains it"
        if one.stage is not None:
            how = f"it deviates at {_WORDS[one.stage]}"
        yield f"{one.side} ({one.name}) differs from the model by {one.rms:.2g}{near}: {how}"
        for finding in one.findings:
            yield f"  {finding.kind}: {finding.what}"
            yield (
                f"    {finding.tokens:,} tokens in {finding.where}; {finding.share:.0%} of all "
                "squared differences"
            )
    wrong = found.wrong_sides
    if wrong:
        yield f"wrong: {' and '.join(one.side for one in wrong)}"
        yield from filter(None, [found.doubt])
    elif found.tokens < FEW_TOKENS:
        yield f"inconclusive: fewer than {FEW_TOKENS} tokens; dump more"
    else:
        yield "both sides agree with the model"


_WORDS: Mapping[DumpStage, str] = {
    "ids": "the ids: it read different ones",
    "model": "the model: different weights or forward pass; lockstep doctor locate finds the place",
    "temperature": "the temperature of the logits",
    "log-probabilities": "single log-probabilities, changed after the logits",
    "column": "the column: values are missing or belong to other tokens",
}
