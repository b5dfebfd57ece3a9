"""Model classes from a model's folder (`auto_map`), loaded only from trusted files.

They are registered in `transformers`. The bytes that are compared with the trusted digests are the
bytes that run. A file may import its neighbors relatively (`from .configuration_mine import …`),
which have to be trusted, too; nothing else in the folder can be imported.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lockstep.config.trust import UntrustedCode, describe_file
from lockstep.core.errors import InputError, first_line
from lockstep.models.families.known import is_known
from lockstep.system.guarded_imports import is_trusted
from lockstep.system.printable import print_note

_CONFIG = "AutoConfig"
_MODEL = "AutoModelForCausalLM"


@dataclass(frozen=True)
class _ModelCode:
    """The code of a model type.

    Attributes:
        package: Package name, which contains the content's digest.
        content: Content of the files, by module name.
    """

    package: str
    content: Mapping[str, bytes]


_OWN: dict[str, _ModelCode] = {}
"""Model types whose classes come from a folder."""


def is_own(model_type: object) -> bool:
    """True for a type whose classes come from a model's folder."""
    return model_type in _OWN


def find_package(model_type: str) -> str | None:
    """The package name of a type's own code, with its digest; None for types of `transformers`."""
    own = _OWN.get(model_type)
    if own is None:
        return None
    return own.package


def write_own_files(model_type: str, folder: Path) -> None:
    """Copies the files of a type's own code into a folder; none for types of `transformers`."""
    if model_type in _OWN:
        for name, text in _OWN[model_type].content.items():
            (folder / f"{name}.py").write_bytes(text)


def list_own_files(folder: Path, fields: Mapping[str, Any]) -> list[Path]:
    """The Python files in a folder that a configuration needs; [] for types of `transformers`.

    Raises:
        InputError: A file is missing.
    """
    kind = fields.get("model_type")
    classes = fields.get("auto_map")
    if not isinstance(classes, dict) or _is_from_transformers(kind):
        return []
    todo = list[str]()
    for reference in (classes.get(_CONFIG), classes.get(_MODEL)):
        module, _, class_name = str(reference).partition(".")
        if not module.isidentifier() or not class_name.isidentifier():
            raise InputError(
                f"{folder}/config.json: auto_map must name {_CONFIG} and {_MODEL} as file.Class "
                f"with files in that folder, but has {reference!r}"
            )
        todo.append(module)
    found = dict[str, Path]()
    while todo:
        name = todo.pop(0)
        file = folder / f"{name}.py"
        if name in found or (found and not file.is_file()):
            continue
        if not file.is_file():
            raise InputError(
                f"{folder}/config.json: auto_map names the missing file {file.name}; copy it there"
            )
        found[name] = file
        todo += _list_neighbors(file)
    return list(found.values())


def register_own(folder: Path, fields: Mapping[str, Any]) -> None:
    """Registers a folder's classes in `transformers`, once, if its configuration needs them.

    Raises:
        UntrustedCode: The user has not trusted the files.
        InputError: The code cannot be used.
    """
    kind = str(fields.get("model_type"))
    if _is_from_transformers(kind):
        _refuse_shadow(folder, kind, fields)
        return
    files = list_own_files(folder, fields)
    if not files:
        return
    content = {file.stem: file.read_bytes() for file in files}
    refused = [file for file in files if not is_trusted(content[file.stem])]
    if refused:
        raise UntrustedCode.from_files(folder, kind, refused)
    classes = fields["auto_map"]
    named = sorted(content.items()), classes[_CONFIG], classes[_MODEL]
    digest = hashlib.sha256(repr(named).encode()).hexdigest()[:12]
    package = f"lockstep_model_{digest}"
    if kind in _OWN and _OWN[kind].package != package:
        raise InputError(
            f"{folder}: its code for the model type {kind!r} differs from that of a model already "
            "loaded; rename the type of one of them"
        )
    if kind not in _OWN:
        if multiprocessing.parent_process() is None:  # for worker processes
            print_note(f"the model in {folder} runs {', '.join(map(describe_file, files))}")
        sys.meta_path.insert(0, _CodeImporter(package, folder, content))
        _register_model(folder, kind, package, classes)
        _OWN[kind] = _ModelCode(package, content)


def _is_from_transformers(kind: object) -> bool:
    """True for a type of `transformers` itself, as opposed to registered classes."""
    return is_known(kind) and not is_own(kind)


def _refuse_shadow(folder: Path, kind: str, fields: Mapping[str, Any]) -> None:
    """Raises InputError if `transformers` has the type and would ignore the trusted file."""
    classes = fields.get("auto_map")
    for reference in classes.values() if isinstance(classes, dict) else ():
        file = folder / f"{str(reference).partition('.')[0]}.py"
        if file.is_file() and is_trusted(file.read_bytes()):
            raise InputError(
                f"{folder}: transformers implements the model type {kind!r} itself, so "
                f"{file.name} would not run; set a different model_type in config.json and its "
                "class, or do not trust the file"
            )


def _list_neighbors(file: Path) -> list[str]:
    """The modules of the same folder that a file imports relatively."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file} is invalid Python ({first_line(error)})") from None
    names = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names += [node.module] if node.module else [part.name for part in node.names]
    return names


def _register_model(folder: Path, kind: str, package: str, classes: Mapping[str, str]) -> None:
    config = _find_class(folder, package, classes[_CONFIG])
    model = _find_class(folder, package, classes[_MODEL])
    if not issubclass(config, PreTrainedConfig) or config.model_type != kind:
        raise InputError(
            f"{folder}: {classes[_CONFIG]} must be a PreTrainedConfig with model_type = {kind!r}"
        )
    if not issubclass(model, PreTrainedModel) or model.config_class is not config:
        raise InputError(
            f"{folder}: {classes[_MODEL]} must be a PreTrainedModel with config_class = "
            f"{config.__name__}"
        )
    AutoConfig.register(kind, config)
    AutoModelForCausalLM.register(config, model)


def _find_class(folder: Path, package: str, reference: str) -> type:
    module, _, name = reference.partition(".")
    try:
        found = vars(importlib.import_module(f"{package}.{module}")).get(name)
    except Exception as error:  # the user's module may raise anything on import
        what = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{folder}/{module}.py cannot be imported ({what})") from error
    if not isinstance(found, type):
        raise InputError(
            f"{folder}/{module}.py lacks the class {name} named by auto_map in config.json"
        )
    return found


class _CodeImporter(MetaPathFinder, SourceLoader):
    """Imports a folder's modules only from bytes that were already read.

    Args:
        package: Name of the package.
        folder: The folder, for the modules' file names.
        content: Content of the files, by module name.
    """

    def __init__(self, package: str, folder: Path, content: Mapping[str, bytes]) -> None:
        self._package = package
        self._files = {str(folder.resolve() / f"{name}.py"): text for name, text in content.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname == self._package:
            return spec_from_loader(fullname, loader=None, is_package=True)
        package, _, name = fullname.rpartition(".")
        file = next((file for file in self._files if Path(file).stem == name), None)
        if package != self._package or file is None:
            return None
        return spec_from_file_location(fullname, file, loader=self)

    def get_filename(self, fullname: str) -> str:
        return next(file for file in self._files if Path(file).stem == fullname.rpartition(".")[2])

    def get_data(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)  # such as a .pyc file, which is never read
        return self._files[path]
