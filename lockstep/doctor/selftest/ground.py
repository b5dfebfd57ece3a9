"""The models that faults are put into, written once, and prompts for them."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.doctor_faults.fifth_ground import FIFTH_MODELS, write_fifth
from benchmarks.doctor_faults.fourth_ground import FOURTH_MODELS, write_fourth
from benchmarks.doctor_faults.second_ground import SECOND_MODELS, write_second
from benchmarks.doctor_faults.sixth_ground import SIXTH_MODELS, write_sixth
from benchmarks.doctor_faults.third_ground import THIRD_MODELS, write_third
from lockstep import keyed
from lockstep.doctor.selftest.first_ground import FIRST_MODELS, write_first
from lockstep.models.folder import read_config
from lockstep.types import Request

MODELS = (*FIRST_MODELS, *SECOND_MODELS, *THIRD_MODELS, *FOURTH_MODELS, *FIFTH_MODELS, *SIXTH_MODELS)
"""Their names, each once."""
_WRITERS = (
    dict.fromkeys(FIRST_MODELS, write_first)
    | dict.fromkeys(SECOND_MODELS, write_second)
    | dict.fromkeys(THIRD_MODELS, write_third)
    | dict.fromkeys(FOURTH_MODELS, write_fourth)
    | dict.fromkeys(FIFTH_MODELS, write_fifth)
    | dict.fromkeys(SIXTH_MODELS, write_sixth)
)


class Ground:
    """Folders of the models, and prompts for them.

    Args:
        root: Where they are written.
        model: A folder that stands for "llama" instead of a random model.
        seed: Of weights and prompts.
    """

    def __init__(self, root: Path, model: str | None = None, seed: int = 0) -> None:
        self._root, self._model, self.seed = root, model, seed

    def folder(self, name: str) -> str:
        """The folder of one of the models."""
        if name == "llama" and self._model is not None:
            return self._model
        folder = self._root / f"{name.replace(',', '').replace(' ', '-')}-{self.seed}"
        if not folder.exists():
            _WRITERS[name](name, self.seed, folder)
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
