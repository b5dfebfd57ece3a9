"""What built a model: lines that made wrong tables and numbers, and that loaded weights, are named; right ones not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from located import TOKENS
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, core_model_loading
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from lockstep_doctor import Location, ModuleTap, builds, hf, locate
from lockstep_doctor.builds import find_build, watch_build
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.operators import Operator
from lockstep_doctor.sightings import Sighting, Sightings

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
    pad_token_id=None,
)
plain_angles = LlamaRotaryEmbedding.compute_default_rope_parameters
plain_attention = LlamaAttention.__init__
plain_copy = core_model_loading._materialize_copy
plain_turn = modeling_llama.rotate_half


def turn_farther(*inputs: Any, **named: Any) -> tuple[Tensor, float]:
    frequencies, factor = plain_angles(*inputs, **named)
    return frequencies * 1.01, factor


def fill_unseen(*inputs: Any, **named: Any) -> tuple[Tensor, float]:
    """Memory that no operator fills."""
    frequencies, factor = plain_angles(*inputs, **named)
    unset = torch.empty_like(frequencies)
    unset.numpy()[:] = 2.0
    return unset, factor


def scale_less(self: Any, *inputs: Any, **named: Any) -> None:
    plain_attention(self, *inputs, **named)
    self.scaling = self.head_dim**-0.6


def turn_back(x: Tensor) -> Tensor:
    return -plain_turn(x)


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    with watch_build() as models:
        models.append(LlamaForCausalLM(CONFIG).eval())
    return models[0]  # pyright: ignore[reportReturnType]


def locate_with(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Callable[..., Any]) -> Location:
    """The place of a fault that is in force while the other model is built and read."""
    right, witness = build(), build().double()
    monkeypatch.setattr(owner, name, fault)
    wrong = build()
    monkeypatch.undo()

    def read(model: Any, tokens_T: Tensor) -> Tensor:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(owner, name, fault)
            return model(input_ids=tokens_T[None], use_cache=False).logits[0]

    taps = ModuleTap(right, "right"), ModuleTap(wrong, "wrong", read=read)
    return locate(*taps, TOKENS, ModuleTap(witness, "float64"))


def test_a_wrong_table_has_the_line_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = locate_with(
        monkeypatch, LlamaRotaryEmbedding, "compute_default_rope_parameters", staticmethod(turn_farther)
    )
    first = found.places[0].suspects[0]
    assert (first.engine, first.operator.name, first.operator.stack[0].function) == (
        "wrong",
        "aten.mul.Tensor",
        "turn_farther",
    )
    assert "LlamaRotaryEmbedding.compute_default_rope_parameters" in {one.function for one in first.operator.lines}


def test_a_table_that_nothing_fills_has_what_fills_the_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = staticmethod(fill_unseen)
    found = locate_with(monkeypatch, LlamaRotaryEmbedding, "compute_default_rope_parameters", fault)
    filled, taken = (suspect.operator for suspect in found.places[0].suspects[:2])
    assert filled.name.startswith("fills what nothing fills here")
    assert filled.stack[1].function == "PreTrainedModel._init_weights"
    assert (taken.name.split(".")[1], taken.stack[0].function) == ("empty_like", "fill_unseen")


def test_a_wrong_number_has_the_line_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = locate_with(monkeypatch, LlamaAttention, "__init__", scale_less)
    first = found.places[0].suspects[0]
    assert first.operator.name.startswith("the number 0.287175")
    assert first.operator.stack[0].function == "scale_less"


def test_what_is_measured_right_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = locate_with(monkeypatch, modeling_llama, "rotate_half", turn_back)
    named = {frame.function for one in found.places[0].suspects for frame in one.operator.stack[:1]}
    assert "turn_back" in named
    assert not {"LlamaRotaryEmbedding.compute_default_rope_parameters", "LlamaAttention.__init__"} & named


class Loaded(nn.Module):
    """A weight that is loaded in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 2))
        self.other = nn.Parameter(torch.empty(8, 2))


FILE = {name: torch.randn(8, 2) for name in ("other", "weight")}


def read_file() -> Iterator[tuple[str, Tensor]]:
    for name, tensor in FILE.items():
        yield name, tensor.clone()


def skip_first(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    yield from list(weights)[1:]


def find_place(part: int) -> int:
    return part + 3


def load_half(weight: Tensor, tensor: Tensor) -> None:
    start = find_place(0)
    weight.data[start : start + 2].copy_(tensor[start : start + 2])


def load(model: nn.Module, weights: Iterator[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        load_half(model.get_parameter(name), tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [FILE["other"], FILE["weight"]], ids=["unlike", "equal"])
def test_a_tensor_that_is_dropped_has_the_function_that_had_it_last(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, other: Tensor
) -> None:
    """Before it is cast, too, and where another one has the same numbers."""
    monkeypatch.setitem(FILE, "other", other)
    with watch_build() as models:
        models.append(Loaded().to(dtype))
        load(models[0], skip_first(read_file()))
    log = find_build(models[0])
    assert log is not None
    dropped, *_ = log.find_losers([models[0].get_parameter("other")], [FILE["other"]])
    assert (dropped.name, dropped.stack[0].function) == ("has", "skip_first")


def test_a_tensor_that_is_put_elsewhere_has_its_writer_and_what_made_the_place() -> None:
    with watch_build() as models:
        models.append(Loaded())
        load(models[0], read_file())
    log = find_build(models[0])
    assert log is not None
    writer, place, *_ = log.find_losers([models[0].get_parameter("weight")], [FILE["weight"]])
    assert [one.stack[0].function for one in (writer, place)] == ["load_half", "find_place"]
    assert {one.function for one in writer.lines} >= {"load", "load_half", "find_place"}


def place_of(part: int) -> int:
    return 7 * part + 2


def put(weight: Tensor, tensor: Tensor, start: int) -> None:
    weight.data[start : start + 8].copy_(tensor)


def test_what_wrote_upon_a_part_of_a_weight_that_was_packed_since_is_named() -> None:
    joined = nn.Module()
    with watch_build() as models:
        models.append(joined)
        joined.weight = nn.Parameter(torch.empty(24, 2))
        for part, (_, tensor) in enumerate(read_file()):
            put(joined.weight, tensor, place_of(part))
    joined.weight = nn.Parameter(joined.weight.detach().T.contiguous())
    log = find_build(joined)
    assert log is not None
    writer, *places = log.find_losers([joined.weight], [FILE["other"]])
    assert writer.stack[0].function == "put"
    assert "place_of" in [one.stack[0].function for one in places]


def test_a_weight_that_was_made_unseen_has_no_maker_of_what_lay_there_before() -> None:
    model = nn.ParameterList()
    with watch_build() as models:
        before = [torch.ones(8, 2) for _ in range(64)]
        models.append(model)
    del before
    model.extend(torch.ones(8, 2) for _ in range(64))
    log = find_build(model)
    assert log is not None
    assert not log.find_fillers(model, dict(model.named_parameters()))


def test_watching_that_fails_ends_and_not_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(frame: object) -> None:
        raise AttributeError(frame)

    monkeypatch.setattr(builds, "_numbers", fail)
    before = sys.gettrace()
    assert find_build(build()) is None
    assert sys.gettrace() is before


def test_what_is_not_to_be_watched_is_not(located_model: Callable[[str], Path]) -> None:
    assert find_build(hf.load(located_model("llama"), torch.float32, "cpu")) is None


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_each_weight_of_hf_is_known_by_its_numbers_and_has_a_maker(
    located_model: Callable[[str], Path], family: str
) -> None:
    environment = dict(os.environ)
    with hf.open_hf(located_model(family), EngineOptions()) as watched:
        log, weights = find_build(watched.model), dict(watched.model.named_parameters())
        assert log is not None
        unknown = [weight for weight in weights.values() if not log.sightings.find(weight)]
        assert all(len(weight) < 16 for weight in unknown)
        made = {name: [one.name for one in log.find_fillers(watched.model, [name])] for name in weights}
    assert not [name for name, steps in made.items() if not steps or "fills others" in steps[0]]
    assert dict(os.environ) == environment


def spoil(*inputs: Any) -> Tensor:
    return 1.01 * plain_copy(*inputs)


def test_a_weight_that_is_spoiled_as_hf_loads_it_has_the_line(
    located_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    right = hf.load(located_model("llama"), torch.float32, "cpu").get_parameter(name)
    monkeypatch.setattr(core_model_loading, "_materialize_copy", spoil)
    with hf.open_hf(located_model("llama"), EngineOptions()) as wrong:
        first, *_ = wrong.loaders(CutPoint("up", 0), {name: right})
    assert (first.name, first.stack[0].function) == ("aten.mul.Tensor", "spoil")


def test_a_tensor_that_is_not_read_has_the_reader_of_the_others() -> None:
    with watch_build() as models:
        models.append(Loaded())
        load(models[0], read_file())
    log = find_build(models[0])
    assert log is not None
    (reader,) = log.find_losers([], [torch.randn(8, 2)])
    assert (reader.name, reader.stack[0].function) == ("reads others", "read_file")


def read_all(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def hand_on_all_but_one(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name in list(tensors)[1:]:
        yield name, tensors[name].view(-1)


def test_who_lost_a_tensor_is_known_by_its_numbers_and_by_the_way_of_others() -> None:
    names = ("first", "second", "third")
    right = {f"{name}.weight": torch.randn(8, 8) for name in names}
    with watch_build() as models:
        model = nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in names})
        with torch.no_grad():
            for name, tensor in hand_on_all_but_one(read_all(right)):
                model.get_parameter(name).copy_(tensor.view(8, 8))
        models.append(model)
    loaders = ModuleTap(model, "wrong").loaders(CutPoint("first"), right)
    assert "hand_on_all_but_one" in [frame.function for one in loaders[:2] for frame in one.stack[:1]]
    assert not ModuleTap(model, "right").loaders(CutPoint("first"), dict(model.named_parameters()))


def hand_on(tensor: Tensor) -> Iterator[Tensor]:
    yield tensor.view(-1)


def fill_all_but_one(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name in list(tensors)[1:]:
        for part in hand_on(tensors[name]):
            model.get_parameter(name).data.copy_(part.view(8, 8))


def test_calls_of_a_generator_are_no_loop() -> None:
    right = {f"{name}.weight": torch.randn(8, 8) for name in ("first", "second", "third")}
    with watch_build() as models:
        models.append(model := nn.ModuleDict({name[:-7]: nn.Linear(8, 8, bias=False) for name in right}))
        fill_all_but_one(model, read_all(right))
    _, loop, *_ = ModuleTap(model, "wrong").loaders(CutPoint("first"), right)
    assert loop.stack[0].function == "fill_all_but_one"


def test_numbers_are_known_again_however_they_are_laid_out_and_in_wider_types() -> None:
    wide, log = torch.randn(3, 5, 7).bfloat16(), Sightings()
    log.note(wide, 0, Sighting(Operator("made", (), (), (), ()), [], 0))
    assert [one.operator.name for one in log.find(wide.permute(2, 0, 1).float().reshape(21, 5))] == ["made"]
    assert not log.find(wide + 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0, 0.1, 0.0])
def test_numbers_that_others_may_have_too_are_not_known_again(value: float) -> None:
    log = Sightings()
    log.note(torch.full((8, 8), value), 0, Sighting(Operator("made", (), (), (), ()), [], 0))
    assert not log.find(torch.full((8, 8), value))
