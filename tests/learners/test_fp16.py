"""fp16: products of 16 bits with fp32 masters, a scaled loss, and updates skipped where a gradient
overflows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import (
    OPTIMIZER,
    SECTION,
    SquaredError,
    WeightedLogprob,
    over,
    plain_logprobs,
    plain_model,
    ragged,
)
from torch import Tensor

from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection
from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError
from lockstep.core.types import HeadKind
from lockstep.learners.base import Learner, train
from lockstep.learners.loss_scale import LossScale
from lockstep.learners.saving import COUNTERS
from lockstep.learners.torch.learner import TorchLearner

LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)
FP16 = SECTION.model_copy(update={"dtype": "fp16"})


@pytest.fixture
def spec(models: Callable[..., Path]) -> LearnerSpec:
    return LearnerSpec(str(models("qwen3")), "logits", FP16, OPTIMIZER, seed=0)


def build(spec: LearnerSpec, head: HeadKind = "logits") -> TorchLearner:
    learner = replace(spec, head=head).build()
    assert isinstance(learner, TorchLearner)
    return learner


def too_large(row: int) -> Batch:
    """A batch whose gradient overflows, by the tokens of one row."""
    batch = ragged(LENGTHS)
    return batch.with_columns(
        {"advantage": batch["advantage"] * torch.where(batch.row == row, 1e7, 1.0)}
    )


def state(learner: Learner, folder: Path) -> dict[str, bytes]:
    """All files of a saved learner but its counters."""
    learner.save(folder)
    assert learner.poll_save(wait=True)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != COUNTERS}


def is_near(found: list[Tensor], right: list[Tensor]) -> bool:
    """True if gradients are those in float64 to 0.5 %; fp16 has 0.23 %, bf16 1.8 %."""
    apart = sum(
        float((one.double() - other).square().sum())
        for one, other in zip(found, right, strict=True)
    )
    return apart < 0.005**2 * sum(float(other.square().sum()) for other in right)


@pytest.mark.parametrize("size", [1.0, 1e-7])
def test_fp16_gradients_match_float64_for_normal_and_tiny_losses(
    spec: LearnerSpec, size: float
) -> None:
    batch, learner = ragged(LENGTHS), build(spec)
    model = plain_model(Path(spec.model))
    logprob = plain_logprobs(model, batch)
    torch.testing.assert_close(
        learner.logprobs(batch).double(), logprob.detach(), atol=0.01, rtol=0.0
    )
    (-size * batch["advantage"].double() * logprob).sum().backward()
    named = dict(model.named_parameters())
    right = [named[piece.name.removeprefix("lm.")].grad for piece in learner.pieces]
    learner.forward_backward(batch, WeightedLogprob(size))
    assert is_near(
        [piece.read_gradient() / learner._loss_factor for piece in learner.pieces], right
    )


def test_fp32_training_with_loss_scale_is_bit_identical_to_unscaled(spec: LearnerSpec) -> None:
    """To the bit: in fp32, where a factor that is a power of two rounds nothing."""
    plain, scaled = (build(replace(spec, section=SECTION)) for _ in range(2))
    scaled._scale = LossScale()
    for seed in range(3):
        alone, together = (
            train(one, ragged(LENGTHS, seed), WeightedLogprob()).floats() for one in (plain, scaled)
        )
        assert together == alone | {"loss_scale": 2.0**16}
    for (name, one), (_, other) in zip(plain.weights(), scaled.weights(), strict=True):
        assert torch.equal(one, other), name


@pytest.fixture(params=["in process", pytest.param("two ranks", marks=pytest.mark.needs("gloo"))])
def learner(request: pytest.FixtureRequest, spec: LearnerSpec) -> Iterator[Learner]:
    if request.param == "in process":
        yield build(spec)
        return
    ranks = launch_learner(over(spec, dp=2), timeout_s=400.0)
    yield ranks
    ranks.close()


def test_fp16_overflow_skips_update_halves_scale_and_resumes_bit_for_bit(
    learner: Learner, tmp_path: Path
) -> None:
    """On all ranks, though one alone has overflowed."""
    assert train(learner, ragged(LENGTHS), WeightedLogprob()).floats()["loss_scale"] == 2.0**16
    before, drawn = state(learner, tmp_path / "before"), torch.get_rng_state()
    skipped = train(learner, too_large(row=4), WeightedLogprob()).floats()
    assert (skipped["updates_overflowed"], skipped["loss_scale"]) == (1.0, 2.0**16)
    assert not {"grad_norm", "lr"} & skipped.keys()
    assert state(learner, tmp_path / "skipped") == before
    assert torch.equal(torch.get_rng_state(), drawn)
    counters = json.loads((tmp_path / "skipped" / COUNTERS).read_text())
    assert counters == {"updates": 1, "loss_scale": 2**15, "updates_at_scale": 0}
    gone_on = train(learner, ragged(LENGTHS, 1), WeightedLogprob()).floats()
    assert gone_on["loss_scale"] == 2.0**15
    after = state(learner, tmp_path / "after")
    assert after != before
    learner.load(tmp_path / "before")
    assert train(learner, ragged(LENGTHS, 2), WeightedLogprob()).floats()["loss_scale"] == 2.0**16
    learner.load(tmp_path / "skipped")
    assert train(learner, ragged(LENGTHS, 1), WeightedLogprob()).floats() == gone_on
    assert state(learner, tmp_path / "again") == after


def test_loss_scale_doubles_after_2000_updates_and_raises_below_one() -> None:
    scale = LossScale()
    for _ in range(2000):
        assert scale.count_update().floats()["loss_scale"] == 2.0**16
    assert scale.count_update().floats()["loss_scale"] == 2.0**17
    scale.set_factor(count=100.0)
    assert scale.factor == 2.0**17 / 64
    for halvings in range(17):
        assert scale.halve_after_overflow().floats() == {
            "updates_overflowed": 1.0,
            "loss_scale": 2.0 ** (17 - halvings),
        }
    with pytest.raises(
        FloatingPointError, match=r"at a loss scale of 1; .*; set learner\.dtype=bf16$"
    ):
        scale.halve_after_overflow()


@pytest.mark.parametrize("head", ["logits", "value"])
def test_fp16_forward_overflow_error_recommends_bf16(spec: LearnerSpec, head: HeadKind) -> None:
    batch, learner = ragged(LENGTHS), build(spec, head)
    network = learner.model.get_submodule("lm.model" if head == "logits" else "backbone")
    with torch.no_grad():
        network.get_parameter("layers.0.mlp.down_proj.weight").mul_(1e7)
    with pytest.raises(
        NotFiniteError, match=r"numbers above 65,504 overflow in fp16; set learner\.dtype=bf16$"
    ):
        learner.logprobs(batch) if head == "logits" else learner.values(batch)
    loss = WeightedLogprob() if head == "logits" else SquaredError()
    with pytest.raises(
        NotFiniteError, match=r"numbers above 65,504 overflow in fp16; set learner\.dtype=bf16$"
    ):
        train(learner, batch, loss)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"dtype": "fp16", "backend": "megatron"},
            "megatron does not support fp16; set learner.dtype=bf16",
        ),
        ({"dtype": "fp8"}, "'fp32', 'bf16' or 'fp16'"),
    ],
)
def test_megatron_in_fp16_and_any_learner_in_fp8_are_refused(
    options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSection.model_validate(options)
