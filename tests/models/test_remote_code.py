"""Code that a model's folder brings is neither run nor asked about."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lockstep.models.folder import ModelError, read_config, skeleton

EVIL = "open('ran', 'w').close()\nclass Evil: pass\n"


@pytest.mark.parametrize("kind", ["t5", "no_such_model"])
def test_code_of_a_model_is_not_run_and_no_question_is_asked(
    kind: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "evil.py").write_text(EVIL)
    auto_map = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (in_tmp / "config.json").write_text(json.dumps({"model_type": kind, "auto_map": auto_map}))
    (in_tmp / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(ModelError):
        skeleton(read_config(in_tmp), str(in_tmp))
    said = capsys.readouterr()
    assert "y/N" not in said.out + said.err
    assert not (in_tmp / "ran").exists()
