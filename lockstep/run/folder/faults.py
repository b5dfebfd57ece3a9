"""The batch with numbers that are not finite, kept in the run's folder so that the user can look for the cause."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError
from lockstep.core.errors import RunError


@contextmanager
def keep_fault(where: Path, during: str, context: Mapping[str, int]) -> Iterator[None]:
    """Writes the batch into a folder if a number in the block is not finite.

    Args:
        where: The folder, which is made.
        during: Words for what the block does, as in "step 3".
        context: Is written beside the batch.

    Raises:
        RunError: In place of NotFiniteError; names the folder.
    """
    try:
        yield
    except NotFiniteError as error:
        sentence = f"{during}, {error}"
        _write(where, error.batch, {**context, "error": sentence})
        raise RunError(f"{sentence}; the batch that made it is in {where}") from error


def _write(folder: Path, batch: Batch, context: dict[str, object]) -> None:
    """Writes tokens, lengths and every column to `batch.safetensors`, the rest to `fault.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {f"token.{name}": column for name, column in batch.token.items()}
    columns |= {f"sample.{name}": column for name, column in batch.sample.items()}
    tensors = {"tokens": batch.tokens, "lengths": batch.lengths, **columns}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / "batch.safetensors")
    sampling = None if batch.sampling is None else asdict(batch.sampling)
    (folder / "fault.json").write_text(json.dumps({**context, "sampling": sampling}, indent=1) + "\n", encoding="utf-8")
