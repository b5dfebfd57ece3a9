"""Digests of models: each byte of a large file counts, and the file is read once for as long as it
stays the same.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from lockstep.models import digests
from lockstep.models.digests import model_files


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large enough for its digest to be kept."""
    monkeypatch.setattr(digests, "_SMALL_BYTES", 1000)
    monkeypatch.setattr(digests, "_SETTLED_NS", 0)
    (tmp_path / "weights.safetensors").write_bytes(bytes(10**6))
    return tmp_path / "weights.safetensors"


def test_single_bit_change_in_model_file_changes_its_digest(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a file that changes several times in one tick of the clock."""
    monkeypatch.setattr(digests, "_SETTLED_NS", 10**9)
    before, content = model_files(weights.parent), bytearray(10**6)
    assert model_files(weights.parent) == before
    for place in range(0, 10**6, 9_991):
        content[place] ^= 4
        weights.write_bytes(content)
        assert model_files(weights.parent) != before
        content[place] ^= 4


def test_model_file_is_hashed_again_only_after_its_mtime_changes(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, whole = list[Path](), digests._read_full
    monkeypatch.setattr(digests, "_read_full", lambda path: (read.append(path), whole(path))[1])
    found = model_files(weights.parent)
    assert found == {
        "model.weights.safetensors": f"sha256:{hashlib.sha256(bytes(10**6)).hexdigest()}"
    }
    assert model_files(weights.parent) == found
    assert read == [weights]
    os.utime(weights, (1, 1))
    assert model_files(weights.parent) == found
    assert read == [weights] * 2


def test_corrupted_cached_digest_is_rejected_and_removed(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(weights.parent / "cache"))
    found = model_files(weights.parent)
    (kept,) = (weights.parent / "cache/digest").iterdir()
    kept.write_text("sha256:0")
    with pytest.raises(ValueError, match="was modified and has been removed"):
        model_files(weights.parent)
    assert model_files(weights.parent) == found
