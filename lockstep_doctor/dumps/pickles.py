"""Files of pickles, read without running what is in them: tensors and plain containers, and nothing else."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from lockstep_doctor.dumps.errors import DumpError

_REBUILD = {"_reconstruct": np.zeros(1).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
_ARRAYS: list[Any] = [
    np.ndarray,
    np.dtype,
    *(type(np.dtype(name)) for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64")),
    *((one, f"numpy.{core}.multiarray.{name}") for name, one in _REBUILD.items() for core in ("core", "_core")),
]
"""Names that arrays and numbers of numpy are made of, in its first and second edition."""

_ADVICE = "write tensors, numbers, strings, lists and dicts alone: docs/guides/dumps.md has five lines for each library"


def read_torch_file(path: Path) -> Any:
    """Returns what `torch.save` wrote, if it is made of tensors, arrays and plain containers.

    Raises:
        DumpError: It is something else, or needs code to be read.
    """
    if not zipfile.is_zipfile(path):
        raise DumpError(f"{path}: is no file of torch.save (a zip file); write it again with torch.save")
    with safe_globals(_ARRAYS):
        if unsafe := get_unsafe_globals_in_checkpoint(str(path)):
            raise _refuse(path, unsafe)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def read_tensor_batch(path: Path) -> Mapping[str, Tensor]:
    """Returns the tensors of a batch that SkyRL pickled.

    Raises:
        DumpError: It is something else, or needs code to be read.
    """
    with path.open("rb") as file:
        state = _Plain(path, file).load()
    found = {name: _tensor(one) for name, one in state["batch_dict"].items() if one is not None}
    return {name: one for name, one in found.items() if one is not None}


def _refuse(path: Path, names: list[str]) -> DumpError:
    return DumpError(f"{path}: holds {', '.join(sorted(names))}, which only running code could read; {_ADVICE}")


def _state(kind: object, state: Mapping[str, Any]) -> Mapping[str, Any]:
    return state


class _Plain(pickle.Unpickler):
    """Reads plain containers, and of SkyRL's batch its state; any other name is refused, and nothing is imported."""

    def __init__(self, path: Path, file: Any) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., Any]:
        match module_name.rpartition(".")[2], global_name:
            case "training_batch", "_rebuild_tensor_batch":
                return _state
            case "training_batch", "TrainingInputBatch":
                return dict
            case "torch", "device":
                return torch.device
            case _:
                raise _refuse(self._path, [f"{module_name}.{global_name}"])


def _tensor(written: Mapping[str, Any]) -> Tensor | None:
    match written.get("format", "numpy"):
        case "numpy":
            flat = np.frombuffer(written["data"], np.dtype(written["dtype"]))
            return torch.from_numpy(flat.reshape(written["shape"]).copy())
        case "torch":
            return torch.load(io.BytesIO(written["data"]), map_location="cpu", weights_only=True)
        case _:
            return None  # images
