"""The promises, proven on a real instruct model: `make proofs`, which makes it.

The fixture skips where it is not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import real
from row_files import read_rows

from benchmarks import real_model as real_model_of_make
from benchmarks.mission import logprob_checks, logprobs
from benchmarks.mission.opposites import HELD_OUT, TRAINED, write_rows
from lockstep.system.cache_folder import find_cache_folder

ROOT = Path(__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    """Runs a Python command in a folder. Returns what it printed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_missing_real_model_skips_test_with_its_name(tmp_path: Path) -> None:
    said = f"{real_model_of_make.NAME} is not on this machine; `make real-model` makes it"
    with pytest.raises(pytest.skip.Exception, match=said):
        real.require(tmp_path)
    folder = tmp_path / "models" / real_model_of_make.NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert real.require(tmp_path) == folder
    assert find_cache_folder() != real.CACHE, (
        "it is looked up before the tests have a cache of their own"
    )


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_certify_finds_no_mismatching_token_on_real_model(real_model: Path, tmp_path: Path) -> None:
    few = ("--count", "2", "--max-tokens", "8", "--out", "found.json")
    run("-m", "lockstep", "certify", str(real_model), *few, cwd=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["level"], found["mismatches"], found["largest_gap"]) == ("E3", 0, 0.0)
    assert found["types"].keys() == {"fp32", "bf16"}
    assert all(own["tokens"] > 10 for own in found["types"].values())


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_readme_loop_has_no_log_probability_gap_on_real_model(
    real_model: Path, tmp_path: Path
) -> None:
    loop = (ROOT / "examples" / "rl_loop.py").read_text()
    for written, shorter in (("range(10)", "range(2)"), ("max_tokens=24", "max_tokens=8")):
        assert written in loop
        loop = loop.replace(written, shorter)
    (tmp_path / "loop.py").write_text(loop)
    steps = re.findall(
        r"step \d+: .* largest gap (\S+)", run("loop.py", str(real_model), cwd=tmp_path)
    )
    assert steps == ["0.0e+00", "0.0e+00"]


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_ppo_step_has_no_log_probability_gap_on_real_model(
    real_model: Path, tmp_path: Path
) -> None:
    write_rows(tmp_path / "train.jsonl", TRAINED)
    write_rows(tmp_path / "validation.jsonl", HELD_OUT)
    short = (
        "run.max_steps=1",
        "run.validate_every=1",
        "data.max_validation_samples=4",
        "sampling.max_tokens=6",
    )
    few = (
        "ppo.num_prompts_per_step=4",
        "ppo.global_batch_size=4",
        "run.folder=run",
        f"model.path={real_model}",
    )
    run(
        "-m",
        "lockstep",
        "train",
        str(ROOT / "benchmarks" / "mission" / "ppo.yaml"),
        *short,
        *few,
        cwd=tmp_path,
    )
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    gaps = [
        row["agreement/max_abs_logprob_diff"]
        for row in rows
        if "agreement/max_abs_logprob_diff" in row
    ]
    assert gaps == [0.0]


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_sharded_log_probabilities_of_real_model_match_float64(real_model: Path) -> None:
    names = [
        "DistributedLogprob",
        "from_parallel_logits_to_logprobs_packed_sequences",
        "from_parallel_hidden_states_to_logprobs",
    ]
    found = logprob_checks.check_names(real_model, names)
    assert list(found) == names
    assert [name for name in names if not logprobs._holds(found[name])] == []
