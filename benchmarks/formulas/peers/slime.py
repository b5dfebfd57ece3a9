"""slime: its advantages, and its losses with the head in front cut off.

`policy_loss_function` and `value_loss_function` compute log-probabilities, entropies and values from a model's output;
here that one call hands them what was recorded. They return sums, which its learner divides by the number of responses
or of tokens in the batch, as is done here. Megatron's groups are those of a single process.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files, bind
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_LOSS, _TOOLS, _ROLLOUT = "slime.backends.megatron_utils.loss", "slime.utils.ppo_utils", "slime.ray.rollout"
_REAL = {
    _LOSS: "slime/backends/megatron_utils/loss.py",
    _TOOLS: "slime/utils/ppo_utils.py",
    _ROLLOUT: "slime/ray/rollout.py",
    "slime.backends.megatron_utils.cp_utils": "slime/backends/megatron_utils/cp_utils.py",
    "slime.utils.distributed_utils": "slime/utils/distributed_utils.py",
}
_ABSENT = ("slime", "ray", "sglang", "sglang_router", "megatron", "packaging")
_BESSEL = {"kind": "convention", "because": "variance with n − 1"}


class _OneProcess(ModuleType):
    """Megatron's groups where there is one process."""

    def get_context_parallel_world_size(self) -> int:
        return 1

    def get_context_parallel_rank(self) -> int:
        return 0

    def get_context_parallel_group(self) -> None:
        return None

    def get_data_parallel_group(self, with_context_parallel: bool = False) -> None:
        return None

    def is_pipeline_last_stage(self) -> bool:
        return True


def open_files(root: Path) -> Files:
    files = Files(root, _REAL, _ABSENT)
    files.load("megatron.core").mpu = _OneProcess("megatron.core.mpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return files


def cases(files: Files) -> list[Case]:
    return _advantages(files) + _losses(files) + _divergences(files)


def _advantages(files: Files) -> list[Case]:
    module, rollout = files.load(_LOSS), files.load(_ROLLOUT)

    def scores(given: Rollouts, estimator: str, std: bool = True) -> list[float]:
        args = Namespace(
            advantage_estimator=estimator,
            rewards_normalization=True,
            grpo_std_normalization=std,
            n_samples_per_prompt=GROUP,
            rollout_batch_size=given.num_rows // GROUP,
        )
        manager = bind(rollout.RolloutManager, args=args, custom_reward_post_process_func=None)
        samples = [SimpleNamespace(get_reward_value=lambda _, score=score: score) for score in given.score.tolist()]
        return manager._post_process_rewards(samples)[1]

    def compute(given: Rollouts, estimator: str, which: str = "advantages", **options: Any) -> Answer:
        std = options.pop("std", True)
        args = Namespace(
            **{
                "advantage_estimator": estimator,
                "use_rollout_logprobs": False,
                "kl_coef": 0.0,
                "kl_loss_type": "k1",
                "custom_advantage_function_path": None,
                "use_opd": False,
                "normalize_advantages": False,
                "gamma": 1.0,
                "lambd": paper.LAM,
            }
            | options
        )
        lists = {
            "log_probs": given.old_logprob,
            "ref_log_probs": given.ref_logprob,
            "values": given.old_value,
            "loss_masks": given.mask.float(),
        }
        data: dict[str, Any] = {name: given.split(x) for name, x in lists.items()}
        data |= {
            "rewards": scores(given, estimator, std),
            "response_lengths": given.lists,
            "total_lengths": given.lists,
        }
        module.compute_advantages_and_returns(args, data)
        return Answer(torch.cat(data[which]))

    def rewards(given: Rollouts) -> Answer:
        """The returns of γ = 1 and λ = 1 with values of 0, less those of the next token: the reward of each."""
        paid = {"kl_coef": paper.BETA, "kl_loss_type": "k1"}
        answer = compute(given, "reinforce_plus_plus", "returns", **paid).value
        assert answer is not None, "an advantage has a value"
        parts = given.split(answer)
        return Answer(torch.cat([part - torch.cat([part[1:], part.new_zeros(1)]) for part in parts]))

    at, at_scores = files.at(_LOSS, "compute_advantages_and_returns"), files.at(_ROLLOUT, "RolloutManager._post_process_rewards")
    gae, at_gae = {"gamma": paper.GAMMA}, files.at(_TOOLS, "get_advantages_and_returns_batch")
    plus = {"kl_coef": paper.BETA, "normalize_advantages": True}
    through = {"kind": "substance", "because": "a tool's tokens are steps, with values of their own"}
    return [
        Case(
            "gae_returns",
            partial(compute, estimator="ppo", which="returns", **gae),
            at_gae,
            instead=partial(paper.gae_returns, skip=False, own_values=True),
            **through,
        ),
        Case(
            "gae_whitened",
            partial(compute, estimator="ppo", normalize_advantages=True, **gae),
            at,
            kind="substance",
            because="a tool's tokens are steps, with values of their own; variance with n − 1",
            instead=partial(paper.gae_whitened, skip=False, own_values=True, bessel=1),
        ),
        Case("grpo", partial(compute, estimator="grpo"), at_scores),
        Case("dr_grpo", partial(compute, estimator="grpo", std=False), at_scores, "grpo_std_normalization: false"),
        Case(
            "reinforce_pp",
            partial(compute, estimator="reinforce_plus_plus", **plus),
            at,
            instead=partial(paper.reinforce_plus_plus, bessel=1),
            **_BESSEL,
        ),
        Case(
            "reinforce_pp_baseline",
            partial(compute, estimator="reinforce_plus_plus_baseline", normalize_advantages=True),
            at,
            instead=partial(paper.reinforce_plus_plus, baseline=True, kl="none", bessel=1),
            **_BESSEL,
        ),
        Case("kl_reward", rewards, files.at(_TOOLS, "get_reinforce_plus_plus_returns"), "kl_loss_type: k1 (default)"),
    ]


def _losses(files: Files) -> list[Case]:
    module = files.load(_LOSS)
    module.load_function = lambda path: getattr(module, path)

    def entropies(part: Rollouts) -> list[Tensor]:
        """By their function, from the logits."""
        tokens = torch.zeros(len(part.mask), dtype=torch.int64)
        return part.split(module.calculate_log_probs_and_entropy(part.logits, tokens, None, with_entropy=True)[1])

    def policy(given: Rollouts, by: str = "logprob", **options: Any) -> Answer:
        per_response = options.pop("per_response", False)
        args = Namespace(**_PLAIN | options)

        def share(part: Rollouts) -> Tensor:
            head = {"log_probs": part.split(part.logprob), "entropy": entropies(part)}
            module.get_log_probs_and_entropy = lambda *_, **__: (None, head)
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            return module.policy_loss_function(args, _fields(part, advantage_N), None, _reduce(module, part, args))[0]

        return _divide(of_loss(given, share, by), given, args)

    def kl_gradient(given: Rollouts, **options: Any) -> Answer:
        with_kl = {"use_kl_loss": True, "kl_loss_coef": 1.0}
        gradients = policy(given, **options | with_kl).gradient, policy(given).gradient
        assert gradients[0] is not None and gradients[1] is not None, "a loss has a gradient"
        return Answer(None, gradients[0] - gradients[1])

    def entropy(given: Rollouts) -> Answer:
        answer = policy(given, by="logits", entropy_coef=1.0)
        without = policy(given, by="logits", entropy_coef=0.0)
        assert answer.value is not None and answer.gradient is not None and without.value is not None, "a loss has both"
        return Answer(without.value - answer.value, -answer.gradient)

    def values(given: Rollouts, per_token: bool) -> Answer:
        args = Namespace(value_clip=paper.VALUE_CLIP, calculate_per_token_loss=per_token)

        def share(part: Rollouts) -> Tensor:
            module.get_values = lambda *_, **__: (None, {"values": part.split(part.value)})
            batch = _fields(part, part.advantage)
            return module.value_loss_function(args, batch, None, _reduce(module, part, args))[0]

        return _divide(of_loss(given, share, by="value"), given, args)

    at = files.at(_LOSS, "policy_loss_function")
    tis, icepop = files.at(_LOSS, "vanilla_tis_function"), files.at(_LOSS, "icepop_function")
    low, high = paper.ICEPOP
    popped = {"use_tis": True, "custom_tis_function_path": "icepop_function", "tis_clip_low": low, "tis_clip": high}
    gspo = {"advantage_estimator": "gspo", "eps_clip": paper.GSPO_CLIP, "eps_clip_high": paper.GSPO_CLIP}
    cispo, whole = {"advantage_estimator": "cispo"}, {"calculate_per_token_loss": False}
    at_values = files.at(_LOSS, "value_loss_function")
    half = {"kind": "convention", "because": "without the ½"}
    return [
        Case("ppo_tokens", policy, at, "calculate_per_token_loss: true"),
        Case("ppo_responses", partial(policy, **whole), at, "calculate_per_token_loss: false (default)"),
        Case("clip_higher", partial(policy, eps_clip_high=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, eps_clip_c=paper.DUAL_CLIP), at),
        Case("gspo", partial(policy, per_response=True, **gspo | whole), at),
        Case(
            "cispo",
            partial(policy, **cispo),
            at,
            kind="convention",
            because="a lower bound too",
            instead=partial(paper.cispo, low=paper.CLIP),
        ),
        Case("cispo", partial(policy, eps_clip=1e9, **cispo), at, "eps_clip: 1e9"),
        Case("tis_token", partial(policy, use_tis=True), tis),
        Case("icepop", partial(policy, **popped), icepop, "custom_tis_function_path"),
        Case(
            "kl_loss",
            kl_gradient,
            at,
            "kl_loss_type: k1 (default)",
            kind="substance",
            because="k1 differentiated: an expected gradient of 0",
            instead=partial(paper.kl_gradient, factor="one", slope="k1"),
        ),
        Case(
            "kl_loss",
            partial(kl_gradient, kl_loss_type="k3"),
            at,
            "kl_loss_type: k3",
            kind="substance",
            because="k3 differentiated: the gradient of KL(π_ref ‖ π)",
            instead=partial(paper.kl_gradient, factor="one", slope="k3"),
        ),
        Case("kl_loss", partial(kl_gradient, kl_loss_type="k3", use_unbiased_kl=True), at, "k3 with use_unbiased_kl"),
        Case("entropy", entropy, files.at(_TOOLS, "_VocabParallelLogProbEntropy")),
        Case(
            "value_loss",
            partial(values, per_token=True),
            at_values,
            "calculate_per_token_loss: true",
            instead=partial(paper.value_loss, scale=2.0),
            **half,
        ),
    ]


def _divergences(files: Files) -> list[Case]:
    tools, at = files.load(_TOOLS), files.at(_TOOLS, "compute_approx_kl")

    def kl(given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_N = tools.compute_approx_kl(part.logprob, part.ref_logprob, name)
            return (kl_N * part.mask).sum() / given.num_tokens

        return of_loss(given, share)

    return [Case(name, partial(kl, name=name), at) for name in ("k1", "k2", "k3")]


_PLAIN: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "use_rollout_logprobs": False,
    "rollout_top_p": 1.0,
    "use_opsm": False,
    "eps_clip": paper.CLIP,
    "eps_clip_high": paper.CLIP,
    "eps_clip_c": None,
    "get_mismatch_metrics": False,
    "use_tis": False,
    "tis_clip": paper.TIS_HIGH,
    "tis_clip_low": 0.0,
    "custom_tis_function_path": None,
    "calculate_per_token_loss": True,
    "entropy_coef": 0.0,
    "use_kl_loss": False,
    "use_unbiased_kl": False,
    "kl_loss_type": "k1",
    "kl_loss_coef": 0.0,
}
"""Options of a loss without additions; those of KL, clip and TIS are overridden by cases."""


def _fields(part: Rollouts, advantage_N: Tensor) -> dict[str, Any]:
    columns = {
        "advantages": advantage_N,
        "log_probs": part.old_logprob,
        "rollout_log_probs": part.sampler_logprob,
        "ref_log_probs": part.ref_logprob,
        "loss_masks": part.mask.float(),
        "values": part.old_value,
        "returns": part.returns,
        "unconcat_tokens": part.mask,
    }
    lists: dict[str, Any] = {name: part.split(x) for name, x in columns.items()}
    sums = [mask.sum() for mask in lists["loss_masks"]]
    return lists | {"response_lengths": part.lists, "total_lengths": part.lists, "rollout_mask_sums": sums}


def _reduce(module: Any, part: Rollouts, args: Namespace) -> Any:
    masks = part.split(part.mask.float())
    denominators = [mask.sum() for mask in masks]
    return module.get_sum_of_sample_mean(part.lists, part.lists, masks, denominators, args.calculate_per_token_loss)


def _divide(answer: Answer, given: Rollouts, args: Namespace) -> Answer:
    """By what their learner divides by."""
    count = given.num_tokens if args.calculate_per_token_loss else given.num_rows
    assert answer.value is not None and answer.gradient is not None, "a loss has both"
    return Answer(answer.value / count, answer.gradient / count)
