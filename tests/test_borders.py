"""Values that cross from one part to another: one that is not finite or out of range is named, and
not learned from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, VOCABULARY, model_folder, ragged, requests
from torch import Tensor

from lockstep.algorithms.distill.job import DistillStep
from lockstep.algorithms.distill.options import DistillRecipe, DistillSection
from lockstep.algorithms.job import RunLength
from lockstep.algorithms.opening import with_reference
from lockstep.algorithms.policy_gradient import step as policy_gradient
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, SamplerSection
from lockstep.config.loading import load_recipe
from lockstep.core.batch import Batch
from lockstep.core.borders import LARGEST_LOGPROB, NotFiniteError, require_finite, require_logprobs
from lockstep.core.types import Prompt, Request, SamplingParams, skip_timing
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.losses.distill import Distillation
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.base import ResponsePiece

Run = Callable[..., list[dict[str, Any]]]
NAN, INF = math.nan, math.inf
SAMPLING = SamplingParams(max_tokens=4)
BATCH = ragged((5, 7, 6, 8)).with_columns(sample={"score": torch.tensor([1.0, 0.0, 1.0, 0.5])})


PAIRS = replace(BATCH, group_size=2)


def broken(root: Path, head: Any = "logits") -> RankLearner:
    """A learner with one weight that is NaN."""
    learner = cast(
        RankLearner,
        LearnerSpec(str(model_folder(root, "llama")), head, SECTION, OPTIMIZER, 0).build(),
    )
    learner.pieces[-1].local.view(-1)[0] = NAN
    return learner


# The words themselves.


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_require_finite_names_first_bad_value_and_its_row_and_token(value: float) -> None:
    column_N = torch.zeros(26)
    column_N[[13, 20]] = torch.tensor([value, NAN])
    with pytest.raises(
        NotFiniteError, match=rf"^V are {value} for token 2 of row 3 of 4; check"
    ) as caught:
        require_finite("V", BATCH, torch.zeros(4), column_N)
    assert caught.value.batch is BATCH
    with pytest.raises(NotFiniteError, match=rf"^r are {value} for row 2 of 4; stop$"):
        require_finite("r", BATCH, torch.tensor([0.0, value, 0.0, NAN]), cure="stop")


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.2])
def test_require_logprobs_rejects_non_finite_and_positive_values(value: float) -> None:
    column_NK = torch.full((26, 3), -1.0)
    column_NK[25, 2] = value
    with pytest.raises(
        NotFiniteError, match=rf"^log-probabilities of p are {value} for token 8 of row 4 of 4"
    ):
        require_logprobs("p", BATCH, column_NK)
    require_logprobs("p", BATCH, torch.tensor([1e-6, LARGEST_LOGPROB]), torch.zeros(0))


# Samplers.


@dataclass
class Altering:
    """A sampler that alters what the one behind it says."""

    sampler: Any
    alter: Callable[[Batch], Batch]

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        for places, batch in self.sampler.pieces(requests, sampling):
            yield places, self.alter(batch)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return self.alter(self.sampler.generate(requests, sampling))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


def say_nan(batch: Batch) -> Batch:
    logprob_N = batch["sampler_logprob"].clone()
    logprob_N[-1] = NAN
    return batch.with_columns({"sampler_logprob": logprob_N})


def say_more(batch: Batch) -> Batch:
    """One response twice as long, by tokens of the next sequence's prompt."""
    lengths = batch.lengths.clone()
    lengths[0], lengths[1] = lengths[0] + 1, lengths[1] - 1
    mask = batch.mask.clone()
    mask[int(lengths[0]) - 1] = True
    return replace(batch, lengths=lengths, token={**batch.token, "mask": mask})


def say_nothing(batch: Batch) -> Batch:
    return batch.with_columns({"mask": batch.mask & (batch.row > 0)})


def lose_one(batch: Batch) -> Batch:
    return batch.select(range(len(batch) - 1))


ALTERED = [
    (say_nan, r"log-probabilities of the sampler are nan for token \d+ of row 3 of 3; check"),
    (
        say_more,
        (
            r"the sampler gave 5 tokens in a sequence of 10 for row 1 of 3, whose prompt has 5 .* "
            r"1 "
            r"to 4; check"
        ),
    ),
    (say_nothing, "the sampler gave 0 tokens in a sequence of 9 for row 1 of 3"),
    (lose_one, "the sampler gave 2 responses to 3 requests; restart it"),
]
ASKED = requests((5, 3, 9))


@pytest.mark.parametrize(("alter", "sentence"), ALTERED)
def test_invalid_sampler_output_is_rejected_with_its_row(
    tmp_path: Path, alter: Callable[[Batch], Batch], sentence: str
) -> None:
    section = SamplerSection()
    sampler = SamplerSpec(
        str(model_folder(tmp_path, "llama")), section, LearnerSection(device="cpu")
    ).open_in_process()
    session = SamplerSession(cast(Any, Altering(sampler, alter)))
    with session.at(0), pytest.raises(NotFiniteError, match=f"^{sentence}"):
        session.generate(ASKED, SAMPLING)


class AlteringSpec(SamplerSpec):
    """Builds, in a worker, a sampler that says NaN."""

    def build(self) -> Any:
        return Altering(super().build(), say_nan)


def test_nan_log_probability_from_sampler_worker_is_rejected(tmp_path: Path) -> None:
    spec = AlteringSpec(
        str(model_folder(tmp_path, "llama")), SamplerSection(), LearnerSection(device="cpu")
    )
    pool = SamplerPool(spec)
    try:
        pool.wait_until_ready()
        with pytest.raises(
            NotFiniteError, match=r"^log-probabilities of sampler 1 are nan for token"
        ):
            list(pool.generate_blocks([(0, ASKED)], SAMPLING))
    finally:
        pool.close()


# Rewards.


class OneAnswer:
    """A stream of one prompt."""

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        return [Prompt("rows.jsonl:1", "?", ASKED[0].tokens, {})] * count

    def answer(self, prompt: Prompt) -> str:
        return ""


@pytest.mark.parametrize("value", [NAN, INF, 1e39])
def test_non_finite_float32_reward_is_rejected_and_not_taken_as_no_verdict(
    tmp_path: Path, value: float
) -> None:
    section = SamplerSection()
    sampler = SamplerSpec(
        str(model_folder(tmp_path, "llama")), section, LearnerSection(device="cpu")
    ).open_in_process()
    session = SamplerSession(sampler)
    for second in (None, value):
        reward = lambda prompts, responses, answers, second=second: [1.0, second, None]  # noqa: E731
        collector = RolloutCollector(session, OneAnswer(), reward, str, seed=0)
        with session.at(0):
            if second is None:
                assert collector.collect(0, 1, SAMPLING, 3).batch["score"].isnan().tolist() == [
                    False,
                    True,
                    True,
                ]
                continue
            with pytest.raises(
                NotFiniteError, match=r"^rewards are (nan|inf) for row 2 of 3; return a reward"
            ):
                collector.collect(0, 1, SAMPLING, 3)


@pytest.mark.parametrize("reward", ["1e39", "10**400", "-1e39"])
def test_reward_function_value_beyond_float32_is_rejected_with_its_row(
    run: Run, reward: str
) -> None:
    Path("rewards.py").write_text(
        f"def parity(prompt, response, answer, row):\n    return {reward}\n"
    )
    with pytest.raises(
        ValueError, match=r"jsonl:1: reward\.function .* returned .*; return a finite number"
    ):
        run()


# Critics, references, teachers, policies.


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("model", "name"), [("policy", "the policy"), ("reference", "the reference policy")]
)
def test_nan_log_probability_of_policy_or_reference_is_rejected_by_model_name(
    tmp_path: Path, model: str, name: str
) -> None:
    sound = LearnerSpec(
        str(model_folder(tmp_path, "llama")), "logits", SECTION, OPTIMIZER, 0
    ).build()
    models = {"policy": sound, "reference": sound, model: broken(tmp_path)}
    settings = policy_gradient.build_settings(
        load_recipe("tiny.yaml", ["ppo.kl.coef=0.1"]).expect_recipe(PPORecipe), ()
    )
    workers = PolicyGradientWorkers(
        policy=models["policy"],
        reference=models["reference"],
        collector=cast(Any, None),
        phase=skip_timing,
    )
    batch = BATCH.with_columns({"sampler_logprob": torch.zeros(26)}, {"version": torch.zeros(4)})
    with pytest.raises(NotFiniteError, match=f"^log-probabilities of {name} are nan for token"):
        policy_gradient.prepare_batch(0, 0, batch, workers, settings)


@pytest.mark.usefixtures("run")
def test_nan_reference_log_probability_of_preference_pairs_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        NotFiniteError, match="log-probabilities of the reference policy are nan for token"
    ):
        with_reference(PAIRS, broken(tmp_path))


def test_nan_log_probability_of_teacher_is_rejected(tmp_path: Path) -> None:
    options = DistillSection(
        num_prompts_per_step=4, global_batch_size=4, max_tokens=8, on_policy=False, top_k=2
    )
    recipe = DistillRecipe.model_construct(distill=options)
    teacher = broken(tmp_path)
    how: Any = (
        None,
        skip_timing,
        recipe,
        RunLength(1, None, 1),
        VOCABULARY,
        Distillation("forward"),
    )
    with pytest.raises(
        NotFiniteError, match=r"^log-probabilities of the teacher are nan for token"
    ):
        DistillStep(teacher, teacher, *how).add_teacher_logprobs(BATCH)


# Gradients, checkpoints.


def test_non_finite_gradient_is_rejected_and_changes_no_weight(tmp_path: Path) -> None:
    learner = broken(tmp_path)
    before = [piece.local.clone() for piece in learner.pieces]
    with pytest.raises(
        NotFiniteError, match=r"^CrossEntropyLoss: the gradient's norm is nan at update 0"
    ):
        train(learner, BATCH, CrossEntropyLoss())
    assert all(
        torch.equal(a, piece.local.nan_to_num())
        for a, piece in zip(map(Tensor.nan_to_num, before), learner.pieces, strict=True)
    )
