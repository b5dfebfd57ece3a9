"""Dumps in the shape of each library: the same tokens come out of all of them, or one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import write_rows
from safetensors.torch import save_file
from torch import Tensor

from lockstep_doctor.dumps.names import DumpError, FieldNames
from lockstep_doctor.dumps.read import read_dump


@dataclass(frozen=True)
class _Answer:
    """One sequence: `mask` is 1 for what the model wrote; the first entries are the prompt's."""

    ids: list[int]
    prompt: int
    mask: list[int]
    train: list[float]
    infer: list[float]


ANSWERS = [
    _Answer(
        list(range(5, 12)), 2, [0, 0, 1, 1, 0, 1, 1], [0, -2, -1, -3, -4, -0.5, -2], [0, 0, -1.5, -3, 0, -1, -2]
    ),
    _Answer([5, 12, 13], 1, [0, 1, 1], [0, -0.25, -1], [0, -0.5, -1.25]),
]  # fmt: skip
"""Two turns with an answer of a tool between, and one turn; the training side speaks of context,
too.
"""


def _pad(rows: list[list[Any]], left: bool = False, fill: float = 0) -> list[list[Any]]:
    most = max(map(len, rows))
    return [
        [fill] * (most - len(row)) + row if left else row + [fill] * (most - len(row))
        for row in rows
    ]


def _response(name: str) -> list[list[Any]]:
    return [getattr(answer, name)[answer.prompt :] for answer in ANSWERS]


def _whole(name: str) -> list[list[Any]]:
    return [getattr(answer, name) for answer in ANSWERS]


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    return write_rows(path, rows)


def nemo_rl(folder: Path) -> Path:
    """Batches of one, padded on the right, prompt and response in one."""
    ids, mask, train, infer = (_pad(_whole(name)) for name in ("ids", "mask", "train", "infer"))
    rows = []
    for i, answer in enumerate(ANSWERS):
        told = {"token_ids": [ids[i]], "token_loss_mask": [mask[i]], "sample_loss_mask": [1.0]}
        sides = {"generation_logprobs": [infer[i]], "prev_logprobs": [train[i]]}
        rows.append(
            {
                "content": ["…"],
                "rewards": [1.0],
                "input_lengths": [len(answer.ids)],
                **told,
                **sides,
                "idx": i,
            }
        )
    return _jsonl(folder / "train_data_step3.jsonl", rows)


def _verl_tensors() -> dict[str, Tensor]:
    """Prompts padded on the left, responses on the right."""
    prompts = _pad([answer.ids[: answer.prompt] for answer in ANSWERS], left=True)
    real = _pad([[1] * answer.prompt for answer in ANSWERS], left=True)
    there = _pad([[1] * len(row) for row in _response("ids")])
    return {
        "input_ids": torch.cat([torch.tensor(prompts), torch.tensor(_pad(_response("ids")))], 1),
        "attention_mask": torch.cat([torch.tensor(real), torch.tensor(there)], 1),
        "response_mask": torch.tensor(_pad(_response("mask"))),
        "old_log_probs": torch.tensor(_pad(_response("train"))),
        "rollout_log_probs": torch.tensor(_pad(_response("infer"))),
    }


def verl(folder: Path) -> Path:
    torch.save(_verl_tensors(), folder / "verl.pt")
    return folder / "verl.pt"


def verl_safetensors(folder: Path) -> Path:
    save_file(_verl_tensors(), folder / "verl.safetensors", {"temperature": "0.7"})
    return folder / "verl.safetensors"


def trl(folder: Path) -> Path:
    prompts = _pad([answer.ids[: answer.prompt] for answer in ANSWERS], left=True)
    torch.save(
        {
            "prompt_ids": torch.tensor(prompts),
            "prompt_mask": torch.tensor(
                _pad([[1] * answer.prompt for answer in ANSWERS], left=True)
            ),
            "completion_ids": torch.tensor(_pad(_response("ids"))),
            "completion_mask": torch.tensor(_pad([[1] * len(row) for row in _response("ids")])),
            "tool_mask": torch.tensor(_pad(_response("mask"), fill=1)),
            "old_per_token_logps": torch.tensor(_pad(_response("train"), fill=-9)),
            "sampling_per_token_logps": torch.tensor(_pad(_response("infer"))),
        },
        folder / "trl.pt",
    )
    return folder / "trl.pt"


def _slime_samples(plural: str, **sides: str) -> list[dict[str, Any]]:
    return [
        {
            "tokens": answer.ids,
            f"response_length{plural}": len(answer.ids) - answer.prompt,
            f"loss_mask{plural}": answer.mask[answer.prompt :],
            "reward": np.float64(1.0),
            "status": "completed",
            "metadata": {},
            "rollout_routed_experts": np.zeros((3, 2, 1), np.int32),
            **{
                name: torch.tensor(getattr(answer, side)[answer.prompt :])
                for name, side in sides.items()
            },
        }
        for answer in ANSWERS
    ]


def slime(folder: Path) -> Path:
    samples = _slime_samples("s", log_probs="train", rollout_log_probs="infer")
    torch.save(
        {"format_version": 2, "rollout_id": 3, "samples": samples, "dp_shards": [{}]},
        folder / "0.pt",
    )
    return folder / "0.pt"


def prime_rl(folder: Path) -> Path:
    return _jsonl(
        folder / "rank_0.jsonl",
        [
            {
                "schema_version": 1,
                "token_ids": answer.ids,
                "position_ids": list(range(len(answer.ids))),
                "loss_mask": [bool(one) for one in answer.mask],
                "trainer_logprobs": [None, *answer.train[1:]],
                "inference_logprobs": answer.infer,
                "is_masked": [None] * len(answer.ids),
            }
            for answer in ANSWERS
        ],
    )


LIBRARIES = [nemo_rl, verl, verl_safetensors, trl, slime, prime_rl]


@pytest.mark.parametrize("write", LIBRARIES)
def test_dumps_of_all_libraries_give_equal_columns(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    dump = read_dump(write(tmp_path))
    columns = dump.columns
    assert columns.ids is not None
    assert columns.ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 5, 12, 13]
    assert columns.offsets.tolist() == [0, 7, 10]
    assert columns.mask.int().tolist() == [0, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    assert columns.train[columns.mask].tolist() == [-1, -3, -0.5, -2, -0.25, -1]
    assert columns.infer[columns.mask].tolist() == [-1.5, -3, -1, -2, -0.5, -1.25]
    assert columns.token_position[columns.mask].tolist() == [2, 3, 5, 6, 1, 2]
    assert columns.facts == {} or columns.facts["temperature"].tolist() == [0.7, 0.7], (
        "as the head of a safetensors says"
    )


def test_slime_rollout_dump_has_only_inference_side(tmp_path: Path) -> None:
    torch.save(
        {"rollout_id": 0, "samples": _slime_samples("", rollout_log_probs="infer")},
        tmp_path / "0.pt",
    )
    dump = read_dump(tmp_path / "0.pt")
    assert (dump.train, dump.infer) == (None, "rollout_log_probs")
    assert bool(dump.columns.train.isnan().all())
    assert dump.columns.infer[dump.columns.mask].tolist() == [-1.5, -3, -1, -2, -0.5, -1.25]


@pytest.mark.parametrize("train", [[0.0, -1.0, -2.0], [-1.0, -2.0, 0.0], [-1.0, -2.0, -1.0]])
def test_ambiguous_zero_logprobs_without_mask_are_rejected(
    tmp_path: Path, train: list[float]
) -> None:
    infer = [0.0 if value in (0.0, -2.0) else value for value in train]
    row = {"old_log_probs": train, "rollout_log_probs": infer}
    with pytest.raises(
        DumpError,
        match=r"line 1: missing mask, and rollout_log_probs is exactly 0 at . entries",
    ):
        read_dump(_jsonl(tmp_path / "d.jsonl", [row]))


def test_zero_logprob_on_one_side_only_is_kept_as_generated_token(tmp_path: Path) -> None:
    row = {"old_log_probs": [-1.0, -1e-7, -1.0], "rollout_log_probs": [-1.0, 0.0, -1.0]}
    _jsonl(tmp_path / "one.jsonl", [row])
    _jsonl(tmp_path / "other.jsonl", [row])
    assert read_dump(tmp_path).columns.mask.tolist() == [True] * 6, "of all files of a folder"


def test_dump_columns_can_have_custom_names(tmp_path: Path) -> None:
    row = {"a": [-1, -2], "b": [-1, -3], "c": [4, 5, 6], "d": 2, "t": 0.7, "q": "x"}
    names = FieldNames("a", "b", ids="c", prompt_length="d", temperature="t", prompt="q")
    columns = read_dump(
        _jsonl(tmp_path / "d.jsonl", [row, row | {"q": "y", "d": 1}]), names
    ).columns
    assert columns.ids is not None
    assert columns.mask.tolist() == [False, False, True, False, True, True]
    assert {name: value.tolist() for name, value in columns.facts.items()} == {
        "temperature": [0.7] * 2,
        "prompt": [0, 1],
    }


class Evil:
    """Would compute where a pickle is run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1",)


def _save(content: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.save(content, folder / "d.pt")
        return folder / "d.pt"

    return write


def _write(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def _rows(*rows: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: _jsonl(folder / "d.jsonl", list(rows))


ONE = {"old_log_probs": [-1.0, -2.0], "rollout_log_probs": [-1.0, -2.0], "response_mask": [1, 1]}


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (_save({"samples": [Evil()]}), r"d\.pt: contains builtins\.eval, which would run code"),
        (_write("d.pt", b"PK\x03\x04" + b"\0" * 99), r"d\.pt: not a file written by torch\.save"),
        (_save([1, 2]), "expected a dict of columns, got list"),
        (_save({"old_log_probs": torch.zeros(2, 3), "input_ids": torch.zeros(3, 3)}), ("one row of "
                                                                                      "tokens for "
                                                                                      "each seq")),
        (_write("d.safetensors", b"\xff" * 40), r"d\.safetensors: cannot be read"),
        (_write("d.jsonl", b'{"a": [1\n'), r"line 1: invalid JSON"), (_write("d.jsonl", b"[" * 100000), r"line 1: invalid JSON"),
        (_write("d.jsonl", b"[]\n"), r"line 1: expected a JSON object, got list"),
        (_write("d.npz", b""), r"d\.npz: cannot read this kind of file; use one of \.jsonl, "),
        (lambda folder: folder / "d.jsonl", "no such file"),
        (lambda folder: folder, "no dump in this folder"),
        (_rows({"input": "a", "output": "b", "gts": None, "score": 1.0, "step": 1}), ("found: gts, "
                                                                                     "input, out")),
        (_rows(ONE | {"log_probs": [-1.0, -2.0]}), ("old_log_probs and log_probs could both be "
                                                   "train")),
        (_rows(ONE, ONE | {"old_log_probs": [-1.0]}), ("line 2: old_log_probs has 1 entries and "
                                                      "rollout_log_probs")),
        (_rows(ONE | {"old_log_probs": [-1.0, math.nan]}), ("old_log_probs has nan at entry 1; not "
                                                           "a log-prob")),
        (_rows(ONE | {"old_log_probs": [-1.0, 10**400]}), "old_log_probs is not a list of numbers"),
        (_rows(ONE | {"input_ids": [10**30, 4]}), "input_ids: 1e\\+30 at entry 0 is not a token id"),
        (_rows(ONE, ONE | {"old_log_probs": "-1"}), (r"line 2: old_log_probs has shape \[\]; "
                                                    r"expected")),
        (_rows(ONE | {"response_mask": [1]}), "response_mask has 1 entries for 2 log-probabilities"),
        (_rows(ONE | {"response_mask": [1, 2]}), "response_mask has values other than 0 and 1"),
        (_rows(ONE | {"response_mask": [0, 0]}), "no token is left to compare; check the mask"),
        (_rows(ONE | {"input_ids": [4]}), "rollout_log_probs has 2 entries for 1 ids"),
        (_rows(ONE | {"temperature": "warm"}), "temperature is 'warm'; expected a number"),
        (_rows(ONE | {"temperature": -1}), "temperature is -1; expected a value from 0 to 1e"),
    ],
)  # fmt: skip
def test_invalid_dump_is_rejected_with_one_line_reason(
    write: Callable[[Path], Path], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DumpError, match=sentence) as raised:
        read_dump(write(tmp_path))
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_named_column_missing_from_dump_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="missing column 'x' for train; found: old_log"):
        read_dump(_jsonl(tmp_path / "d.jsonl", [ONE]), FieldNames(train="x"))
