"""The batch whose loss or gradient is not finite, kept in the run's folder so that the user can look for the cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from lockstep.batch import Batch
from lockstep.errors import RunError
from lockstep.learners.base import NotFiniteError


@contextmanager
def keep_fault(folder: Path, step: int, position: int) -> Iterator[None]:
    """Writes the batch into `folder` if a loss or gradient of the step in the block is not finite.

    Raises:
        RunError: In place of NotFiniteError; names the folder.
    """
    try:
        yield
    except NotFiniteError as error:
        where = folder / f"step_{step + 1:06d}"
        sentence = f"step {step + 1}, {error.loss}: {error}"
        _write(where, error.batch, {"step": step + 1, "position": position, "error": sentence})
        raise RunError(f"{sentence}; the batch that made it is in {where}") from error


def _write(folder: Path, batch: Batch, context: dict[str, object]) -> None:
    """Writes tokens, lengths and every column to `batch.safetensors`, the rest to `fault.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {f"token.{name}": column for name, column in batch.token.items()}
    columns |= {f"sample.{name}": column for name, column in batch.sample.items()}
    tensors = {"tokens": batch.tokens, "lengths": batch.lengths, **columns}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / "batch.safetensors")
    sampling = None if batch.sampling is None else asdict(batch.sampling)
    (folder / "fault.json").write_text(json.dumps({**context, "sampling": sampling}, indent=1) + "\n")
