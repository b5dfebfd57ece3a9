"""The outputs of a case of `make bits`: every tensor, metric and row of samples, and the first
difference of two.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from safetensors import deserialize

from benchmarks.bits_names import ROW_FILES, rename_columns, rename_metrics, rename_tensors

METRICS = "metrics.jsonl"
RESULTS = "results.json"
SECONDS = "seconds"
CHECKPOINT = "checkpoint"
CLOCKS = ("timings.jsonl",)
"""Files that hold clock times, which differ between equal runs."""
LARGE_BYTES = 2**26
"""Size of a file of weights from which its tensors are kept, and compared, as digests: real models
would fill disks.
"""
DIGESTS = ".digests"
"""Ending of a file of such digests, behind the name of the file of weights."""

Row = dict[str, Any]
Value = float | str | bool | None


@dataclass(frozen=True)
class Tensor:
    """A tensor as its file holds it.

    Attributes:
        dtype: Type of its elements.
        shape: Its shape.
        data: Its bytes, or the sha256 of them.
        digested: True if that is the sha256.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    digested: bool = False

    def differs_from(self, other: Tensor) -> str:
        """Describes the difference of another tensor from this one."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return (
                f"is {self.dtype} {list(self.shape)} in the baseline and {other.dtype} "
                f"{list(other.shape)} in HEAD"
            )
        if self.digested:
            return "differs"
        places = [
            place for place, (a, b) in enumerate(zip(self.data, other.data, strict=True)) if a != b
        ]
        size = len(self.data) // max(1, _product(self.shape))
        elements = len({place // size for place in places})
        return (
            f"differs in {elements} of {_product(self.shape)} elements, first in element "
            f"{places[0] // size}"
        )


@dataclass(frozen=True)
class Outputs:
    """The compared outputs of a run.

    Attributes:
        tensors: Tensors of the trained model, and of the newest checkpoint, which has the critic's
            and the optimizers', by file and name.
        metrics: Rows of metrics by file; a row of results.json is flat, with dotted keys.
        samples: Rows of responses, by file.
    """

    tensors: dict[str, Tensor]
    metrics: dict[str, list[Row]]
    samples: dict[str, list[Row]]

    @classmethod
    def read(cls, folder: Path) -> Outputs:
        """Reads the folder of a run or of results."""
        tensors = {
            f"{name}:{key}": tensor
            for name, file in _weight_files(folder).items()
            for key, tensor in _read_tensors(file).items()
        }
        metrics = {METRICS: _rows(folder / METRICS)} if (folder / METRICS).exists() else {}
        if (folder / RESULTS).exists():
            metrics[RESULTS] = [json.loads((folder / RESULTS).read_text(encoding="utf-8"))]
        answers = (
            file for file in sorted(folder.glob("*.jsonl")) if file.name not in (METRICS, *CLOCKS)
        )
        return cls(tensors, metrics, {file.name: _rows(file) for file in answers})

    @property
    def num_metrics(self) -> int:
        """Number of metric values."""
        return sum(len(flatten(row)) for rows in self.metrics.values() for row in rows)

    @property
    def num_samples(self) -> int:
        """Number of rows of samples."""
        return sum(map(len, self.samples.values()))

    def rename(self) -> Outputs:
        """The same under the names of today."""
        renamed = {
            file: [rename_columns(row) if file == RESULTS else rename_metrics(row) for row in rows]
            for file, rows in self.metrics.items()
        }
        samples = {
            ROW_FILES.get(file, file): [rename_columns(row) for row in rows]
            for file, rows in self.samples.items()
        }
        return Outputs(rename_tensors(self.tensors), renamed, samples)


def keep(folder: Path, target: Path) -> None:
    """Copies the compared files, and the trained model, which other cases read; all of it or
    nothing.
    """
    aside = target.with_name(f"{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for file in [*folder.glob("*.jsonl"), *folder.glob(RESULTS), *folder.glob(SECONDS)]:
        shutil.copy(file, aside)
    if (folder / "final").is_dir():
        shutil.copytree(
            folder / "final", aside / "final", ignore=shutil.ignore_patterns("*.safetensors")
        )
    for name, file in _weight_files(folder).items():
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        if file.stat().st_size < LARGE_BYTES:
            shutil.copy(file, aside / name)
        else:
            _write_digests(_read_tensors(file), aside / f"{name}{DIGESTS}")
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)


def find_difference(baseline: Outputs, head: Outputs) -> str | None:
    """Finds the first difference, as a sentence; None if all is equal.

    Names must be today's in both.
    """
    finders = (_find_in_tensors(baseline, head), _find_in_rows(baseline.metrics, head.metrics))
    for finder in (*finders, _find_in_rows(baseline.samples, head.samples)):
        for difference in finder:
            return difference
    if not (baseline.tensors or baseline.metrics or baseline.samples):
        return "left nothing that could be compared"
    return None


def flatten(value: Any, above: str = "") -> dict[str, Value]:
    """The leaves of a row by their dotted keys."""
    if not isinstance(value, dict | list):
        return {above: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    leaves: dict[str, Value] = {above: type(value).__name__} if not value else {}
    for key, item in items:
        leaves |= flatten(item, f"{above}.{key}" if above else str(key))
    return leaves


def _find_in_tensors(baseline: Outputs, head: Outputs) -> Iterator[str]:
    for name in baseline.tensors | head.tensors:
        ours = baseline.tensors.get(name)
        theirs = head.tensors.get(name)
        if ours is None or theirs is None:
            yield f"{name} is only in {'HEAD' if ours is None else 'the baseline'}"
        elif ours != theirs:
            yield f"{name} {ours.differs_from(theirs)}"


def _find_in_rows(
    baseline: Mapping[str, list[Row]], head: Mapping[str, list[Row]]
) -> Iterator[str]:
    for file in {**baseline, **head}:
        if file not in baseline or file not in head:
            yield f"{file} is only in {'the baseline' if file in baseline else 'HEAD'}"
            continue
        for number, (ours, theirs) in enumerate(zip_longest(baseline[file], head[file]), 1):
            if ours is None or theirs is None:
                yield (
                    f"{file} has {len(baseline[file])} rows in the baseline and "
                    f"{len(head[file])} in HEAD"
                )
                break
            yield from _find_in_row(f"{file}:{number}", flatten(ours), flatten(theirs))


def _find_in_row(
    where: str, baseline: Mapping[str, Value], head: Mapping[str, Value]
) -> Iterator[str]:
    for key in {**baseline, **head}:
        if key not in baseline or key not in head:
            yield f"{where} {key} is only in {'the baseline' if key in baseline else 'HEAD'}"
        elif repr(baseline[key]) != repr(head[key]):  # 1 is not 1.0, and 0.0 not -0.0
            yield f"{where} {key} is {baseline[key]!r} in the baseline and {head[key]!r} in HEAD"


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors of a file of weights, or of digests, by their names."""
    if file.suffix == DIGESTS:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {
            key: Tensor(dtype, tuple(shape), bytes.fromhex(data), True)
            for key, (dtype, shape, data) in kept.items()
        }
    digested = file.stat().st_size >= LARGE_BYTES
    return {
        key: Tensor(
            entry["dtype"],
            tuple(entry["shape"]),
            hashlib.sha256(entry["data"]).digest() if digested else bytes(entry["data"]),
            digested,
        )
        for key, entry in deserialize(file.read_bytes())
    }


def _write_digests(tensors: Mapping[str, Tensor], file: Path) -> None:
    kept = {key: [tensor.dtype, tensor.shape, tensor.data.hex()] for key, tensor in tensors.items()}
    file.write_text(json.dumps(kept), encoding="utf-8")


def _weight_files(folder: Path) -> dict[str, Path]:
    """Files of weights by their path, in which the newest checkpoint is called `checkpoint`, at any
    step.

    Where a file's digests were kept in its place, they stand at its path.
    """
    files = {
        str(file.relative_to(folder)): file for file in sorted(folder.glob("final/*.safetensors*"))
    }
    checkpoints = [*sorted((folder / "checkpoints").glob("step_*")), folder / CHECKPOINT]
    for newest in [one for one in checkpoints if one.is_dir()][-1:]:
        found = sorted(newest.rglob("*.safetensors*"))
        files |= {f"{CHECKPOINT}/{file.relative_to(newest)}": file for file in found}
    weights = {name.removesuffix(DIGESTS): file for name, file in files.items()}
    return {name: file for name, file in weights.items() if name.endswith(".safetensors")}


def _rows(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
