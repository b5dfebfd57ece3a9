"""The models that faults are put into, written once, and prompts for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.doctor_faults.first_ground import FIRST_MODELS, write_first
from lockstep import keyed
from lockstep.models.folder import read_config
from lockstep.types import Request

Writer = Callable[[str, int, Path], None]
"""Writes a model, by its name and a seed, into a folder."""
WRITERS: Mapping[str, Writer] = dict.fromkeys(FIRST_MODELS, write_first)
"""The writer of each model; `benchmarks/doctor_faults/ground.py` has more of them."""


class Ground:
    """Folders of the models, and prompts for them.

    Args:
        root: Where they are written.
        model: A folder that stands for "llama" instead of a random model.
        seed: Of weights and prompts.
        writers: Of each model that it has.
    """

    def __init__(
        self, root: Path, model: str | None = None, seed: int = 0, writers: Mapping[str, Writer] = WRITERS
    ) -> None:
        self._root, self._model, self.seed, self._writers = root, model, seed, writers

    def folder(self, name: str) -> str:
        """The folder of one of the models."""
        if name == "llama" and self._model is not None:
            return self._model
        folder = self._root / f"{name.replace(',', '').replace(' ', '-')}-{self.seed}"
        if not folder.exists():
            self._writers[name](name, self.seed, folder)
        return str(folder)

    def requests(self, name: str, count: int = 32) -> tuple[Request, ...]:
        """Prompts of random ids, from 8 to 64 tokens long."""
        vocabulary = int(read_config(self.folder(name)).get_text_config().vocab_size)
        return tuple(_request(vocabulary, ("prompt", name, self.seed, row)) for row in range(count))


def _request(vocabulary: int, parts: tuple[int | str, ...]) -> Request:
    draw = keyed.generator(*parts)
    length = int(torch.randint(8, 65, (), generator=draw))
    tokens = torch.randint(3, vocabulary, (length,), generator=draw)
    return Request(tuple(tokens.tolist()), keyed.key(*parts, "response"))
