"""Tensors that several ranks wrote in boxes, read back in other boxes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from lockstep.learners.boxes import BoxReader, FileContents, find_written

WHOLE = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)


def write(folder: Path, parts: int, dim: int, missing: int | None = None) -> None:
    """What ranks write that share a matrix along one dimension, with one row each that is not
    cut.
    """
    at = 0
    for rank, piece in enumerate(WHOLE.tensor_split(parts, dim)):
        offset = [0, 0]
        offset[dim], at = at, at + piece.shape[dim]
        file = FileContents(
            {"matrix": piece.contiguous(), "step": torch.tensor(3.0)}, {"matrix": offset}
        )
        if rank != missing:
            save_file(
                dict(file.tensors),
                folder / f"model-{rank + 1:05}-of-{parts:05}.safetensors",
                file.file_metadata,
            )


@given(
    st.integers(1, 7),
    st.integers(0, 1),
    st.tuples(*[st.tuples(st.integers(0, n), st.integers(0, n)) for n in (7, 5)]),
)
def test_checkpoint_slice_is_read_from_any_sharding_of_ranks(
    tmp_path_factory: pytest.TempPathFactory,
    parts: int,
    dim: int,
    box: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    folder = tmp_path_factory.mktemp("boxes")
    write(folder, parts, dim)
    (top, bottom), (left, right) = (sorted(side) for side in box)
    with BoxReader(find_written(folder, "model")) as saved:
        assert torch.equal(
            saved.read_box("matrix", (top, left), (bottom - top, right - left)),
            WHOLE[top:bottom, left:right],
        )
        assert torch.equal(saved.read_tensor("matrix"), WHOLE)
        assert saved.read_box("step", (), ()) == 3.0
        assert saved.list_names() == ["matrix", "step"]


def test_missing_checkpoint_shard_is_reported_as_incomplete_tensor(tmp_path: Path) -> None:
    write(tmp_path, 3, 0, missing=1)
    with BoxReader(find_written(tmp_path, "model")) as saved:
        assert torch.equal(saved.read_box("matrix", (0, 0), (2, 5)), WHOLE[:2])
        with pytest.raises(
            ValueError, match="matrix is incomplete: files of some ranks are missing"
        ):
            saved.read_box("matrix", (0, 0), (7, 5))
