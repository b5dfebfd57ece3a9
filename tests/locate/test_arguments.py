"""Values that are right by themselves: handed on the other way round, of another kind, copied coarsely, left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from located import TOKENS
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lockstep_doctor import ModuleTap, locate
from lockstep_doctor.arguments import first_rearranged, first_swapped
from lockstep_doctor.operators import Frame, Operator, OperatorTrace, Recorder, suspects
from lockstep_doctor.producers import find_producers

QUERY, KEY, VALUE, OUT, WRONG = (torch.randn(6, 4) for _ in range(5))


def run(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *scalars: Any) -> Operator:
    return Operator(name, tuple(Frame("f.py", line, f"{name} {line}") for line in range(4)), inputs, outputs, scalars)


def test_what_hands_on_two_values_the_other_way_round_is_named() -> None:
    right = OperatorTrace([QUERY, KEY, VALUE, OUT], [attend := run("attend", (0, 1, 2), (3,))])
    cached, swapped = run("cache", (2, 1), (3, 4)), run("attend", (0, 3, 4), (5,))
    own = OperatorTrace([QUERY, KEY, VALUE, VALUE.clone(), KEY.clone(), WRONG], [cached, swapped])
    first, caller = first_swapped(own, right, [swapped], [attend], 1e-5)
    assert (first, caller.stack) == (cached, cached.stack[2:])
    in_order = run("cache", (1, 2), (3, 4))
    own.operators[0] = in_order
    assert first_swapped(own, right, [swapped], [attend], 1e-5)[:2] == [swapped, in_order]
    assert not first_swapped(right, right, [attend], [attend], 1e-5)


def test_numbers_that_come_in_another_order_have_the_first_operator_that_gives_them_so() -> None:
    right, turned = (OperatorTrace([KEY, x], [run("turn", (0,), (1,))]) for x in (KEY.flip(0), KEY.flip(1)))
    assert first_rearranged(turned, right, 1e-5) == turned.operators[0]
    assert first_rearranged(right, right, 1e-5) is None


def test_numbers_in_unlike_types_are_compared_in_their_order() -> None:
    """And those of 8 bits, of a view that was read before its memory was written."""
    right, own = (OperatorTrace([KEY, x], [run("turn", (0,), (1,))]) for x in (KEY, KEY.bfloat16()))
    assert first_rearranged(own, right, 1e-1) is None
    assert first_rearranged(own, right, 1e-5) == own.operators[0]
    memory = torch.ones(32).to(torch.float8_e4m3fn)
    with Recorder() as recorder:
        recorder.begin(early=False)
        view = memory[:16]
        view.float()
        memory.copy_(2 * torch.ones(32))
        view.float()
    found = recorder.join()
    assert [float(found.values[one.outputs[0]][0]) for one in found.operators if "_to_copy" in one.name] == [1.0, 2.0]


def test_a_mask_that_becomes_numbers_is_not_the_same_value() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    right = OperatorTrace([QUERY, mask, OUT], [run("mask", (), (1,)), run("attend", (0, 1), (2,))])
    cast = run("cast", (1,), (2,))
    own = OperatorTrace([QUERY, mask, mask.float(), WRONG], [run("mask", (), (1,)), cast, run("attend", (0, 2), (3,))])
    assert suspects(own, right, [WRONG], 1e-5)[0] == cast


def test_a_table_that_is_copied_coarsely_has_the_copy_and_not_its_maker() -> None:
    cos, sin = torch.rand(6, 4), torch.rand(6, 4) + 1
    joined, coarse = torch.cat((cos, sin), -1), torch.cat((cos, sin), -1).bfloat16().float()
    join, copy = run("join", (0, 1), (2,)), run("copy", (2,), (3,))
    turn = run("turn", (0,), (1,))
    own = OperatorTrace([coarse, WRONG], [turn], tables={0: OperatorTrace([cos, sin, joined, coarse], [join, copy])})
    tables = {place: OperatorTrace([x], [run("made", (), (0,))]) for place, x in enumerate((cos, sin))}
    other = OperatorTrace([cos, sin, OUT], [run("turn", (0, 1), (2,))], tables=tables)
    assert [one.name for one in find_producers(own, other, [turn], 6, ())] == ["copy"]


def test_behind_a_wrong_step_of_a_table_stands_what_made_its_inputs() -> None:
    """A product in place of a quotient is right for the other engine, which divides by it next."""
    powers, positions = torch.arange(2.0, 10.0), torch.arange(6.0)[:, None]
    steps = [run("power", (), (0,)), run("scale", (0,), (1,)), run("outer", (1,), (2,))]
    turn = run("turn", (0,), (1,))
    made = [powers, powers.clone(), powers * positions]
    own = OperatorTrace([made[-1], WRONG], [turn], tables={0: OperatorTrace(made, steps)})
    other = replace(own, tables={0: OperatorTrace([powers, 1 / powers, positions / powers], steps)})
    assert [one.name for one in find_producers(own, other, [turn], 6, ())] == ["outer", "scale"]


def test_a_whole_number_that_the_other_engine_has_nowhere_has_its_line() -> None:
    made, wrong = run("the number -2", (), ()), run("attend", (0,), (1,), -2, 16)
    own = OperatorTrace([QUERY, WRONG], [wrong], origins={-2: made, 16: run("the number 16", (), ())})
    (found,) = find_producers(own, OperatorTrace([QUERY, OUT], [run("attend", (0,), (1,))]), [wrong], 6, {16.0})
    assert found.stack == made.stack


def leave_out_weight(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_what_leaves_out_an_operator_is_named_before_what_runs_it(located_model: Any) -> None:
    right, wrong = (LlamaForCausalLM.from_pretrained(located_model("llama")).eval() for _ in range(2))
    for model in (right, wrong):
        for module in model.modules():
            if isinstance(module, LlamaRMSNorm):
                torch.nn.init.uniform_(module.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
    wrong.get_submodule("model.layers.0.input_layernorm").forward = leave_out_weight
    found = locate(ModuleTap(right, "right"), ModuleTap(wrong, "wrong"), TOKENS, ModuleTap(right, "float64"))
    first = found.places[0].suspects[0]
    assert (first.engine, first.operator.name) == ("wrong", "call")
    assert first.operator.stack[0].function == "LlamaDecoderLayer.forward"
