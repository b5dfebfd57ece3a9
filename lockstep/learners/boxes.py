"""Checkpoint files of one or many ranks: each rank writes its boxes of tensors and reads any box.

A file is safetensors; if it has parts of tensors, its header has the offset of each. So any layout
of ranks can read a checkpoint of any other, every rank reads only what it holds, and nothing is
unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from lockstep.core.errors import InputError
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.pieces import ParameterPiece, TensorBox

_OFFSETS = "offsets"


@dataclass(frozen=True)
class FileContents:
    """Content of a file: tensors, and the offset of each partial tensor in the full one."""

    tensors: Mapping[str, Tensor]
    offsets: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def from_boxes(cls, boxes: Iterable[tuple[str, Tensor, TensorBox]]) -> FileContents:
        """Builds the content from (name, numbers, box); a scalar has no offset."""
        tensors = dict[str, Tensor]()
        cut = dict[str, Sequence[int]]()
        for name, tensor, box in boxes:
            tensors[name] = tensor
            if tensor.dim() and box.shape != box.whole:
                cut[name] = box.offset
        return cls(tensors, cut)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> FileContents:
        """Adds full tensors to the same file."""
        return replace(self, tensors={**self.tensors, **tensors})

    @property
    def file_metadata(self) -> dict[str, str]:
        """Metadata of the file."""
        if self.offsets:
            return {_OFFSETS: json.dumps(self.offsets)}
        return {}


def name_file(stem: str, ranks: RankMesh) -> str:
    """File name of a rank; only ranks of the first replica (`dp_replicate` 0) write."""
    world = ranks.size("dp") * ranks.size("pp") * ranks.size("cp") * ranks.size("tp")
    if world == 1:
        return f"{stem}.safetensors"
    return f"{stem}-{ranks.rank_number + 1:05}-of-{world:05}.safetensors"


def find_written(folder: Path, stem: str) -> list[Path]:
    """The ranks' files with a stem."""
    return sorted(folder.glob(f"{stem}.safetensors")) or sorted(
        folder.glob(f"{stem}-*-of-*.safetensors")
    )


class BoxReader:
    """Reads tensors from the files of one or many ranks; a context manager that keeps them open.

    Args:
        files: All files of a checkpoint.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._open = ExitStack()
        self._folder = files[0].parent if files else None
        self._found: dict[str, list[tuple[Any, list[int]]]] = {}
        for path in files:
            file = self._open.enter_context(safe_open(path, "pt"))
            offsets = json.loads((file.metadata() or {}).get(_OFFSETS, "{}"))
            for name in file.keys():  # noqa: SIM118
                self._found.setdefault(name, []).append((file, offsets.get(name)))

    def __enter__(self) -> BoxReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def list_names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._found)

    def read_tensor(self, name: str) -> Tensor:
        """A tensor, fp32, assembled from its boxes."""
        ends = list[list[int]]()
        for file, at in self._found[name]:
            starts, sizes = self._find_bounds(file, name, at)
            ends.append([start + size for start, size in zip(starts, sizes, strict=True)])
        shape = list(map(max, zip(*ends, strict=True)))
        return self.read_box(name, [0] * len(shape), shape)

    def read_box(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A box of a tensor, fp32.

        Raises:
            InputError: If a part is missing from the files.
        """
        out = torch.empty(tuple(shape))
        found = set[tuple[tuple[int, int], ...]]()
        for file, at in self._found[name]:
            starts, sizes = self._find_bounds(file, name, at)
            overlap = list[tuple[int, int]]()
            source = list[slice]()
            target = list[slice]()
            for a, n, o, m in zip(starts, sizes, offset, shape, strict=True):
                low = max(a, o)
                high = min(a + n, o + m)
                overlap.append((low, high))
                source.append(slice(low - a, high - a))
                target.append(slice(low - o, high - o))
            if all(low < high for low, high in overlap):
                part = file.get_slice(name)[tuple(source)] if source else file.get_tensor(name)
                out[tuple(target)] = part
                found.add(tuple(overlap))
        filled = 0
        for box in found:
            filled += math.prod(high - low for low, high in box)
        if filled != math.prod(shape):
            raise InputError(
                f"{self._folder}: {name} is incomplete: files of some ranks are missing, or a "
                "different model wrote them; use a different checkpoint"
            )
        return out

    def fill_piece(
        self, laid_out: Tensor, piece: ParameterPiece, named: Callable[[str], str] = str
    ) -> None:
        """Reads a piece's boxes into memory of its layout; `named` maps box to file names."""
        for box in piece.boxes:
            box.write_box(laid_out, self.read_box(named(box.name), box.offset, box.shape))

    @staticmethod
    def _find_bounds(
        file: Any, name: str, at: Sequence[int] | None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The start and shape of a file's box."""
        shape = file.get_slice(name).get_shape()
        return at or [0] * len(shape), shape
