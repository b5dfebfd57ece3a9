"""The samples of an evaluation on disk: complete blocks, in order, so that a stopped evaluation resumes after the last.

If a judge scored a block, the block's last line has the sums of its metrics: `judging`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from lockstep.metrics import Mean, Metrics, Reduction, Sum
from lockstep.records import check_shape, is_file
from lockstep.rollouts.evaluation import Sample
from lockstep.types import SamplingParams
from lockstep.whole_files import append

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """A way to answer every question.

    Attributes:
        name: `greedy` or `sampled`.
        sampling: The distribution that responses are sampled from.
        num_samples: Responses per question.
        ks: The k of pass@k and maj@k.
    """

    name: str
    sampling: SamplingParams
    num_samples: int
    ks: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """Questions `start` … `start + count − 1`, answered in one setting."""

    setting: Setting
    start: int
    count: int

    @property
    def responses(self) -> int:
        return self.count * self.setting.num_samples


@dataclass(frozen=True)
class _BlockEnd:
    judging: Mapping[str, list[float]] = field(default_factory=dict)


class SampleLog:
    """A file with one sample per line, and the samples that are in it.

    Args:
        path: The file. Complete blocks at its beginning are read, and the rest is cut off.
        blocks: All blocks of the evaluation, in order.

    Raises:
        ValueError: A line is no sample.
    """

    def __init__(self, path: Path, blocks: Sequence[Block]) -> None:
        self._path, self.blocks = path, blocks
        self.samples: dict[str, list[Sample]] = {block.setting.name: [] for block in blocks}
        self.judging = {name: Metrics() for name in self.samples}
        self.done = 0
        if is_file(path):
            self._read()

    def add(self, samples: Sequence[Sample], judging: Metrics) -> None:
        """Appends the next block, whole, with the metrics of judges that were asked."""
        setting = self.blocks[self.done].setting.name
        rows = [{"setting": setting, **asdict(sample)} for sample in samples]
        if judging:
            rows[-1]["judging"] = {name: _write_sums(name, reduction) for name, reduction in judging.items()}
        append(self._path, b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))
        self.samples[setting] += samples
        self.judging[setting] += judging
        self.done += 1

    def _read(self) -> None:
        lines = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        position = 0
        for block in self.blocks:
            if position + block.responses > len(lines):
                break
            numbers = range(position, position + block.responses)
            self.samples[block.setting.name] += [self._parse(Sample, number, lines[number]) for number in numbers]
            position += block.responses
            end = self._parse(_BlockEnd, position - 1, lines[position - 1])
            self.judging[block.setting.name] += {name: _read_sums(sums) for name, sums in end.judging.items()}
            self.done += 1
        os.truncate(self._path, sum(map(len, lines[:position])))

    def _parse(self, shape: type[T], number: int, line: bytes) -> T:
        refusal = f"{self._path}:{number + 1} is no sample, but {line[:60]!r}"
        return check_shape(line, shape, refusal, "remove the file to begin again")


def _write_sums(name: str, reduction: Reduction) -> list[float]:
    match reduction:
        case Mean(total, count):
            return [float(total), float(count)]
        case Sum(total):
            return [float(total)]
        case _:
            raise TypeError(f"{name} is no sum and no mean, and is not kept")


def _read_sums(sums: Sequence[float]) -> Mean | Sum:
    return Sum(*sums) if len(sums) == 1 else Mean(*sums)
