"""What every learner owes, whatever process it lives in and however many ranks it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    ARCHITECTURES,
    OPTIMIZER,
    SECTION,
    VOCABULARY,
    SquaredError,
    WeightedLogprob,
    over,
    plain_filtered,
    plain_logits,
    plain_logprobs,
    plain_model,
    plain_values,
    ragged,
)
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import Schedule
from lockstep.core.batch import Batch, concat_batches
from lockstep.core.errors import InputError
from lockstep.core.types import SamplingParams
from lockstep.learners.base import Learner, train

RANKS = {"one rank": 1, "two ranks": 2}
IMPLEMENTATIONS = [
    "in process",
    *(pytest.param(kind, marks=pytest.mark.needs("gloo")) for kind in RANKS),
]
LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)


@dataclass(frozen=True)
class Pair:
    """A policy and a critic on the same model, and folders of their first states."""

    policy: Learner
    critic: Learner
    first: Path
    model: Path


def start(kind: str, spec: LearnerSpec, stack: ExitStack) -> Learner:
    if kind == "in process":
        return spec.build()
    ranks = launch_learner(over(spec, dp=RANKS[kind]), timeout_s=400.0)
    stack.callback(ranks.close)
    return ranks


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def started(
    request: pytest.FixtureRequest,
    models: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    model, first = models("qwen2"), tmp_path_factory.mktemp("first")
    half = OPTIMIZER.model_copy(update={"schedule": Schedule(warmup_steps=0.5)})
    with ExitStack() as stack:
        policy, critic = (
            start(request.param, LearnerSpec(str(model), head, SECTION, half, seed=3), stack)
            for head in ("logits", "value")
        )
        policy.plan_updates(4)
        critic.plan_updates(4)
        policy.save(first / "policy")
        critic.save(first / "critic")
        assert policy.poll_save(wait=True)
        assert critic.poll_save(wait=True)
        yield Pair(policy, critic, first, model)


@pytest.fixture
def pair(started: Pair) -> Pair:
    """Learners in their first state; that loading brings it back is what every test here relies
    on.
    """
    started.policy.load(started.first / "policy")
    started.critic.load(started.first / "critic")
    return started


def snapshot(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.weights()}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, fp32."""
    found = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach().float() for name, tensor in found}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(
            left[name],
            right[name],
            atol=tolerance,
            rtol=0.0,
            msg=lambda m, name=name: f"{name}: {m}",
        )


def hand_written_steps(model: nn.Module, batches: list[Batch]) -> list[float]:
    """REINFORCE with AdamW as a textbook has it: no packing, no micro-batches.

    Returns the gradients' norms.
    """
    decayed = torch.optim.AdamW(
        model.parameters(), OPTIMIZER.lr, OPTIMIZER.betas, OPTIMIZER.eps, OPTIMIZER.weight_decay
    )
    norms = []
    for step, batch in enumerate(batches):
        decayed.param_groups[0]["lr"] = OPTIMIZER.lr * min(1.0, (step + 1) / 2)
        loss = (
            -(batch["advantage"] * plain_logprobs(model, batch) * batch.mask).sum()
            / batch.mask.sum()
        )
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        decayed.step()
        decayed.zero_grad()
    return norms


def test_learner_logprobs_match_plain_forward_pass(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    expected = plain_logprobs(plain_model(pair.model), batch)
    logprob = pair.policy.logprobs(batch)
    assert logprob.dtype == torch.float32
    torch.testing.assert_close(logprob.double(), expected, atol=1e-5, rtol=0.0)
    assert (logprob[~batch.mask] == 0).all()


@pytest.mark.parametrize("k", [3, VOCABULARY])
def test_topk_tokens_and_logprobs_match_unfiltered_forward_pass(pair: Pair, k: int) -> None:
    batch, model = (
        ragged(LENGTHS, sampling=SamplingParams(max_tokens=8, temperature=0.7, top_k=2)),
        plain_model(pair.model),
    )
    token, logprob = pair.policy.topk(batch, k)
    assert (token.dtype, logprob.dtype) == (torch.int64, torch.float32)
    tables = [
        plain_logits(model, sequence).log_softmax(-1).roll(1, 0) for sequence in batch.sequences()
    ]
    table = torch.cat(tables)[batch.mask]
    likeliest = torch.arange(k).expand(len(table), -1) if k == VOCABULARY else table.topk(k).indices
    expected = table.gather(1, likeliest)
    assert torch.equal(token[batch.mask], likeliest)
    torch.testing.assert_close(logprob[batch.mask].double(), expected, atol=1e-5, rtol=0.0)
    assert (logprob[~batch.mask] == 0).all()


def test_critic_values_are_shifted_right_by_one_token(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    value, final = pair.critic.values(batch)
    head = {name: tensor for name, tensor in pair.critic.weights() if name.startswith("value.")}
    expected, expected_final = plain_values(pair.model, head, batch)
    torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(final.double(), expected_final, atol=1e-5, rtol=0.0)


def test_learner_logprobs_apply_sampling_temperature_top_k_and_top_p(pair: Pair) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=0.7, top_k=40, top_p=0.95)
    batch = ragged(LENGTHS, sampling=sampling)
    model, expected = plain_model(pair.model), []
    for sequence in batch.sequences():
        table = plain_filtered(plain_logits(model, sequence), sampling).log_softmax(-1)
        expected.append(torch.cat([torch.zeros(1), table[:-1].gather(1, sequence[1:, None])[:, 0]]))
    scored = torch.cat(expected)
    inside = batch.mask & torch.isfinite(scored)
    assert 20 < int(inside.sum()) < int(batch.mask.sum())
    logprob = pair.policy.logprobs(batch)
    torch.testing.assert_close(logprob[inside].double(), scored[inside], atol=1e-5, rtol=0.0)
    assert torch.isfinite(logprob).all()


def test_logprobs_and_values_do_not_depend_on_row_order(pair: Pair) -> None:
    batch, order = ragged(LENGTHS), [3, 0, 7, 5, 1, 6, 2, 4]
    shuffled, back = batch.select(order), torch.argsort(torch.tensor(order))
    logprob = Batch(pair.policy.logprobs(shuffled), shuffled.lengths).select(back).tokens
    torch.testing.assert_close(logprob, pair.policy.logprobs(batch), atol=2e-6, rtol=0.0)
    value, final = pair.critic.values(shuffled)
    torch.testing.assert_close(final[back], pair.critic.values(batch)[1], atol=2e-6, rtol=0.0)
    torch.testing.assert_close(
        Batch(value, shuffled.lengths).select(back).tokens,
        pair.critic.values(batch)[0],
        atol=2e-6,
        rtol=0.0,
    )


def test_three_training_steps_match_hand_written_adamw_loop(pair: Pair) -> None:
    batches = [ragged(LENGTHS, seed) for seed in range(3)]
    model = plain_model(pair.model)
    norms = hand_written_steps(model, batches)
    first = snapshot(pair.policy)
    for step, batch in enumerate(batches):
        metrics = train(pair.policy, batch, WeightedLogprob()).floats()
        assert metrics["grad_norm"] == pytest.approx(norms[step], rel=1e-5)
        assert metrics["lr"] == pytest.approx(OPTIMIZER.lr * min(1.0, (step + 1) / 2))
    weights = snapshot(pair.policy)
    assert_close(weights, tensors(model), 1e-6)
    moved = torch.cat([(weights[name] - first[name]).abs().flatten() for name in weights])
    assert moved.quantile(0.5) > 1e-5


def test_metrics_are_exact_over_micro_batches_and_ranks(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    expected = -float(plain_logprobs(plain_model(pair.model), batch).detach().sum()) / int(
        batch.mask.sum()
    )
    metrics = pair.policy.forward_backward(batch, WeightedLogprob()).floats()
    assert metrics["surprise"] == pytest.approx(expected, rel=1e-6)


def test_critic_training_lowers_squared_error_every_step(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    errors = [train(pair.critic, batch, SquaredError()).floats()["error"] for _ in range(8)]
    assert errors == sorted(errors, reverse=True)
    value, _ = pair.critic.values(batch)
    now = ((value - batch["return"])[batch.mask] ** 2).mean()
    assert now < errors[-1]


def test_accumulated_gradients_match_concatenated_batch(pair: Pair) -> None:
    one, two = ragged(LENGTHS, 1), ragged((3, 28, 5), 2)
    train(pair.policy, concat_batches([one, two]), WeightedLogprob())
    together = snapshot(pair.policy)
    pair.policy.load(pair.first / "policy")
    pair.policy.forward_backward(one, WeightedLogprob())
    pair.policy.forward_backward(two, WeightedLogprob())
    pair.policy.optim_step()
    assert_close(snapshot(pair.policy), together, 1e-6)


def test_last_logprobs_are_those_of_the_newest_pass_in_batch_order(pair: Pair) -> None:
    with pytest.raises(InputError, match=r"last_logprobs: call forward_backward\(batch, loss\)"):
        pair.policy.last_logprobs()
    for batch in (ragged((3, 28, 5), 2), ragged(LENGTHS)):
        expected = pair.policy.logprobs(batch)
        pair.policy.forward_backward(batch, WeightedLogprob())
        torch.testing.assert_close(pair.policy.last_logprobs(), expected, atol=2e-6, rtol=0.0)
    pair.critic.forward_backward(ragged(LENGTHS), SquaredError())
    with pytest.raises(InputError, match="of a policy first"):
        pair.critic.last_logprobs()


def test_given_learning_rate_replaces_the_schedule_for_one_update(pair: Pair) -> None:
    pair.policy.forward_backward(ragged(LENGTHS), WeightedLogprob())
    before = snapshot(pair.policy)
    with pytest.raises(InputError, match="optim_step: lr is nan; use a finite number of at least"):
        pair.policy.optim_step(lr=math.nan)
    assert pair.policy.optim_step(lr=0.0).floats()["lr"] == 0.0
    assert_same(snapshot(pair.policy), before)
    assert train(pair.policy, ragged(LENGTHS), WeightedLogprob()).floats()["lr"] == OPTIMIZER.lr


def test_loss_denominator_rows_divides_by_number_of_rows(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    rows = int((batch.per_sample(batch.mask.float()) > 0).sum())
    tokens = int(batch.mask.sum())
    pair.policy.forward_backward(batch, WeightedLogprob(scale=rows / tokens, denominator="rows"))
    by_rows = pair.policy.optim_step().floats()["grad_norm"]
    pair.policy.load(pair.first / "policy")
    by_tokens = train(pair.policy, batch, WeightedLogprob()).floats()["grad_norm"]
    assert by_rows == pytest.approx(by_tokens, rel=1e-5)


def test_all_masked_batch_skips_update_and_keeps_schedule(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    before = snapshot(pair.policy)
    metrics = train(
        pair.policy, batch.with_columns({"mask": torch.zeros_like(batch.mask)}), WeightedLogprob()
    )
    assert metrics.floats()["updates_skipped"] == 1.0
    assert_same(snapshot(pair.policy), before)
    assert train(pair.policy, batch, WeightedLogprob()).floats()["lr"] == pytest.approx(
        OPTIMIZER.lr / 2
    )


def test_learner_loaded_from_save_continues_bit_for_bit(pair: Pair, tmp_path: Path) -> None:
    batches = [ragged(LENGTHS, seed) for seed in range(4)]
    for batch in batches[:2]:
        train(pair.policy, batch, WeightedLogprob())
    pair.policy.save(tmp_path / "policy")  # goes on being written while the learner learns
    saved = snapshot(pair.policy)
    last = [train(pair.policy, batch, WeightedLogprob()).floats() for batch in batches[2:]]
    expected = snapshot(pair.policy)
    pair.policy.forward_backward(batches[0], WeightedLogprob())
    assert pair.policy.poll_save(wait=True)
    pair.policy.load(tmp_path / "policy")
    assert_same(snapshot(pair.policy), saved)
    assert [train(pair.policy, batch, WeightedLogprob()).floats() for batch in batches[2:]] == last
    assert_same(snapshot(pair.policy), expected)


def test_learner_weights_have_checkpoint_names_and_values(pair: Pair) -> None:
    weights = snapshot(pair.policy)
    buffers = {name for name, _ in plain_model(pair.model).named_buffers()}
    assert buffers < weights.keys()
    kept = {name: tensor for name, tensor in weights.items() if name not in buffers}
    assert_same(kept, load_file(pair.model / "model.safetensors"))


def test_learner_trains_after_refused_batch_and_reload(pair: Pair) -> None:
    batch = ragged(LENGTHS)
    lame = replace(batch, token={"mask": batch.mask})
    with pytest.raises((KeyError, RuntimeError), match="no column 'advantage'"):
        pair.policy.forward_backward(lame, WeightedLogprob())
    pair.policy.load(pair.first / "policy")
    assert train(pair.policy, batch, WeightedLogprob()).floats()["lr"] == pytest.approx(
        OPTIMIZER.lr / 2
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_scores_like_transformers(
    models: Callable[..., Path], architecture: str
) -> None:
    folder, batch = models(architecture), ragged(LENGTHS)
    policy = LearnerSpec(str(folder), "logits", SECTION, None, 0).build()
    expected = plain_logprobs(plain_model(folder), batch)
    torch.testing.assert_close(policy.logprobs(batch).double(), expected, atol=1e-5, rtol=0.0)
    critic = LearnerSpec(str(folder), "value", SECTION, None, 0).build()
    head = dict(critic.weights())
    torch.testing.assert_close(
        critic.values(batch)[0].double(), plain_values(folder, head, batch)[0], atol=1e-5, rtol=0.0
    )


@pytest.mark.parametrize("budget", [1, 33, 100_000])
def test_micro_batches_change_no_gradient(models: Callable[..., Path], budget: int) -> None:
    batch, folder = ragged(LENGTHS), models("qwen3")
    section = SECTION.model_copy(update={"micro_batch_tokens": budget})
    learner = LearnerSpec(str(folder), "logits", section, OPTIMIZER, 0).build()
    learner.forward_backward(batch, WeightedLogprob())
    model = plain_model(folder)
    (-(batch["advantage"] * plain_logprobs(model, batch)).sum()).backward()
    expected = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    largest = max(float(grad.abs().max()) for grad in expected.values())
    gradients = {
        name.removeprefix("lm."): p.grad
        for name, p in learner.model.named_parameters()
        if p.grad is not None
    }
    assert_close(gradients, expected, 2e-6 * largest)


def test_bf16_learner_keeps_fp32_weight_updates_of_1e_5(models: Callable[..., Path]) -> None:
    batch, folder = ragged(LENGTHS), models("llama")
    section = SECTION.model_copy(update={"dtype": "bf16"})
    settings = OPTIMIZER.model_copy(
        update={"lr": 1e-5, "eps": 1e-12, "weight_decay": 0.0, "max_grad_norm": None}
    )
    settings = settings.model_copy(
        update={"schedule": OPTIMIZER.schedule.model_copy(update={"warmup_steps": 0})}
    )
    learner = LearnerSpec(str(folder), "logits", section, settings, 0).build()
    exact = plain_logprobs(plain_model(folder), batch)
    rounded = (learner.logprobs(batch).double() - exact).abs().max()
    assert 1e-3 < rounded < 1.0, "the computation is not in bf16, or not in step with fp32"
    before = snapshot(learner)
    train(learner, batch, WeightedLogprob())
    after = snapshot(learner)
    gains = "model.norm.weight"
    assert after[gains].dtype == torch.float32
    step = (after[gains] - before[gains]).abs()
    torch.testing.assert_close(step, torch.full_like(step, 1e-5), rtol=0.02, atol=0.0)


@pytest.mark.parametrize("budget", [64, 4096])
def test_stories260k_logprobs_match_transformers(assets: Path, budget: int) -> None:
    folder = assets / "models/stories260K/hf"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    batch = ragged((40, 3, 25, 64, 9))
    section = SECTION.model_copy(update={"micro_batch_tokens": budget})
    learner = LearnerSpec(str(folder), "logits", section, None, 0).build()
    with torch.no_grad():
        expected = plain_logprobs(model, batch)
    torch.testing.assert_close(learner.logprobs(batch), expected, atol=1e-5, rtol=0.0)
