"""Code that a model's folder brings is neither run nor asked about, but where its files are
trusted.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.trust import UntrustedCode, trust
from lockstep.core.errors import InputError
from lockstep.models.folder import ModelError, build_skeleton, read_config
from lockstep.system.guarded_imports import TRUSTED

EVIL = "open('ran', 'w').close()\nclass Evil: pass\n"


@pytest.mark.parametrize(("kind", "error"), [("t5", ModelError), ("no_such_model", UntrustedCode)])
def test_untrusted_model_code_is_refused_without_running_or_prompting(
    kind: str,
    error: type[Exception],
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (in_tmp / "evil.py").write_text(EVIL)
    auto_map = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (in_tmp / "config.json").write_text(json.dumps({"model_type": kind, "auto_map": auto_map}))
    (in_tmp / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(error):
        build_skeleton(read_config(in_tmp), str(in_tmp))
    said = capsys.readouterr()
    assert "y/N" not in said.out + said.err
    assert not (in_tmp / "ran").exists()


MINE = """
from transformers import LlamaConfig, LlamaForCausalLM
from .parts import SIZE
class MineConfig(LlamaConfig):
    model_type = "lockstep_test_mine"
class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
open("ran", "w").close()
"""
PLACES = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}


def bring(
    folder: Path, kind: Any = "lockstep_test_mine", places: object = PLACES, code: str = MINE
) -> Path:
    """A folder whose classes lie in two files of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "auto_map": places}))
    (folder / "mine.py").write_text(code)
    (folder / "parts.py").write_text("SIZE = 3\n")
    return folder


@pytest.fixture
def untrusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUSTED, "")


@pytest.mark.usefixtures("untrusting")
def test_every_file_that_would_run_has_to_be_trusted(in_tmp: Path) -> None:
    folder = bring(in_tmp / "model")
    with pytest.raises(
        UntrustedCode, match=r"mine\.py \(sha256 \w{16}\), .*parts\.py \(sha256 .*lockstep\.trust\("
    ):
        read_config(folder)
    trust(folder / "mine.py")
    with pytest.raises(UntrustedCode, match=r"not trusted: [^,]*parts\.py \(sha256 [^,]*; if you"):
        read_config(folder)
    assert not (in_tmp / "ran").exists()


@pytest.mark.usefixtures("untrusting")
def test_trust_covers_file_content_only_and_no_absolute_imports_from_model_folder(
    in_tmp: Path,
) -> None:
    folder = bring(in_tmp / "model", code=MINE + "import parts\n")
    (folder / "__pycache__").mkdir()
    trust(folder / "mine.py", folder / "parts.py")
    with pytest.raises(
        InputError,
        match=r"mine\.py cannot be imported \(ModuleNotFoundError: No module named 'parts'",
    ):
        read_config(folder)
    (folder / "parts.py").write_text("SIZE = 4\n")
    with pytest.raises(UntrustedCode, match=r"not trusted: [^,]*parts\.py"):
        read_config(folder)
