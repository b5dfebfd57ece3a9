"""The parts of the score by location: edits are drawn and put in, two of them are found, and
nothing else is.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import torch

from benchmarks.doctor_mutations import read_scores, remember, table_of
from benchmarks.mutate_code import apply, edits_of, patch_of
from benchmarks.mutated_programs import find_programs
from benchmarks.mutation_score import EditedTap, Judge

LLAMA = str(importlib.import_module("transformers.models.llama.modeling_llama").__file__)
SOURCE = """
class Layer:
    def forward(self, x, y):
        a = x[1:] + 2.0 * y
        b, c = split(a, y)
        return [one.to(x) for one in b]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "layer.py").write_text(SOURCE)
    return str(tmp_path / "layer.py")


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("constant", "x[1:] + 2.21 * y"),
        ("operator", "x[1:] - 2.0 * y"),
        ("slice + 1", "x[1 + 1:] + 2.0 * y"),
        ("slice - 1", "x[1 - 1:] + 2.0 * y"),
        ("cast", "(x[1:] + 2.0 * y).bfloat16().float()"),
        ("skipped", "a = x[1:]"),
        ("swapped", "c, b = split(a, y)"),
        ("swapped", "split(y, a)"),
        ("dropped call", "b, c = a"),
        ("dropped call", "[one for one in b]"),
        ("skipped", "in list(b)[1:]]"),
    ],
)
def test_each_kind_of_edit_changes_its_line_alone(file: str, kind: str, after: str) -> None:
    edits = [edit for edit in edits_of(file) if edit.kind == kind]
    changed = {edit: ast.unparse(apply(edit)).splitlines() for edit in edits}
    assert any(after in line for lines in changed.values() for line in lines)
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    assert all(
        sum(a != b for a, b in zip(plain, lines, strict=True)) == 1 for lines in changed.values()
    )
    assert {edit.function for edit in edits} == {"Layer.forward"}


def test_mutant_is_scored_by_located_line_function_and_reproduction(tmp_path: Path) -> None:
    judge = Judge(find_programs()["llama"])
    score = judge.score(
        patch_of(LLAMA, "x1 = x[..., : x.shape[-1] // 2]", "x1 = x[..., x.shape[-1] // 2 :]")
    )
    assert score.outcome == "kept"
    assert score.segment
    assert score.in_line
    assert score.in_function
    assert score.reproduces
    assert score.removed > 0.99
    remember(score, tmp_path / "rows.jsonl")
    with (tmp_path / "rows.jsonl").open("a") as out:
        out.write('{"program": "cut o')
    assert read_scores(tmp_path / "rows.jsonl") == [score]
    assert "| llama | 1 of 1 | 0 | 0 | 1 | 1 | 1 | 1 | 100% |" in "\n".join(table_of([score]))


def test_mutation_of_weight_sync_code_changes_synced_weights() -> None:
    program = find_programs()["weight sync"]
    assert any(name.startswith("lockstep.weight_sync") for name in program.modules)
    file = str(importlib.import_module("lockstep.weight_sync.outgoing").__file__)
    tap = EditedTap(
        program,
        patch_of(
            file, "return dtype\n    return tensor", "return torch.bfloat16\n    return tensor"
        ),
    )
    weight = tap.model.get_parameter("model.norm.weight")
    assert not torch.equal(weight, program.build().get_parameter("model.norm.weight"))
    assert torch.equal(weight, weight.bfloat16().float())


ATTENTION = str(importlib.import_module("lockstep.models.attention").__file__)


def test_fault_before_model_call_is_located_in_its_function() -> None:
    edit = patch_of(ATTENTION, "query_C = asked_C.cumsum(0) - 1", "query_C = 0 * asked_C.cumsum(0)")
    score = Judge(find_programs()["Lockstep's attention"]).score(edit)
    assert score.outcome == "kept"
    assert score.segment
    assert score.in_function
    assert score.reproduces
