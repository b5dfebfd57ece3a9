"""`lockstep doctor locate` on small models: what it leaves, what it says, how it ends; the table
names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_tables import SMALL
from located import run_script
from transformers import AttentionInterface, DynamicCache

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep.models import attention


@pytest.fixture
def scaled() -> Iterator[None]:
    """Lockstep's attention computes with another scale."""
    kernels = AttentionInterface._global_mapping
    plain = kernels[attention.NAME]

    def scale(*inputs: Any, scaling: float, **named: Any) -> Any:
        return plain(*inputs, scaling=0.8 * scaling, **named)

    kernels[attention.NAME] = scale
    yield
    kernels[attention.NAME] = plain


def ask(
    model: Path, out: Path, *more: str, what: str = "locate"
) -> tuple[int, list[dict[str, Any]]]:
    code = main(["doctor", what, str(model), "--out", str(out), *SMALL, *more])
    at = out / "location.json"
    return code, json.loads(at.read_text()) if at.is_file() else []


def test_locate_reports_no_fault_for_agreeing_engines(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    code, (found,) = ask(models("llama"), tmp_path / "out")
    assert (code, found["agrees"], found["places"], found["reproduction"]) == (
        exit_codes.OK,
        True,
        [],
        None,
    )


def test_locate_detects_decoding_that_differs_from_prefill_of_same_engine(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = DynamicCache.update
    monkeypatch.setattr(
        DynamicCache,
        "update",
        lambda cache, key, *more: plain(cache, key.bfloat16().float(), *more),
    )
    code, (pair, decoding) = ask(models("llama"), tmp_path / "out")
    assert (code, pair["agrees"], decoding["agrees"]) == (exit_codes.BROKEN, True, False)
    assert decoding["pair"] == ["hf", "hf decoding"]


def test_locate_finds_wrong_attention_scale_and_writes_failing_script(
    models: Callable[..., Path], tmp_path: Path, scaled: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, (found,) = ask(models("llama"), out)
    assert (code, found["agrees"], found["pair"]) == (exit_codes.BROKEN, False, ["hf", "torch"])
    (place,) = found["places"]
    assert {one["end"].rpartition(".")[2] for one in place["segments"]} == {"attn"}
    assert place["wrong"] == ["torch"]
    assert any(
        line["function"] == "scaled.<locals>.scale"
        for one in place["suspects"]
        for line in one["lines"]
    )
    said = capsys.readouterr().out
    assert "torch is wrong" in said
    assert "rounding alone causes" in said
    script = Path(found["reproduction"])
    assert script.is_relative_to(out / "repro")
    assert len(script.read_text().splitlines()) <= 30
    assert run_script(script) == 1


def test_reproduction_script_passes_after_fault_is_fixed(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    kernels = AttentionInterface._global_mapping
    plain = kernels[attention.NAME]
    kernels[attention.NAME] = lambda *inputs, scaling, **named: plain(
        *inputs, scaling=0.8 * scaling, **named
    )
    try:
        _, (found,) = ask(models("llama"), tmp_path / "out")
    finally:
        kernels[attention.NAME] = plain
    assert run_script(Path(found["reproduction"])) == 0


def test_failed_table_prints_locate_command_with_trust_option(
    models: Callable[..., Path], tmp_path: Path, scaled: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = models("llama"), tmp_path / "out"
    own = tmp_path / "modeling_mine.py"
    own.touch()
    assert ask(model, out, "--trust", str(own), what="table")[0] == exit_codes.BROKEN
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("where: "))
    assert said.startswith(f"where: lockstep doctor locate {model}")
    assert said.endswith(f"--trust {own}")
