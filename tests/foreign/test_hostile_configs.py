"""Hostile or empty configs: each gets a sentence, soon, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversions import TRAINED, Convert

from lockstep.cli import main
from lockstep.config.foreign_recipe import order_options
from lockstep.foreign.convert import list_lines, translate
from lockstep.foreign.libraries import CONVERTIBLE
from lockstep.foreign.words import Config, Json, Kind

DOUBLING = "a=x\n" + "a=$a$a\n" * 40 + "python grpo.py --output_dir $a\n"
ONE_LARGE = "a='" + "x" * 60_000 + "'\npython grpo.py --output_dir " + "$a" * 1000 + "\n"
SENTENCES = {
    "doubling lines": ("run.sh", DOUBLING, "fill in more than a million characters"),
    "many of a large one": ("run.sh", ONE_LARGE, "fill in more than a million characters"),
    "itself twice": ("a.yaml", "beta: ${beta}${beta}\n", "fill in more than a million characters"),
    "deep JSON": ("a.json", "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
    "deep keys": ("a.json", '{"a":' * 970 + "1" + "}" * 970, "nested more than 50 deep"),
    "deep lists": ("a.json", '{"a":' + "[" * 90 + "]" * 90 + "}", "nested more than 50 deep"),
    "deep Python": ("a.py", "GRPOConfig(a=" + "[" * 150 + "]" * 150 + ")", "nested more than 50 deep"),
    "a zero byte": ("a.py", "GRPOConfig(a=1)\0", "this is no Python"),
    "no groups": ("grpo.json", '{"num_generations": 0}', "num_generations"),
}


@pytest.mark.parametrize(("name", "text", "says"), SENTENCES.values(), ids=SENTENCES)
def test_a_sentence(name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(text)
    assert main(["convert", str(tmp_path / name), "--from", "trl"]) == 2
    assert says in capsys.readouterr().err


def test_bases_are_counted_however_they_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(19):
        (tmp_path / f"{i}.yaml").write_text(f"defaults: [{i + 1}.yaml, {i + 1}.yaml]\nbeta: 1\n")
    (tmp_path / "19.yaml").write_text("beta: 1\n")
    assert main(["convert", str(tmp_path / "0.yaml")]) == 2
    assert "builds on more than 20 files, or on itself" in capsys.readouterr().err


def test_functions_that_are_not_known_stay(convert: Convert) -> None:
    text = """
output_dir: runs/${now:%Y-%m-%d}
run_name: "${oc.env:HOME,%x}"
learning_rate: "${div:1,0}"
epsilon: "${mul:0.1,2}"
"""
    converted = convert("grpo.yaml", text, library="trl")
    refused = {entry.theirs for entry in converted.list_kind(Kind.REFUSED)}
    assert {"output_dir", "run_name", "learning_rate"} <= refused
    assert converted.options["grpo.clip"] == 0.2


PYTHON = {
    "loss_type": 'DPOConfig(loss_type=["sft"], loss_weights=[1.0])',
    "report_to": "DPOConfig(report_to={[]: 1}, max_steps=3)",
}


@pytest.mark.parametrize("key", PYTHON)
def test_python_that_means_nothing(key: str, convert: Convert) -> None:
    converted = convert("dpo.py", PYTHON[key])
    assert key in {entry.theirs for entry in converted.list_kind(Kind.REFUSED)}


VALUES: tuple[Json, ...] = (0, float("inf"), float("nan"), 10**400, "a_b", ["x"])


ORDERS = {algorithm: order_options(algorithm) for algorithm in ("grpo", "dpo")}


@pytest.mark.parametrize("library", CONVERTIBLE)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:10])
def test_any_value_of_any_key_is_answered(library: str, value: Json) -> None:

    source = CONVERTIBLE[library]
    config = Config(dict.fromkeys(source.by_key, value), "rloo")
    for algorithm, order in ORDERS.items():
        assert list(list_lines(translate(source, config, algorithm, order)))
    assert source.find_algorithm(source.with_defaults(config)) in (*TRAINED, None)
