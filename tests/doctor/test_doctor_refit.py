"""`lockstep doctor refit`: a healthy engine passes, and each way to lose a weight is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forgetful_torch import WrongTakerSpec
from tiny_models import CONTEXT, OPTIMIZER, SECTION, VOCABULARY

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import SamplerSection
from lockstep.config.loading import load_recipe
from lockstep.report.progress import show_progress
from lockstep.weight_sync.sync import random_probe
from lockstep_doctor.commands.refit_check import (
    STAGES,
    RefitStage,
    check_model,
    check_refits,
    render_refits,
)

MATRIX = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
BUFFER = "model.rotary_emb.inv_freq"
PAIR = {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"}

Checked = Callable[..., dict[str, RefitStage]]


@pytest.fixture(scope="module")
def engine(models: Callable[..., Path]) -> Iterator[SamplerPool]:
    replicas = SamplerPool(WrongTakerSpec(str(models("llama")), SamplerSection(), SECTION))
    yield replicas
    replicas.close()


@pytest.fixture
def checked(engine: SamplerPool, models: Callable[..., Path]) -> Checked:
    """Checks an engine that goes wrong in some way; returns its stages by name."""
    section = OPTIMIZER.model_copy(update={"lr": 1e-2})

    def go(fault: str = "", victim: str = "") -> dict[str, RefitStage]:
        learner = LearnerSpec(str(models("llama")), "logits", SECTION, section, 0).build()
        engine.remotes[0].call("go_wrong", "", "")
        engine.load_weights(list(learner.weights()), 0)  # as if it had just started
        engine.remotes[0].call("go_wrong", fault, victim)
        with show_progress("refit") as shown:
            stages = list(check_refits(learner, engine, random_probe(VOCABULARY, CONTEXT), shown))
        return dict(zip(STAGES, stages, strict=True))

    return go


def found(stage: RefitStage) -> dict[str, str]:
    return {finding.what: finding.why for finding in stage.findings}


def test_refit_check_passes_healthy_engine_and_moves_weights_visibly(checked: Checked) -> None:
    stages = checked()
    assert {name: stage.findings for name, stage in stages.items()} == dict.fromkeys(STAGES, ())
    assert min(stages["noise"].gap, stages["step"].gap) > 0.1
    assert max(stages["refit"].largest_gap, stages["again"].largest_gap) < 1e-5
    assert stages["again"].received_only == 0 < stages["step"].tensors < stages["again"].tensors


LOADS = ("noise", "refit", "again")


@pytest.mark.parametrize(
    ("fault", "victim", "stages", "why"),
    [
        ("drops", MATRIX, ("noise", "again"), "still has the weights of refit"),
        ("drops", NORM, ("noise", "again"), "still has the weights of refit"),
        ("drops", BUFFER, ("noise",), "still has the weights of the model's folder"),
        ("permutes", MATRIX, LOADS, "numbers, by up to"),
        ("rounds", MATRIX, LOADS, "numbers, by up to"),
        ("scales", NORM, LOADS, "has different bits: 32 of 32 numbers, by up to"),
    ],
)
def test_refit_check_names_each_dropped_or_altered_tensor_and_why(
    checked: Checked, fault: str, victim: str, stages: tuple[str, ...], why: str
) -> None:
    seen = checked(fault, victim)
    assert {name: set(found(seen[name])) for name in LOADS} == {
        name: {victim} if name in stages else set() for name in LOADS
    }
    assert why in seen[stages[-1]].findings[0].why


def test_refit_check_reports_swapped_tensors_by_both_names(checked: Checked) -> None:
    stages = checked("swaps", "layers.0.mlp")
    gate, up = sorted(PAIR)
    assert {finding.what: finding.why for finding in stages["again"].findings} == {
        gate: f"holds {up}",
        up: f"holds {gate}",
    }
    assert found(stages["refit"]) == found(stages["again"])


def test_refit_check_detects_engine_that_returns_cached_logprobs(checked: Checked) -> None:
    stages = checked("remembers")
    for name in LOADS:
        assert found(stages[name]) == {
            "the engine": "returned the same numbers as before the refit; a cache is stale"
        }


def test_refit_report_shows_stage_verdicts_and_stale_tensor(checked: Checked) -> None:
    lines = render_refits({"torch": list(checked("drops", NORM).values())}).splitlines()
    assert [line.split()[-1] for line in lines[1:5]] == ["FAIL", "PASS", "PASS", "FAIL"]
    assert lines[5] == f"torch, noise: {NORM} still has the weights of the model's folder"


def test_refit_check_passes_real_model_and_writes_refit_json(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = assets / "models" / "stories260K" / "hf"
    loaded = load_recipe("doctor", [f"model.path={model}", "learner.device=cpu", f"run={tmp_path}"])
    assert not any(stage.findings for stage in check_model(loaded)["torch"])
    written = json.loads((tmp_path / "refit.json").read_text())["engines"]["torch"]
    assert [(stage["name"], stage["tensors"], stage["findings"]) for stage in written] == [
        ("noise", 49, []), ("refit", 49, []), ("step", 47, []), ("again", 49, [])
    ]  # fmt: skip
    assert capsys.readouterr().out.count("PASS") == 4


def test_refit_check_without_weight_receiving_backend_is_rejected(assets: Path) -> None:
    model = assets / "models" / "stories260K" / "hf"
    with pytest.raises(ValueError, match="add torch or vllm"):
        check_model(load_recipe("doctor", [f"model.path={model}", "backends=[torch,hf]"]))
