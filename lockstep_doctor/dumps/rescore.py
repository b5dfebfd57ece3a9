"""The column that a model's folder gives for the ids of a dump, by `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep_doctor.column import TokenColumns
from lockstep_doctor.dumps.errors import DumpError


def load_model(folder: Path | str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """Returns a causal language model of `transformers`.

    Raises:
        DumpError: `transformers` is not installed, or the folder has no model that it can load.
    """
    if not (Path(folder) / "config.json").is_file():
        raise DumpError(f"{folder}: has no config.json; give a model's folder as transformers saves it")
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise DumpError("computing a model's column needs transformers: pip install transformers") from error
    try:
        found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DumpError(f"{folder}: transformers cannot load it: {reason}") from error
    return found.to(device).eval()


@dataclass(frozen=True)
class Rescorer:
    """Computes columns one sequence at a time, so that nothing is padded.

    Attributes:
        model: Called with `input_ids`; its result has `logits`.
        columns: A dump, with ids.
    """

    model: Any
    columns: TokenColumns

    def score(
        self,
        temperatures: Mapping[str, Tensor],
        rows: int | None = None,
        change: Callable[[Tensor], Tensor] = torch.clone,
    ) -> dict[str, Tensor]:
        """Returns log-probabilities of all entries by name, float64; NaN for an id with none in front.

        Args:
            temperatures: By name, of every row, [B].
            rows: How many rows are computed, from the front; None: all.
            change: Puts other ids in front of a row's.
        """
        assert self.columns.ids is not None
        found: dict[str, list[Tensor]] = {name: [] for name in temperatures}
        for row in range(self.columns.lengths.numel() if rows is None else rows):
            ids = self.columns.ids[int(self.columns.offsets[row]) : int(self.columns.offsets[row + 1])]
            given = change(ids)
            logits = self._read(given)
            for name, each in temperatures.items():
                own = _gather(logits / float(each[row]), given)
                lacking = max(0, ids.numel() - own.numel())
                found[name].append(
                    torch.cat([own.new_full((lacking,), torch.nan), own])[own.numel() + lacking - ids.numel() :]
                )
        return {name: torch.cat(some) for name, some in found.items()}

    @torch.no_grad()
    def _read(self, ids: Tensor) -> Tensor:
        device = next(self.model.parameters()).device
        return self.model(input_ids=ids[None].to(device), use_cache=False).logits[0].float()


def _gather(logits_TV: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of each id given those before it, [T]; NaN for the first."""
    own = logits_TV[:-1].log_softmax(-1).gather(-1, ids[1:, None].to(logits_TV.device))[:, 0].double().cpu()
    return torch.cat([own.new_full((min(1, ids.numel()),), torch.nan), own])


def take_rows(columns: TokenColumns, most: int) -> TokenColumns:
    """Returns the rows in front that have at most so many entries together; at least one row."""
    rows = max(1, int((columns.offsets[1:] <= most).sum()))
    end = int(columns.offsets[rows])
    per_entry = ("train", "infer", "mask", "ids")
    per_row = ("starts", "prompt_lengths", "versions", "temperatures", "top_ps", "clusters")

    def cut(names: Sequence[str], count: int) -> dict[str, Any]:
        return {name: value[:count] for name in names if (value := vars(columns)[name]) is not None}

    return replace(columns, offsets=columns.offsets[: rows + 1], **cut(per_entry, end), **cut(per_row, rows))
