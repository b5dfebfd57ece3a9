"""A side of a comparison as a file: what flowed through a model in one pass of any program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lockstep_doctor.cuts import OUTPUT, Capture, CutPoint
from lockstep_doctor.modules import ModuleTap, Pass, visit_cuts
from lockstep_doctor.operators import OperatorTrace

_FORMAT = "lockstep_doctor.tap 1"
_CUT = "cut "


class TapError(ValueError):
    """A pass cannot be recorded, or a file of one cannot do what is asked of it."""


class Recording:
    """The pass that `tap` records.

    Attributes:
        column: Log-probabilities of the tokens from the second on as the program itself computes them, [T - 1], where
            it sets them; None: there are none.
    """

    def __init__(self) -> None:
        self.column: Tensor | None = None
        self._calls: list[tuple[Tensor | None, Tensor | None]] = []

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Keeps the ids and the logits of a call of the whole model."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        logits = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple) else output.logits
        self._calls.append((ids if isinstance(ids, Tensor) else None, logits))

    def tensors(self) -> dict[str, Tensor]:
        """Returns ids, logits and column.

        Raises:
            TapError: It was not one pass over one sequence.
        """
        if len(self._calls) != 1:
            raise TapError(f"the model ran {len(self._calls)} times in the block; run it once, without a cache")
        ids, logits = self._calls[0]
        if ids is None or ids.numel() != ids.shape[-1] or ids.is_floating_point():
            raise TapError("the model was not given the ids of one sequence, as [T] or [1, T]; give it one alone")
        if logits is None or logits.numel() % ids.numel():
            raise TapError(f"the model gave no logits for each of {ids.numel()} ids")
        found = {"ids": ids.reshape(-1), "logits": logits.reshape(ids.numel(), -1)}
        return found if self.column is None else {**found, "column": self.column}


@contextmanager
def tap(model: nn.Module, path: Path | str, name: str = "") -> Iterator[Recording]:
    """Writes what flows through a model in the block's one pass into a file of safetensors.

    Args:
        model: Any module whose parts have the names of `transformers`; it is given the ids of one sequence, and returns
            logits, or something that has them.
        name: Of the program, in reports; the file's own by default.

    Raises:
        TapError: The model did not run once, or no part of it has a known name.
    """
    made, one, cuts_of = Recording(), Pass({}), ModuleTap(model, name)
    handle = model.register_forward_hook(made.note, with_kwargs=True)
    try:
        with torch.no_grad(), visit_cuts(model, cuts_of.paths, cuts_of.values, one):
            yield made
    finally:
        handle.remove()
    found, cuts = made.tensors(), one.collect()
    if not any(cut.layer is not None for cut in cuts):
        raise TapError("no cut was seen inside of a layer: are the parts named as in transformers, and not compiled?")
    written = {**found, **{f"{_CUT}{cut}": value for cut, value in cuts.items()}}
    plain = {key: value.detach().cpu().contiguous().clone() for key, value in written.items()}
    told = {"format": _FORMAT, "name": name or Path(path).stem, "cuts": json.dumps([str(cut) for cut in cuts])}
    save_file(plain, path, told)


class FileTap:
    """Implements `tap.Tap` by a file that `tap` wrote: it says what was seen, and can neither be forced nor traced.

    Raises:
        TapError: It is no such file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with safe_open(self.path, "pt") as file:
                told = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
        except (OSError, SafetensorError) as error:
            raise TapError(f"{self.path}: cannot be read: {error}") from error
        try:
            if told["format"] != _FORMAT:
                raise ValueError(told["format"])
            self.name, self.tokens_T, logits = told["name"], tensors["ids"], tensors["logits"]
            seen = {CutPoint.parse(cut): tensors[f"{_CUT}{cut}"] for cut in json.loads(told["cuts"])}
        except (KeyError, TypeError, ValueError) as error:
            raise TapError(f"{self.path}: was not written by lockstep_doctor.tap") from error
        self._capture = Capture(logits, {**seen, OUTPUT: logits}, tensors.get("column"))

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        if not torch.equal(tokens_T.cpu(), self.tokens_T):
            raise TapError(f"{self.path}: is of {len(self.tokens_T)} other ids; read those of its tokens_T")
        own = self._capture.seen
        if other := [str(cut) for cut, value in forced.items() if cut in own and not _is_same(value, own[cut])]:
            raise TapError(f"{self.path}: is a file and cannot be given other values, as of {other[0]}")
        return self._capture

    def trace(
        self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor], start: CutPoint | None, end: CutPoint
    ) -> OperatorTrace:
        raise TapError(f"{self.path}: is a file, of which no operator can be traced")

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        raise TapError(f"{self.path}: is a file, of which no function can be counted")


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one.cpu(), other))
