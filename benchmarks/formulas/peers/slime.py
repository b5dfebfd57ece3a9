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
from torch._C._distributed_c10d import HashStore

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files, bind
from benchmarks.formulas.recurring import (
    bound_below,
    differentiate_k1,
    differentiate_k3,
    share_credit,
    whiten_by_bessel,
)
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_LOSS, _TOOLS, _ROLLOUT = "slime.backends.megatron_utils.loss", "slime.utils.ppo_utils", "slime.ray.rollout"
_MISMATCH = "slime.examples.mis"
_REAL = {
    _LOSS: "slime/backends/megatron_utils/loss.py",
    _TOOLS: "slime/utils/ppo_utils.py",
    _ROLLOUT: "slime/ray/rollout.py",
    _MISMATCH: "examples/train_infer_mismatch_helper/mis.py",
    "slime.backends.megatron_utils.cp_utils": "slime/backends/megatron_utils/cp_utils.py",
    "slime.utils.distributed_utils": "slime/utils/distributed_utils.py",
}
_ABSENT = ("slime", "ray", "sglang", "sglang_router", "megatron", "packaging")
LACKS = {
    "gae_cut_off": "a response that was cut off counts as ended",
    "rloo": "not there",
    "dr_grpo_mean": "a reducer of one's own (custom_pg_loss_reducer_function_path)",
    **dict.fromkeys(("dpo", "ipo"), "no training on preferences"),
}


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
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return files


def cases(files: Files) -> list[Case]:
    theirs = _Slime(files)
    return _advantage_cases(theirs) + _policy_cases(theirs) + _kl_cases(theirs) + _other_cases(theirs)


class _Slime:
    """Calls of its functions."""

    def __init__(self, files: Files) -> None:
        self.loss, self.rollout, self.tools = files.load(_LOSS), files.load(_ROLLOUT), files.load(_TOOLS)
        corrections = {
            "icepop": self.loss.icepop_function,
            "mis": files.load(_MISMATCH).compute_mis_weights_with_cp,
        }
        self.loss.load_function = corrections.__getitem__
        self.files = files

    def scores(self, given: Rollouts, args: Namespace) -> list[float]:
        manager = bind(self.rollout.RolloutManager, args=args, custom_reward_post_process_func=None)
        samples = [SimpleNamespace(get_reward_value=lambda _, score=score: score) for score in given.score.tolist()]
        return manager._post_process_rewards(samples)[1]

    def advantages(self, given: Rollouts, estimator: str, which: str = "advantages", **options: Any) -> Answer:
        args = Namespace(**_OF_ADVANTAGES | {"advantage_estimator": estimator} | options)
        columns = {
            "log_probs": given.old_logprob,
            "ref_log_probs": given.ref_logprob,
            "values": given.old_value,
            "loss_masks": given.mask.float(),
        }
        data: dict[str, Any] = {name: given.split(x) for name, x in columns.items()}
        data |= {"rewards": self.scores(given, args), "response_lengths": given.lists, "total_lengths": given.lists}
        self.loss.compute_advantages_and_returns(args, data)
        return Answer(torch.cat(data[which]))

    def rewards(self, given: Rollouts) -> Answer:
        """What each token adds to the returns of REINFORCE++ without a discount."""
        answer = self.advantages(given, "reinforce_plus_plus", "returns", kl_coef=paper.BETA)
        parts = given.split(answer.known_value)
        return Answer(torch.cat([part - torch.cat([part[1:], part.new_zeros(1)]) for part in parts]))

    def policy(self, given: Rollouts, by: str = "logprob", per_response: bool = False, **options: Any) -> Answer:
        args = Namespace(**_OF_LOSS | options)

        def share(part: Rollouts) -> Tensor:
            head = {"log_probs": part.split(part.logprob), "entropy": self.entropies(part)}
            self.loss.get_log_probs_and_entropy = lambda *_, **__: (None, head)
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            batch = _fields(part, advantage_N)
            return self.loss.policy_loss_function(args, batch, None, self.reducer(part, args))[0]

        return _divide(of_loss(given, share, by), given, args)

    def entropies(self, part: Rollouts) -> list[Tensor]:
        tokens = torch.zeros(len(part.mask), dtype=torch.int64)
        return part.split(self.loss.calculate_log_probs_and_entropy(part.logits, tokens, None, with_entropy=True)[1])

    def reducer(self, part: Rollouts, args: Namespace) -> Any:
        masks = part.split(part.mask.float())
        counts = [mask.sum() for mask in masks]
        return self.loss.get_sum_of_sample_mean(part.lists, part.lists, masks, counts, args.calculate_per_token_loss)

    def kl_gradient(self, given: Rollouts, **options: Any) -> Answer:
        """The gradient of the loss with the KL less that without it."""
        with_kl = self.policy(given, use_kl_loss=True, kl_loss_coef=1.0, **options)
        return Answer(None, with_kl.known_gradient - self.policy(given).known_gradient)

    def entropy(self, given: Rollouts) -> Answer:
        """The loss without the bonus less that with it; no other part of it depends on the logits."""
        bonus, plain = self.policy(given, by="logits", entropy_coef=1.0), self.policy(given)
        return Answer(plain.known_value - bonus.known_value, -bonus.known_gradient)

    def values(self, given: Rollouts) -> Answer:
        args = Namespace(value_clip=paper.VALUE_CLIP, calculate_per_token_loss=True)

        def share(part: Rollouts) -> Tensor:
            self.loss.get_values = lambda *_, **__: (None, {"values": part.split(part.value)})
            batch = _fields(part, part.advantage)
            return self.loss.value_loss_function(args, batch, None, self.reducer(part, args))[0]

        return _divide(of_loss(given, share, by="value"), given, args)

    def kl(self, given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_N = self.tools.compute_approx_kl(part.logprob, part.ref_logprob, name)
            return (kl_N * part.mask).sum() / given.num_tokens

        return of_loss(given, share)


_OF_ADVANTAGES: dict[str, Any] = {
    "rewards_normalization": True,
    "grpo_std_normalization": True,
    "n_samples_per_prompt": GROUP,
    "rollout_batch_size": 4,
    "use_rollout_logprobs": False,
    "kl_coef": 0.0,
    "kl_loss_type": "k1",
    "custom_advantage_function_path": None,
    "use_opd": False,
    "normalize_advantages": False,
    "gamma": 1.0,
    "lambd": paper.LAM,
}
_OF_LOSS: dict[str, Any] = {
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
_OF_MISMATCH: dict[str, Any] = {
    "use_tis": True,
    "custom_tis_function_path": "mis",
    "tis_level": "sequence",
    "tis_mode": "truncate",
    "tis_upper_bound": paper.TIS_HIGH,
    "tis_lower_bound": None,
    "rs_lower_bound": None,
    "rs_upper_bound": None,
    "use_rs": False,
    "tis_batch_normalize": False,
}


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
    counts = [mask.sum() for mask in lists["loss_masks"]]
    return lists | {"response_lengths": part.lists, "total_lengths": part.lists, "rollout_mask_sums": counts}


def _divide(answer: Answer, given: Rollouts, args: Namespace) -> Answer:
    """By what their learner divides by."""
    count = given.num_tokens if args.calculate_per_token_loss else given.num_rows
    return Answer(answer.known_value / count, answer.known_gradient / count)


def _advantage_cases(theirs: _Slime) -> list[Case]:
    at, advantages = theirs.files.at(_LOSS, "compute_advantages_and_returns"), theirs.advantages
    at_scores = theirs.files.at(_ROLLOUT, "RolloutManager._post_process_rewards")
    gae = partial(advantages, estimator="ppo", gamma=paper.GAMMA)
    own: dict[str, Any] = {"skip": False, "own_values": True}
    whitened: dict[str, Any] = {"normalize_advantages": True}
    with_kl = partial(paper.reinforce_plus_plus, bessel=1)
    plus = partial(advantages, estimator="reinforce_plus_plus", kl_coef=paper.BETA, **whitened)
    baseline = partial(advantages, estimator="reinforce_plus_plus_baseline", **whitened)
    return [
        Case(
            "gae_returns",
            partial(gae, which="returns"),
            theirs.files.at(_TOOLS, "get_advantages_and_returns_batch"),
            kind="substance",
            because="a tool's tokens are steps, with values of their own",
            instead=partial(paper.gae_returns, **own),
        ),
        Case(
            "gae_whitened",
            partial(gae, **whitened),
            at,
            kind="substance",
            because="a tool's tokens are steps, with values of their own; variance with n − 1",
            instead=partial(paper.gae_whitened, bessel=1, **own),
        ),
        Case("grpo", partial(advantages, estimator="grpo"), at_scores),
        Case("dr_grpo", partial(advantages, estimator="grpo", grpo_std_normalization=False), at_scores),
        whiten_by_bessel("reinforce_pp", plus, at, with_kl),
        whiten_by_bessel("reinforce_pp_baseline", baseline, at, partial(with_kl, baseline=True, kl="none")),
        Case(
            "kl_reward",
            theirs.rewards,
            theirs.files.at(_TOOLS, "get_reinforce_plus_plus_returns"),
            "kl_loss_type: k1 (default)",
        ),
    ]


def _policy_cases(theirs: _Slime) -> list[Case]:
    at, policy = theirs.files.at(_LOSS, "policy_loss_function"), theirs.policy
    at_tis, at_icepop = (theirs.files.at(_LOSS, name) for name in ("vanilla_tis_function", "icepop_function"))
    low, high = paper.ICEPOP
    icepop = {"use_tis": True, "custom_tis_function_path": "icepop", "tis_clip_low": low, "tis_clip": high}
    clip = {"eps_clip": paper.GSPO_CLIP, "eps_clip_high": paper.GSPO_CLIP, "calculate_per_token_loss": False}
    gspo, cispo = partial(policy, advantage_estimator="gspo", **clip), partial(policy, advantage_estimator="cispo")
    return [
        Case("ppo_tokens", policy, at, "calculate_per_token_loss: true"),
        Case("ppo_responses", partial(policy, calculate_per_token_loss=False), at, "(default)"),
        Case("clip_higher", partial(policy, eps_clip_high=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, eps_clip_c=paper.DUAL_CLIP), at),
        Case("gspo", partial(gspo, per_response=True), at),
        share_credit(gspo, at),
        bound_below(cispo, at, "eps_clip: 0.2"),
        Case("cispo", partial(cispo, eps_clip=1e9), at, "eps_clip: 1e9"),
        Case("tis_token", partial(policy, use_tis=True), at_tis),
        Case(
            "tis_sequence",
            partial(policy, **_OF_MISMATCH),
            theirs.files.at(_MISMATCH, "compute_mis_weights"),
            "custom_tis_function_path, an example of theirs",
        ),
        Case("icepop", partial(policy, **icepop), at_icepop, "custom_tis_function_path"),
    ]


def _kl_cases(theirs: _Slime) -> list[Case]:
    at, at_kl = theirs.files.at(_LOSS, "policy_loss_function"), theirs.files.at(_TOOLS, "compute_approx_kl")
    k3 = partial(theirs.kl_gradient, kl_loss_type="k3")
    return [
        *(Case(name, partial(theirs.kl, name=name), at_kl) for name in ("k1", "k2", "k3")),
        differentiate_k1(theirs.kl_gradient, at, "kl_loss_type: k1 (default)"),
        differentiate_k3(k3, at, "kl_loss_type: k3", bounded=False),
        Case("kl_loss", partial(k3, use_unbiased_kl=True), at, "kl_loss_type: k3, use_unbiased_kl"),
    ]


def _other_cases(theirs: _Slime) -> list[Case]:
    return [
        Case("entropy", theirs.entropy, theirs.files.at(_TOOLS, "_VocabParallelLogProbEntropy")),
        Case(
            "value_loss",
            theirs.values,
            theirs.files.at(_LOSS, "value_loss_function"),
            "calculate_per_token_loss: true",
            kind="convention",
            because="without the ½",
            instead=partial(paper.value_loss, scale=2.0),
        ),
    ]
