"""Selects a run's rows in one pass before the first step; counts and names the skipped rows."""

from __future__ import annotations

import hashlib
import math
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import transformers
from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.data import cache
from lockstep.data.cache import CachedTable
from lockstep.data.messages import read_question
from lockstep.data.order import mix_rows_at
from lockstep.data.rows import (
    NUM_NAMED,
    BadRowPolicy,
    DataError,
    DataRow,
    FileRows,
    SkippedRows,
    describe_remedy,
    is_error,
)
from lockstep.data.template_date import find_date
from lockstep.data.templates import (
    FieldType,
    fill_template,
    find_askers,
    find_doubled_braces,
    find_field_fault,
    has_fields,
)
from lockstep.system.printable import print_note

_ROWS_AT_ONCE = 1024  # rows tokenized per call in the pass over the data
_MANY_ROWS = 100_000  # take a minute
NUM_LOOKED_AT = 64  # rows that notes search for unused fields
_BAD = "bad rows"
_OVERLONG = "over-long"
_SHORTEN = "raise the limit, or set data.overlong_prompts=skip"


@dataclass(frozen=True)
class RowRequirements:
    """Requirements on a row.

    Attributes:
        templates: Templates, by option, whose fields the row must have.
        fault: Returns any other error in a row that has these fields.
        lengths: Returns the length error of each valid row; None if its length is fine.
        key: Cache key for all that `lengths` depends on besides the rows, the tokenizer and the
            data section.
    """

    templates: Mapping[str, str]
    fault: Callable[[DataRow], str | None]
    lengths: Callable[[Sequence[int], Sequence[DataRow]], list[str | None]]
    key: tuple[object, ...]


@dataclass(frozen=True)
class RowRule:
    """Requirements of a reward or an algorithm on rows, in addition to the data section's.

    Attributes:
        fault: Returns the error in a row, if any.
        key: Cache key for all that `fault`, `reads_answer` and `answer_fault` depend on besides the
            row.
        reads_answer: Whether the reward of a row reads its right answer.
        answer_fault: Returns the error in a row's right answer, if any.
    """

    fault: Callable[[DataRow], str | None]
    key: object
    reads_answer: Callable[[DataRow], bool] = lambda row: True
    answer_fault: Callable[[DataRow, str], str | None] = lambda row, answer: None


ANY_ROW = RowRule(lambda row: None, None)


class RowSelection:
    """The rows of a data set that a run uses, in order, and counts of the others.

    One pass tokenizes all rows to check them, and keeps one integer for each usable row; a row is
    tokenized again when it is used. The integers are cached, because the pass takes long on a large
    file.

    Args:
        rows: The data.
        tokenizer: Counts the tokens.
        data: Fields, limits, and the policies for rows that break them.
        needs: Further requirements on a row.

    Raises:
        DataError: A row is unusable and the policy is error; or no row, or none of a weighted file,
            is usable.
    """

    def __init__(
        self,
        rows: FileRows,
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        needs: RowRequirements,
    ) -> None:
        self.rows = rows
        self._shuffle = data.shuffle
        self._kept, found = _select_rows(rows, tokenizer, data, needs)
        self.bad = rows.skipped + found[_BAD]
        self.overlong = found[_OVERLONG]
        self._sizes = self._part_sizes()
        self._weights = [part.weight for part in rows.parts]
        [first] = rows.read_rows(self.row_numbers([0]))
        for template in [*needs.templates.values(), data.answer]:
            name = find_doubled_braces(template, first)
            if name is not None:
                raise DataError(
                    f"template {template!r} writes {{{name}}} literally, since doubled braces are "
                    f"escaped braces; write {{{name}}} with single braces for the row's field"
                )
        for reason, skipped in ((_BAD, self.bad), (_OVERLONG, self.overlong)):
            if skipped.count:
                print_note(
                    f"{skipped.count} {reason} skipped; the first:\n  " + "\n  ".join(skipped.first)
                )

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def skipped_count(self) -> int:
        """Number of unused rows of the data: bad ones and over-long ones."""
        return self.bad.count + self.overlong.count

    @property
    def skipped_summary(self) -> str:
        """Summarizes the number of skipped rows by reason, for people."""
        counts = ((self.bad.count, _BAD), (self.overlong.count, _OVERLONG))
        return (
            f"{', '.join(f'{count} {reason}' for count, reason in counts if count) or 'none'} "
            "skipped"
        )

    def row_numbers(self, places: Sequence[int]) -> list[int]:
        """Maps indices among the used rows to row numbers of the data."""
        return self._kept[list(places)].tolist()

    def numbers_at(self, position: int, count: int, seed: int) -> list[int]:
        """The rows at `position` … `position + count − 1` of a run; see `lockstep.data.order`."""
        return self.row_numbers(
            mix_rows_at(position, count, self._sizes, self._weights, seed, self._shuffle)
        )

    def first_numbers(self, limit: int | None) -> list[int]:
        """The rows in data order, at most the first `limit`."""
        return self.row_numbers(range(len(self))[:limit])

    def read_first(self) -> list[DataRow]:
        """The first rows, for notes on unused fields."""
        return list(self.rows.read_rows(self.first_numbers(NUM_LOOKED_AT)))

    def _part_sizes(self) -> list[int]:
        """Number of usable rows in each part; raises DataError for a part without any."""
        ends = np.cumsum([part.size for part in self.rows.parts])
        sizes = np.diff(np.searchsorted(self._kept, ends), prepend=0).tolist()
        for part, size in zip(self.rows.parts, sizes, strict=True):
            if not size:
                first = next(
                    (fault for fault in self.bad.first if fault.startswith(part.name)), None
                )
                why = "" if first is None else f"; the first: {first}"
                raise DataError(
                    f"{part.name}: none of its {part.size} rows can be used "
                    f"({self.skipped_summary}{why}); "
                    "raise data.max_prompt_tokens, or correct the rows"
                )
        return sizes


def read_texts(rows: FileRows, data: DataSection) -> Iterator[str]:
    """Prompts and completions of all rows that have them, of any length."""
    templates = [*data.prompt_templates.values(), *data.completion_templates.values()]
    for numbers in _split_blocks(rows):
        for i, row in zip(numbers, rows.read_rows(numbers), strict=True):
            filled = [template for template in templates if has_fields(row, template)]
            yield from (fill_template(template, row, rows.name_row(i)) for template in filled)


def _select_rows(
    rows: FileRows, tokenizer: PreTrainedTokenizerBase, data: DataSection, needs: RowRequirements
) -> tuple[np.ndarray, dict[str, SkippedRows]]:
    """The numbers of usable rows, ascending, and the others by reason; cached."""
    policies: dict[str, BadRowPolicy] = {_BAD: data.bad_rows, _OVERLONG: data.overlong_prompts}

    def compute_selection() -> CachedTable:
        kept = array("q")
        found: dict[str, list[tuple[int, str]]] = {_BAD: [], _OVERLONG: []}
        for usable, reason, faults in _scan_rows(rows, data, needs):
            kept.extend(usable)
            for i, why in faults.items():
                if is_error(policies[reason]):
                    remedy = describe_remedy(i) if reason == _BAD else _SHORTEN
                    raise DataError(f"{rows.name_row(i)}: {why}; {remedy}")
                found[reason].append((i, why))
        if rows.share != (0.0, 1.0):
            kept = _select_share(rows, kept, data)
        about = {reason: [len(faults), faults[:NUM_NAMED]] for reason, faults in found.items()}
        return CachedTable(np.array(kept, np.int64), about)

    key = (
        rows.digest,
        len(rows),
        rows.share,
        data.model_dump_json(exclude={"train", "validation"}),
        data.template_values,
        find_date(tokenizer),
        tuple(needs.templates.items()),
        needs.key,
        _fingerprint_tokenizer(tokenizer),
    )
    table = cache.load_or_compute(cache.name_entry("usable", *key), compute_selection)
    skipped: dict[str, SkippedRows] = {}
    for reason, (count, first) in table.about.items():
        sentences = tuple(f"{rows.name_row(i)}: {why}" for i, why in first)
        skipped[reason] = SkippedRows(count, sentences)
    return table.numbers, skipped


def _select_share(rows: FileRows, numbers: Sequence[int], data: DataSection) -> list[int]:
    """The numbers of the rows in `rows.share`; rows with equal prompts stay together."""
    digests: list[str] = []
    for row in rows.read_rows(numbers):
        if data.messages is None:
            prompt = fill_template(data.prompt, row, "row")
        else:
            prompt = str(read_question(row, data.messages))
        digests.append(hashlib.sha256(prompt.encode()).hexdigest())
    ranked = ["", *sorted(digests)]
    low, high = (ranked[math.ceil(edge * len(digests))] for edge in rows.share)
    return [i for i, own in zip(numbers, digests, strict=True) if low < own <= high]


def _scan_rows(
    rows: FileRows, data: DataSection, needs: RowRequirements
) -> Iterator[tuple[Sequence[int], str, dict[int, str]]]:
    """Yields usable rows, a reason, and errors by row; per block: bad rows, then over-long ones."""
    if len(rows) > _MANY_ROWS:
        print_note(f"counting tokens of {len(rows):,} rows of {rows.name} (once)")
    asking = find_askers(needs.templates)
    wanted: dict[str, FieldType] = dict.fromkeys([*asking, *filter(None, [data.messages])], "any")
    for numbers in _split_blocks(rows):
        usable: dict[int, DataRow] = {}
        faults: dict[int, str] = {}
        for i, row in zip(numbers, rows.read_rows(numbers), strict=True):
            wrong = find_field_fault(row, wanted, asking) or needs.fault(row)
            if wrong is None:
                usable[i] = row
            else:
                faults[i] = wrong
        yield [], _BAD, faults
        if usable:
            lengths = needs.lengths(list(usable), list(usable.values()))
        else:
            lengths = []
        long = {i: why for i, why in zip(usable, lengths, strict=True) if why is not None}
        yield [i for i in usable if i not in long], _OVERLONG, long


def _split_blocks(rows: FileRows) -> Iterator[range]:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield range(start, min(start + _ROWS_AT_ONCE, len(rows)))


def _fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of the tokenizer as it would be saved, and of its libraries' versions."""
    digest = hashlib.sha256(f"{transformers.__version__} {tokenizers.__version__}".encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(
                    f"{path.relative_to(folder)} {path.stat().st_size}\n".encode()
                    + path.read_bytes()
                )
    return digest.hexdigest()
