"""A student with half of a model's layers, every second one, for distillation.

python examples/half_layers.py MODEL STUDENT    # folders; also of other Llamas
"""

from __future__ import annotations

import sys

from torch.nn import ModuleList
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(model: str, student: str) -> None:
    """Writes the student's folder."""
    whole = AutoModelForCausalLM.from_pretrained(model)
    whole.model.layers = ModuleList(list(whole.model.layers)[::2])
    whole.config.num_hidden_layers = len(whole.model.layers)
    whole.save_pretrained(student)
    AutoTokenizer.from_pretrained(model).save_pretrained(student)
    print(f"{student}: {whole.config.num_hidden_layers} layers")


if __name__ == "__main__":
    main(*sys.argv[1:])
