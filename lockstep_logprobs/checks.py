"""Checks of arguments, each with a one-sentence error; none syncs with a device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_rows(
    logits_Mv: Tensor, token_MK: Tensor | None = None, floor_M: Tensor | None = None
) -> None:
    """Raises ValueError unless logits are [M, v], tokens integers [M, K], and a floor [M]."""
    if logits_Mv.dim() != 2 or not logits_Mv.is_floating_point():
        raise ValueError(
            "logits must be floating-point rows of this rank's columns [M, v], not "
            f"{_describe_tensor(logits_Mv)}; flatten the dimensions before the last"
        )
    if token_MK is not None:
        check_tokens(token_MK, len(logits_Mv))
    if floor_M is not None and floor_M.shape != logits_Mv.shape[:1]:
        raise ValueError(
            f"floor must have one number per row, [{len(logits_Mv)}], not "
            f"{_describe_tensor(floor_M)}"
        )


def check_tokens(token_MK: Tensor, rows: int) -> None:
    """Raises ValueError unless tokens are integers [rows, K]."""
    if token_MK.dim() != 2 or len(token_MK) != rows or not is_integer(token_MK):
        raise ValueError(
            f"tokens must be integers [M, K], one row for each of the {rows} rows to score, not "
            f"{_describe_tensor(token_MK)}; for one token per row pass token[:, None]"
        )


def check_sampled(token_MK: Tensor) -> None:
    """Raises ValueError unless there is one token per row, which is added to the support."""
    if token_MK.shape[1] != 1:
        raise ValueError(
            "with a floor, pass one sampled token per row [M, 1], not "
            f"{_describe_tensor(token_MK)}; score "
            "other tokens without sampled"
        )


def check_head(hidden_MD: Tensor, weight_vD: Tensor) -> None:
    """Raises ValueError unless hidden states are [M, D] and the head is [v, D]."""
    if hidden_MD.dim() != 2 or weight_vD.dim() != 2 or hidden_MD.shape[1] != weight_vD.shape[1]:
        raise ValueError(
            "hidden states must be [M, D] and the head this rank's rows [v, D], not "
            f"{_describe_tensor(hidden_MD)} and {_describe_tensor(weight_vD)}"
        )


def check_ids(name: str, ids: Tensor, logits: Tensor, dims: int) -> None:
    """Raises ValueError unless `ids` are integers with `dims` dimensions and fit the logits."""
    if ids.dim() != dims or not is_integer(ids) or ids.shape[0] != logits.shape[0]:
        raise ValueError(
            f"{name} must be {'[B, S, K]' if dims == 3 else '[B, S]'} integers for "
            f"{logits.shape[0]} "
            f"sequences, not {_describe_tensor(ids)}"
        )


def check_range(vocab_start_index: int, vocab_end_index: int, held: int, what: str) -> None:
    """Raises ValueError unless the range fits the `held` columns, which `what` describes."""
    if not 0 <= vocab_end_index - vocab_start_index <= held:
        raise ValueError(
            f"this rank's part of the vocabulary, {vocab_start_index} to {vocab_end_index}, does "
            f"not fit {what}"
        )


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless the number is positive."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(
            f"temperature is {temperature}, but must be positive; score greedy tokens at "
            "temperature 1"
        )


def check_on_device(condition: Tensor, sentence: str) -> None:
    """Raises RuntimeError unless a boolean tensor is true; asynchronously on a GPU."""
    torch._assert_async(condition, sentence)  # pyright: ignore[reportPrivateImportUsage]


def is_integer(x: Tensor) -> bool:
    """True if a tensor has an integer type; bool is not one."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _describe_tensor(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
