"""What the guide of log-probabilities shows is Python that runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lockstep.distributed import Shard, support_floor, vocab_logprobs

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "logprobs.md").read_text()


def test_logprobs_guide_snippets_run_and_give_gradient() -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
    logits = torch.randn(6, 11)
    names: dict[str, Any] = {
        "model": SimpleNamespace(
            model=lambda ids: SimpleNamespace(last_hidden_state=table(ids)), lm_head=head
        ),
        "input_ids": torch.randint(11, (2, 5)),
        "advantage": torch.randn(8),
        "logits": logits,
        "drawn": logits.argmin(-1),
        "shard": Shard(),
        "support_floor": support_floor,
        "vocab_logprobs": vocab_logprobs,
    }
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(snippet, names)
    names["loss"].backward()
    assert head.weight.grad is not None
    # of tokens far below the floor: `chosen` keeps them
    assert torch.isfinite(names["logprob"]).all()
