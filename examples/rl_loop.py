"""A reinforcement learning loop of your own: REINFORCE against the mean of each group.

python examples/rl_loop.py MODEL
"""

import sys
from dataclasses import dataclass
from typing import Literal

import lockstep


@dataclass(frozen=True)
class Reinforce:
    """−Σ A_t log π(x_t | x_<t); log π is 0 on prompts; the learner divides by the tokens."""

    denominator: Literal["tokens"] = "tokens"

    def __call__(self, outputs, batch):
        return -(outputs.logprob * batch["advantage"]).sum(), lockstep.Metrics()


def count_e(prompt, response, answer, row):
    """The reward of a response; `answer` and `row` are its prompt's."""
    return response.count("e")


prompts = [f"Once upon a time there was a {name}" for name in ("dog", "cat", "boy", "girl")]
model = sys.argv[1] if len(sys.argv) == 2 else sys.exit("usage: python rl_loop.py MODEL")
learner = lockstep.open_learner(model, optimizer={"lr": 1e-3})
sampler = lockstep.open_sampler(model, learner)
for step in range(10):
    proof = lockstep.sync(learner, sampler)  # compares each tensor that the sampler computes with
    drawn = lockstep.rollout(sampler, prompts, count_e, max_tokens=24, num_generations=8, seed=step)
    score = drawn.batch["score"].view(-1, 8)
    advantage = (score - score.mean(1, keepdim=True)).flatten()  # of each response
    batch = drawn.batch.with_columns({"advantage": advantage[drawn.batch.row]})  # of each token
    learner.forward_backward(batch, Reinforce())
    gap = (learner.last_logprobs() - batch["sampler_logprob"]).abs().max()  # of one token, nats
    learner.optim_step()
    print(f"step {step}: reward {score.mean():.2f}, {proof.tensors} tensors proven, gap {gap:.1e}")
