"""The objective of the rung stories, reward less β·KL of a response: of a policy, and the greatest that there is.

    LOCKSTEP_ASSETS=… python -m benchmarks.ladder.stories_objective              # from samples of the reference
    LOCKSTEP_ASSETS=… python -m benchmarks.ladder.stories_objective RUN          # and from samples of a run's policy

The best policy is known up to its constant: π*(y|x) = π_ref(y|x)·exp(r/β) / Z(x), and its objective is β·log Z(x) with
Z = E_ref exp(r/β). A mean over responses estimates Z; over those of another policy, weighed by π_ref/π, it does as
well, and better where that policy is near π*. All is computed by `transformers` alone, so that a run is measured by
other code than its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.ladder.rung import ASSETS
from benchmarks.ladder.tasks.stories import NAMES, happiness, openings
from lockstep.config.loading import load_run
from lockstep.config.model_recipe import weights_of

BETA = 0.1
HELD_OUT = openings(NAMES[-2:])
_TOKENS, _AT_ONCE = 32, 256


@dataclass(frozen=True)
class Responses:
    """Responses to the held-out openings.

    Attributes:
        reward_PS: Rewards, of each opening's responses.
        log_ratio_PS: log π/π_ref of the whole response, of the policy that sampled it.
    """

    reward_PS: Tensor
    log_ratio_PS: Tensor

    def objective(self) -> tuple[float, float]:
        """The policy's mean reward less β·KL, and its standard error."""
        value_PS = self.reward_PS - BETA * self.log_ratio_PS
        return float(value_PS.mean()), _error(value_PS.std(dim=1) / value_PS.shape[1] ** 0.5)

    def optimum(self) -> tuple[float, float, float]:
        """The greatest objective, its standard error, and the effective share of the responses where it is lowest."""
        weight_PS = torch.exp(self.reward_PS / BETA - self.log_ratio_PS)
        mean_P, samples = weight_PS.mean(dim=1), weight_PS.shape[1]
        share_P = mean_P**2 / (weight_PS**2).mean(dim=1)
        error_P = BETA * weight_PS.std(dim=1) / mean_P / samples**0.5
        return float((BETA * mean_P.log()).mean()), _error(error_P), float(share_P.min())


def measure(run: Path) -> float:
    """The objective of a finished run."""
    return sample(weights_of(run), Path(str(load_run(run).training.model.path)), 128).objective()[0]


def reference() -> Path:
    """The folder of the story model."""
    return Path(os.environ[ASSETS]) / "models/stories260K/hf"


def sample(policy: Path, reference: Path, samples: int) -> Responses:
    """Samples responses of a policy to each held-out opening, always from the same random numbers."""
    from transformers import AutoModelForCausalLM

    from lockstep.models.tokenizer import load_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (policy, reference)]
    tokenizer = load_tokenizer(policy)
    found = [_respond(models, tokenizer, opening, samples) for opening in HELD_OUT]
    return Responses(torch.stack([reward_S for reward_S, _ in found]), torch.stack([ratio_S for _, ratio_S in found]))


@torch.no_grad()
def _respond(
    models: Sequence[PreTrainedModel], tokenizer: PreTrainedTokenizerBase, opening: str, samples: int
) -> tuple[Tensor, Tensor]:
    prompt = torch.tensor(tokenizer(opening)["input_ids"])
    parts = [_sample_part(models, prompt, size) for size in _sizes(samples)]
    texts = [text for tokens_ST, _ in parts for text in tokenizer.batch_decode(tokens_ST, skip_special_tokens=True)]
    reward_S = torch.tensor([happiness(opening, text, "", {}) for text in texts], dtype=torch.float64)
    return reward_S, torch.cat([ratio_S for _, ratio_S in parts])


def _sizes(samples: int) -> Iterator[int]:
    for first in range(0, samples, _AT_ONCE):
        yield min(_AT_ONCE, samples - first)


def _sample_part(models: Sequence[PreTrainedModel], prompt: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Some responses with log π/π_ref of each; what follows a stop token is padding and does not count."""
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


def _error(error_P: Tensor) -> float:
    """Standard error of a mean over openings."""
    return float(error_P.square().sum().sqrt()) / len(error_P)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--samples", type=int, default=2048, help="responses to each opening")
    options = parser.parse_args()
    print("| responses of | objective | greatest objective | effective share, least |\n|---|---|---|---|")
    for policy in (reference(), *options.runs):
        responses = sample(weights_of(policy), reference(), options.samples)
        (value, error), (most, of_most, share) = responses.objective(), responses.optimum()
        print(f"| {policy.name} | {value:.3f} ± {error:.3f} | {most:.3f} ± {of_most:.3f} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
