"""The objective of the rung stories, reward less β·KL of a response, of a run's policy.

All is computed by `transformers` alone, so that a run is measured by other code than its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.ladder.tasks.stories import NAMES, happiness, openings
from lockstep.config.loading import load_run
from lockstep.config.model_recipe import find_weights_folder

BETA = 0.1
HELD_OUT = openings(NAMES[-2:])
_TOKENS = 32
_AT_ONCE = 256


def measure(run: Path) -> float:
    """The objective of a finished run."""
    return sample(
        find_weights_folder(run), Path(str(load_run(run).training_recipe.model.path)), 128
    )


def sample(policy: Path, reference: Path, samples: int) -> float:
    """The mean over responses of a policy to each held-out opening, always from the same random
    numbers.
    """
    from transformers import AutoModelForCausalLM

    from lockstep.models.tokenizer import load_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (policy, reference)]
    tokenizer = load_tokenizer(policy)
    found = [_respond(models, tokenizer, opening, samples) for opening in HELD_OUT]
    value_PS = torch.stack([reward_S - BETA * log_ratio_S for reward_S, log_ratio_S in found])
    return float(value_PS.mean())


@torch.no_grad()
def _respond(
    models: Sequence[PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    opening: str,
    samples: int,
) -> tuple[Tensor, Tensor]:
    prompt = torch.tensor(tokenizer(opening)["input_ids"])
    parts = [_sample_part(models, prompt, size) for size in _sizes(samples)]
    texts = [
        text
        for tokens_ST, _ in parts
        for text in tokenizer.batch_decode(tokens_ST, skip_special_tokens=True)
    ]
    reward_S = torch.tensor(
        [happiness(opening, text, "", {}) for text in texts], dtype=torch.float64
    )
    return reward_S, torch.cat([ratio_S for _, ratio_S in parts])


def _sizes(samples: int) -> Iterator[int]:
    for first in range(0, samples, _AT_ONCE):
        yield min(_AT_ONCE, samples - first)


def _sample_part(
    models: Sequence[PreTrainedModel], prompt: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    """Some responses with log π/π_ref of each; what follows a stop token is padding and does not
    count.
    """
    stops = torch.tensor(models[1].generation_config.eos_token_id)
    rows_ST = models[0].generate(  # pyright: ignore[reportCallIssue]
        prompt.expand(samples, -1), attention_mask=torch.ones(samples, len(prompt), dtype=torch.long),
        do_sample=True, top_k=0, max_new_tokens=_TOKENS, eos_token_id=stops.tolist(), pad_token_id=int(stops[-1]),
    )  # fmt: skip
    response_ST = rows_ST[:, len(prompt) :]
    stopped_ST = torch.isin(response_ST, stops).int()
    counts_ST = stopped_ST.cumsum(dim=1) - stopped_ST == 0
    own_ST, reference_ST = (_logprobs(model, rows_ST, len(prompt)) for model in models)
    return response_ST, ((own_ST - reference_ST) * counts_ST).sum(dim=1).double()


def _logprobs(model: PreTrainedModel, rows_ST: Tensor, start: int) -> Tensor:
    logits_STV = model(rows_ST).logits[:, start - 1 : -1].float()
    return logits_STV.log_softmax(dim=-1).gather(2, rows_ST[:, start:, None]).squeeze(2)
