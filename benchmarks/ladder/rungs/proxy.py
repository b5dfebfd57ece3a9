"""Proxy and gold reward: what a policy gains, and then loses, by a reward model that is right only nearby."""

from benchmarks.ladder.rung import Arm, Claim, Rung

PROXY = {"reward_model.path": Arm("proxy_reward.yaml")}
"""The reward model of the seed, which has the policy's warm start."""


def _arm(*options: str) -> Arm:
    return Arm("proxy.yaml", options, before=PROXY)


RUNG = Rung(
    name="proxy",
    question="Raise gold, which is never seen, by a reward model of 512 pairs, a fifth of them ranked wrongly.",
    metric="validation/reward",
    arms={
        "no KL": _arm(),
        "no KL, 5 steps": _arm("run.max_steps=5"),
        "KL .03 in the loss": _arm("grpo.kl.coef=0.03"),
        "KL .1 in the loss": _arm("grpo.kl.coef=0.1"),
        "KL .3 in the loss": _arm("grpo.kl.coef=0.3"),
        "KL .1 in the reward": _arm("grpo.kl={coef: 0.1, placement: reward}"),
    },
    claims=(
        Claim("KL .1 in the loss", "no KL", "because without KL the policy finds answers that only the proxy likes"),
        Claim("KL .1 in the reward", "no KL", "for the same reason"),
        Claim("KL .1 in the loss", "KL .03 in the loss", "because a small coefficient lets the policy go too far"),
        Claim("KL .1 in the loss", "KL .3 in the loss", "because a large one holds it too near to its reference"),
        Claim("no KL, 5 steps", "no KL", "because gold falls while the proxy rises"),
    ),
    optimum=1.0,
    threshold=0.45,
    last=3,
)
