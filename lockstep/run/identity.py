"""The identity of a run, as flat names and values: a resumed run can say what is no longer the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lockstep
from lockstep.config import registry
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import weights_of
from lockstep.errors import InputError

Identity = dict[str, Any]

_LIBRARIES = ("torch", "transformers", "tokenizers", "math-verify", "sympy")
_SMALL_BYTES = 1 << 24
_PARTS, _PART_BYTES = 64, 1 << 16


class ChangedError(InputError):
    """A run would resume with something else than it began with; one line for each difference."""


def identity(loaded: Loaded, data: Mapping[str, str], model: Path) -> Identity:
    """Collects all that the results of a run depend on.

    Args:
        loaded: The recipe.
        data: A digest of each source of rows, by name.
        model: Folder of the initial model.
    """
    found = inputs(loaded, data, model)
    found["code.lockstep"] = f"{lockstep.__version__} {_own_code()}"
    libraries = _LIBRARIES if loaded.training.learner.lora is None else (*_LIBRARIES, "peft")
    return found | {f"code.{name}": importlib.metadata.version(name) for name in libraries}


def inputs(loaded: Loaded, data: Mapping[str, str], model: Path | None) -> Identity:
    """The part of the identity that the user gave: no versions of code, and no model where a server has it."""
    found = recipe_identity(loaded)
    found |= {f"data.{name}": own for name, own in data.items()}
    found |= {} if model is None else model_files(model)
    options = dict(_flat(loaded.dump()))
    others = [name for name in options if name.startswith(("reward_model.", "critic_model.", "teachers."))]
    for name in (name.removesuffix(".path") for name in others if name.endswith(".path") and options[name] is not None):
        found |= model_files(weights_of(str(options[f"{name}.path"])), name)
    return found | {f"code.{name}": digest([file]) for name, file in registry.list_code(loaded.dump()).items()}


def model_files(folder: Path, name: str = "model") -> Identity:
    """A digest of each file of a model, by default the initial one."""
    return {f"{name}.{path.name}": _file(path) for path in sorted(folder.iterdir()) if _matters(path)}


def recipe_identity(loaded: Loaded) -> Identity:
    """All options but those that say where and how long a run may run."""
    return {f"recipe.{key}": value for key, value in _flat(loaded.identity())}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lists names whose values differ, one line each, in order."""
    names = [*then, *(name for name in now if name not in then)]
    return [
        f"{name} was {_format_value(then.get(name))}, is {_format_value(now.get(name))}"
        for name in names
        if then.get(name) != now.get(name)
    ]


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _matters(path: Path) -> bool:
    return path.is_file() and path.suffix != ".md" and not path.name.startswith(".")


def _own_code() -> str:
    return digest(sorted(Path(lockstep.__file__).parent.rglob("*.py")))


def _file(path: Path) -> str:
    """A digest of a file; of a large one, of its size and of parts all over it, since reading it all is slow."""
    size = path.stat().st_size
    if size <= _SMALL_BYTES:
        return digest([path])
    total = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for part in range(_PARTS):
            file.seek(part * (size - _PART_BYTES) // (_PARTS - 1))
            total.update(file.read(_PART_BYTES))
    return total.hexdigest()[:16]


def digest(paths: list[Path]) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of files, their names among it."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: total)  # weights may be larger than the memory
    return total.hexdigest()[:16]


def _format_value(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)
