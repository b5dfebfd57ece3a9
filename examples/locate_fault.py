"""Where do two programs disagree about a model?

A small Llama beside a copy whose attention is scaled otherwise.

.venv/bin/python examples/locate_fault.py
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep_doctor.findings import describe_place
from lockstep_doctor.locate import locate
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import write_reproduction

config = LlamaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4
)
torch.manual_seed(0)
right = LlamaForCausalLM(config).eval()
right.save_pretrained("runs/locate_fault/model")
wrong: Any = copy.deepcopy(right)
for layer in wrong.model.layers:
    layer.self_attn.scaling *= 0.8

builder = """from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained("runs/locate_fault/model").eval()
for layer in model.model.layers:
    layer.self_attn.scaling *= 0.8
def read(tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]
"""
tokens = torch.randint(0, config.vocab_size, (32,))
tap = ModuleTap(wrong, "wrong", builder)
found = locate(
    ModuleTap(right, "right"),
    tap,
    tokens,
    witness=ModuleTap(copy.deepcopy(right).double(), "float64"),
)
for place in found.places:
    print("\n".join(describe_place(place)))
print("reproduction:", write_reproduction(Path("runs/locate_fault"), tap, found, tokens))
