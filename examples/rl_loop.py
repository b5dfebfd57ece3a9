"""A reinforcement learning loop of your own, with your own loss: REINFORCE against the mean of each
group.

python examples/rl_loop.py MODEL
"""

import sys
from dataclasses import dataclass
from typing import Literal

import lockstep


@dataclass(frozen=True)
class Reinforce:
    """−Σ A_t log π(x_t | x_<t); the learner divides once, by the number of tokens."""

    denominator: Literal["tokens"] = "tokens"

    def __call__(self, outputs, batch):
        return -(
            outputs.logprob * batch["advantage"]
        ).sum(), lockstep.Metrics()  # log π is 0 on prompts


def count_e(prompt, response, answer, row):
    """The reward of a response; `answer` and `row` are its prompt's."""
    return response.count("e")


model, prompts = (
    sys.argv[1],
    [f"Once upon a time there was a {name}" for name in ("dog", "cat", "boy", "girl")],
)
learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
sampler = lockstep.open_sampler(model, learner)
for step in range(10):
    proof = lockstep.sync(
        learner, sampler
    )  # each tensor that the sampler computes with is compared, or it raises
    rollouts = lockstep.rollout(
        sampler, prompts, count_e, max_tokens=24, num_generations=8, seed=step
    )
    score = rollouts.batch["score"].view(-1, 8)
    advantage = (score - score.mean(1, keepdim=True)).flatten()[
        rollouts.batch.row
    ]  # of each token: its response's
    batch = rollouts.batch.with_columns({"advantage": advantage})
    gap = (learner.logprobs(batch) - batch["sampler_logprob"]).abs().max()  # of one token, nats
    learner.forward_backward(batch, Reinforce())
    learner.optim_step()
    print(
        f"step {step + 1}: reward {score.mean():.2f}, {proof.tensors} tensors proven, largest gap "
        f"{gap:.1e}"
    )
