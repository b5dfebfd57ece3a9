"""Checks of a model folder's safetensors files.

Names, shapes and types must match the configuration, and all numbers must be finite.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.utils.loading_report import LoadStateDictInfo

from lockstep.core.errors import first_line
from lockstep.models.folder import ModelError, read_json

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_UNIT = "score.weight"
_TYPES = ("F64", "F32", "BF16", "F16")
_LARGEST = torch.finfo(torch.float32).max
_NAMED = 3
"""Number of tensors that a message lists."""


@dataclass(frozen=True)
class _StoredTensor:
    """A tensor's entry in the header of a file.

    Attributes:
        file: File that has it.
        shape: Shape in the file.
        type: Type by safetensors' name, such as BF16.
    """

    file: Path
    shape: list[int]
    type: str


@dataclass
class _KeyReport:
    """Missing and unexpected tensors; `transformers` removes the names that it tolerates."""

    missing_keys: set[str]
    unexpected_keys: set[str]


def check_weights(
    folder: str | os.PathLike[str], model: PreTrainedModel, headless: bool = False
) -> None:
    """Compares the weight headers of a folder with the model of its configuration.

    Args:
        folder: Folder of the model.
        model: Model of the configuration; may be on the meta device.
        headless: Only the backbone is needed: a language model's head may be missing, and a reward
            model's head may be present.

    Raises:
        ModelError: If weights are missing, unknown to the model, pickled, damaged, quantized, or of
            a different shape.
    """
    path = Path(folder)
    own = model.state_dict()
    wanted = {name: list(tensor.shape) for name, tensor in own.items()}
    stored: dict[str, _StoredTensor] = {}
    for file in weight_files(path):
        for name, there in _read_headers(file).items():
            if name in stored:
                raise ModelError(
                    f"{stored[name].file} and {file} both contain {name}; copy or download the "
                    "folder again"
                )
            stored[name] = there
    named = _TensorNames(model, wanted)
    unknown = set[str]()
    found = set[str]()
    for name, there in stored.items():
        targets = named.list_targets(name)
        known = [target for target in targets if target in wanted]
        found.update(known)
        if not known:
            unknown.update(targets)
        elif there.type not in _TYPES and any(own[target].is_floating_point() for target in known):
            raise ModelError(
                f"{there.file}: {name} has type {there.type}; weights must be fp32, bf16 or fp16, "
                "so use the model before quantization"
            )
        elif targets == [name] and wanted[name] != there.shape:
            raise ModelError(
                f"{there.file}: {name} has shape {there.shape}, but config.json implies "
                f"{wanted[name]}; weights and config belong to different models"
            )
    _require_all(path, model, wanted.keys() - found, unknown, headless)


def _require_all(
    path: Path, model: PreTrainedModel, missing: set[str], unknown: set[str], headless: bool
) -> None:
    tied = model.all_tied_weights_keys
    # one of two tied tensors is enough
    missing = {name for name in missing if tied.get(name, name) in missing}
    report = _KeyReport(missing, unknown)
    # what it may lack or ignore
    model._adjust_missing_and_unexpected_keys(cast(LoadStateDictInfo, report))
    missing = report.missing_keys
    unknown = report.unexpected_keys
    if headless:
        missing = {name for name in missing if name.startswith(f"{model.base_model_prefix}.")}
        unknown = unknown - {_UNIT}
    if missing:
        raise ModelError(
            f"the model in {path} lacks weights for {_summarize_names(missing)}; download it "
            "again, or "
            "use a causal language model"
        )
    if unknown:
        raise ModelError(
            f"the files of {path} have weights that do not belong to the model in config.json: "
            f"{_summarize_names(unknown)}; use the matching config.json"
        )


def require_finite(folder: str | os.PathLike[str]) -> None:
    """Reads all weights of a folder once, file by file, and checks that they are finite.

    Raises:
        ModelError: If one of them is NaN or infinite.
    """
    for file in weight_files(Path(folder)):
        for name, tensor in _read_tensors(file):
            require_finite_tensor(file, name, tensor)


def require_finite_tensor(source: object, name: str, tensor: Tensor) -> None:
    """Raises ModelError if a tensor has a NaN or infinity; the message begins with `source`."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    low, high = map(float, tensor.aminmax())  # both are NaN if one number is
    largest = max(abs(low), abs(high))
    if _LARGEST < largest < math.inf:
        raise ModelError(
            f"{source}: {name} holds {largest:.3g}, which overflows fp32; models are loaded as fp32"
        )
    if not math.isfinite(low) or not math.isfinite(high):
        what = "NaN" if math.isnan(low) else "infinite numbers"
        raise ModelError(
            f"{source}: {name} holds {what}; training diverged or the file is damaged: use an "
            "earlier checkpoint, or copy or download it again"
        )


def require_rewards(folder: Path) -> None:
    """Raises ModelError unless a folder's weights include a reward model's head, with one label."""
    units = list[list[int]]()
    for file in weight_files(folder):
        headers = _read_headers(file)
        if _UNIT in headers:
            units.append(headers[_UNIT].shape)
    labels = units[0][0] if units else 0
    if labels != 1:
        why = f"has {labels} labels" if labels else f"lacks {_UNIT}"
        raise ModelError(
            f"{folder} is not a reward model: it {why}; train one with algorithm: reward_model"
        )


def are_on_hub(folder: Path) -> bool:
    """True if a folder is in the hub's cache without weights, which a dry run does not fetch."""
    return folder.parent.name == "snapshots" and not all(
        file.is_file() for file in _list_files(folder)
    )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; raises ModelError if one is missing."""
    files = _list_files(folder)
    missing = [file for file in files if not file.is_file()]
    if not missing and files:
        return files
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(
            f"{folder} has only pickled weights, which may run code when loaded; save the model "
            "again as safetensors with transformers"
        )
    names = ", ".join(file.name for file in missing) or "those that its index should name"
    raise ModelError(f"{folder} has no weights: {names} missing; copy or download the folder again")


def _list_files(folder: Path) -> list[Path]:
    """The expected safetensors files of a folder: the files in its index, or a single file."""
    if (folder / _INDEX).is_file():
        names = read_json(folder, _INDEX, "").get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ModelError(f"{folder / _INDEX} has no weight_map; copy or download it again")
        files = sorted({folder / name for name in names.values()})
        outside = next((file for file in files if file.parent != folder), None)
        if outside is not None:
            raise ModelError(
                f"{folder / _INDEX} names {outside}, which is outside its folder; copy or "
                "download it again"
            )
    else:
        files = [folder / _WHOLE]
    return files


class _TensorNames:
    """Renames file tensors as `transformers` does: from older checkpoints, or fused or split.

    Args:
        model: The model to load.
        wanted: The model's tensors, by name.
    """

    def __init__(self, model: PreTrainedModel, wanted: Mapping[str, object]) -> None:
        rules = get_model_conversion_mapping(model)
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._prefix, self._wanted = model.base_model_prefix, dict(wanted)

    def list_targets(self, name: str) -> list[str]:
        """The model's tensors that a file's tensor goes into, whether or not the model has them."""
        renamed, source = self._rename_source(name, self._renamings, self._converters)
        if renamed not in self._wanted and name in self._wanted:
            renamed, source = self._rename_source(name, [], [])
        if source is None:
            return [renamed]
        first, *others = next(
            rule for rule in self._converters if source in rule.source_patterns
        ).target_patterns
        return [renamed, *(renamed.replace(first, other) for other in others)]

    def _rename_source(
        self, name: str, renamings: list[WeightRenaming], converters: list[WeightConverter]
    ) -> tuple[str, str | None]:
        return rename_source_key(name, renamings, converters, self._prefix, self._wanted)


def _summarize_names(names: set[str]) -> str:
    """Lists some names, and the number of others."""
    some = sorted(names)
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return ", ".join(some[:_NAMED]) + more


def _read_headers(file: Path) -> dict[str, _StoredTensor]:
    found: dict[str, _StoredTensor] = {}
    with _open_file(file) as opened:
        for name in opened.keys():  # noqa: SIM118
            part = opened.get_slice(name)
            found[name] = _StoredTensor(file, list(part.get_shape()), part.get_dtype())
    return found


def _read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    with _open_file(file) as opened:
        for name in opened.keys():  # noqa: SIM118
            yield name, opened.get_tensor(name)


@contextmanager
def _open_file(file: Path) -> Iterator[Any]:
    """Opens a safetensors file; raises ModelError if it is damaged."""
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (
        SafetensorError,
        OSError,
        RuntimeError,
    ) as error:  # torch raises the last one for a file that does not open
        raise ModelError(
            f"{file} is damaged ({first_line(error)}); copy or download it again"
        ) from error
