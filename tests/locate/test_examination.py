"""Faults in a copy of a model: what `examine` measures about each, which settings it undoes, and
what it says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from located import TOKENS, ends, run_script
from torch import Tensor
from transformers import AutoModelForCausalLM

from lockstep_doctor.cuts import CutPoint, PassCapture
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.examine import PairExamination, examine
from lockstep_doctor.findings import describe_examination
from lockstep_doctor.hf import open_hf
from lockstep_doctor.locate import pick_logprobs
from lockstep_doctor.measures import describe_difference
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import write_engine_reproduction, write_reproduction

Fault = Callable[[Any], None]


@cache
def right(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def find(
    folder: Path, *faults: Fault, in_reference: Fault | None = None, dtype: Any = None
) -> PairExamination:
    models = [copy.deepcopy(right(folder)) for _ in range(3)]
    for fault in faults:
        fault(models[1])
    if in_reference is not None:
        in_reference(models[0])
    if dtype is not None:
        models[1].to(dtype)
    types = (torch.float32, dtype or torch.float32)
    rounded = [ModuleTap(copy.deepcopy(right(folder)).to(one), "rounded") for one in types]
    taps = [
        ModuleTap(model, name) for model, name in zip(models[:2], ("one", "other"), strict=True)
    ]
    requests = [TOKENS[:9], TOKENS, TOKENS[4:20]]
    return examine(taps[0], taps[1], requests, ModuleTap(models[2].double(), "float64"), rounded)


@pytest.fixture
def folder(located_model: Callable[[str], Path]) -> Path:
    return located_model("llama")


def scale_attention(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 0.8


def scale_down(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.05)


def change_angles(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 0.5


def change_epsilon(model: Any) -> None:
    model.model.layers[0].post_attention_layernorm.variance_epsilon = 0.3


def hook(path: str, change: Callable[[Tensor], Tensor]) -> Fault:
    def fault(model: Any) -> None:
        module = model.get_submodule(path)
        plain = module.forward
        module.forward = lambda *inputs: change(plain(*inputs))

    return fault


def break_at_the_end(x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.shape[1])[:, None] < 20, x, torch.nan)


O = "model.layers.1.self_attn.o_proj"  # noqa: E741 (as the cut is called)


@pytest.mark.parametrize(
    ("fault", "end", "measured"),
    [
        (scale_attention, "attn", "positions 1 to"),
        (scale_down, "down", "it is 1.05 times what it should be"),
        (change_angles, "rotary_emb", "positions 1 to"),
        (change_epsilon, "mlp_norm", ""),
        (hook(O, lambda x: x.flip(-1)), "o", "the right numbers in another order"),
        (hook(O, torch.zeros_like), "o", "it is zero"),
        (hook(O, lambda x: x.bfloat16().float()), "o", "it is rounded to bfloat16"),
        (
            hook(O, lambda x: torch.cat([x[..., :8] * 2, x[..., 8:]], -1)),
            "o",
            "channels 0 to 7 of 32",
        ),
        (hook(O, break_at_the_end), "o", "it is not finite at positions 20 to 23 of 24"),
    ],
)
def test_examination_locates_and_describes_single_fault(
    folder: Path, fault: Fault, end: str, measured: str
) -> None:
    found = find(folder, fault)
    assert {stage.removesuffix(".1") for stage in ends(found.location)} == {end}
    assert measured in "; ".join(found.measured[0])
    assert found.location.places[0].wrong_engines == ["other"]


def test_two_faults_give_two_locations(folder: Path) -> None:
    found = find(folder, scale_attention, scale_down)
    assert [place.segments[0].end.stage for place in found.location.places] == ["attn", "down"]
    assert found.request == max(range(3), key=found.gaps.__getitem__)
    assert torch.equal(found.tokens, [TOKENS[:9], TOKENS, TOKENS[4:20]][found.request])


def test_examination_names_wrong_side_or_both(folder: Path) -> None:
    found = find(folder, in_reference=scale_down)
    assert found.location.places[0].wrong_engines == ["one"]
    assert "it is 1.05 times what it should be" in found.measured[0][0]
    both = find(folder, hook(O, lambda x: 1.1 * x), in_reference=hook(O, lambda x: 1.2 * x))
    assert both.location.places[0].wrong_engines == ["one", "other"]
    assert "  one and other are both wrong" in "\n".join(describe_examination(both))


def test_nondeterministic_engine_is_reported_with_layer(folder: Path) -> None:
    found = find(folder, hook(O, lambda x: x + 0.1 * torch.randn_like(x)))
    assert found.location.noisy == {"other": [CutPoint("o", 1)]}
    assert "other is not deterministic at layers.1.o" in "\n".join(describe_examination(found))


def test_bf16_side_agrees_unless_it_has_a_fault(folder: Path) -> None:
    assert find(folder, dtype=torch.bfloat16).agrees
    found = find(folder, hook(O, lambda x: 1.5 * x), dtype=torch.bfloat16)
    assert ends(found.location) == {"o"}
    assert found.location.removed > 0.9
    assert "it is 1.5 times what it should be" in "; ".join(found.measured[0])


def test_reproduction_script_fails_on_wrong_model_and_passes_on_right_one(
    folder: Path, tmp_path: Path
) -> None:
    """The fault is in the folder that the script reads, so that it shows in a new process, too."""
    wrong = copy.deepcopy(right(folder))
    scale_down(wrong)
    wrong.save_pretrained(tmp_path / "wrong")
    found = find(folder, scale_down)
    outcomes = []
    for model in (tmp_path / "wrong", folder):
        at = tmp_path / model.name / "repro"
        script = write_engine_reproduction(
            at, "hf", model, EngineOptions(), found.location, found.tokens
        )
        assert len(script.read_text().splitlines()) <= 30
        with open_hf(model, EngineOptions()) as tap:
            of_hf = write_reproduction(
                tmp_path / model.name / "hf", tap, found.location, found.tokens
            )
        assert len(of_hf.read_text().splitlines()) <= 30
        assert "lockstep" not in of_hf.read_text().replace(str(model), "")
        outcomes.append((run_script(script), run_script(of_hf)))
    assert outcomes == [(1, 1), (0, 0)]


def test_reproduction_of_wrong_reference_stores_exact_value(folder: Path, tmp_path: Path) -> None:
    """The name that an engine is opened by is not that of its tap, which says the layout, too."""
    found = find(folder, in_reference=scale_down).location
    write_engine_reproduction(tmp_path, "torch", folder, EngineOptions(), found, TOKENS)
    exact, right = (
        found.places[0].exact,
        safetensors.torch.load_file(tmp_path / "inputs.safetensors")["right"],
    )
    assert exact is not None
    torch.testing.assert_close(right, exact)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: -1.5 * x, "it is -1.5 times what it should be"),
        (
            lambda x: torch.where(torch.arange(24)[:, None] % 4 == 1, x + 1, x),
            "positions 1 to 21, each 4th of 24",
        ),
        (lambda x: x[:20], "it has 320 numbers, and should have 384"),
        (lambda x: x.half(), "it is float16, and should be float32"),
    ],
)
def test_measure_describes_scale_position_shape_and_dtype_errors(
    change: Callable[[Tensor], Tensor], said: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 16)
    assert said in "; ".join(describe_difference(x, change(x), 5e-5))


class _Delivers(ModuleTap):
    """Delivers its own column with the second half of each four tokens, counted from the first,
    scaled.
    """

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        found = super().run(tokens_T, forced)
        column = pick_logprobs(found.logits, tokens_T)
        return replace(
            found,
            column=torch.where(torch.arange(1, tokens_T.numel()) % 4 < 2, column, 0.7 * column),
        )


def test_returned_logprobs_that_differ_from_logits_are_reported(folder: Path) -> None:
    one, other = (ModuleTap(right(folder), "one"), _Delivers(right(folder), "other"))
    found = examine(one, other, [(TOKENS + step) % 64 for step in range(12)])
    assert not found.agrees
    assert "other returns log-probabilities that differ from its own logits" in found.columns[0]
    assert "12 of 24 positions: 2, 3, 6, 7, 10, 11" in found.columns[1]
    assert "the column's values are 0.7 times other's" in found.columns[1]
    assert not found.location.disagrees


def test_an_engine_that_gives_nan_does_not_agree(folder: Path) -> None:
    """Not even where the program that the noise floor is measured with is broken in the same
    way.
    """
    broken = copy.deepcopy(right(folder))
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(float("nan"))
    one, other = ModuleTap(broken, "one"), ModuleTap(copy.deepcopy(right(folder)), "other")
    witness = ModuleTap(copy.deepcopy(right(folder)).double(), "float64")
    found = examine(one, other, [TOKENS], witness, [ModuleTap(broken, "rounded")])
    assert not found.agrees
    assert found.location.floor == 0
    assert found.columns[0] == "one returns non-finite log-probabilities"


@pytest.mark.parametrize("in_reference", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_or_infinity_is_located_at_module_that_produces_it(
    folder: Path, in_reference: bool, value: float
) -> None:
    fault = hook("model.layers.1.mlp.down_proj", lambda x: torch.full_like(x, value))
    found = find(folder, in_reference=fault) if in_reference else find(folder, fault)
    (place,) = found.location.places
    assert ends(found.location) == {"down"}
    assert place.wrong_engines == ["one" if in_reference else "other"]
    assert found.location.removed > 0.99
    assert not found.location.noisy
