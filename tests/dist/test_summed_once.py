"""What ranks send where FSDP cuts a model: bf16 weights, and gradients once per batch.

It changes no number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Layout
from ranks import Ranks as Pool
from tiny_models import OPTIMIZER, SECTION, SquaredError, WeightedLogprob, over, ragged
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep.algorithms.roles import Load
from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.worker_proxy import RemoteError
from lockstep.config import LearnerSection, LoRA, Parallel
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.distributed.ranks import RankMesh
from lockstep.learners.base import train
from lockstep.losses.base import Denominator, Outputs
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.memory import ModelRank
from lockstep.plan.sizes import ModelSizes

pytestmark = pytest.mark.needs("gloo")
Models = Callable[..., Path]
LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)
LAYERS = 2
ALONE = SECTION.model_copy(update={"dtype": "bf16", "micro_batch_tokens": 1})
"""Passes of one sequence: bf16 rounds what is summed within a pass, and layouts pack passes
otherwise.
"""


def spec_of(
    models: Models, architecture: str = "qwen3", head: Any = "logits", **options: Any
) -> LearnerSpec:
    section = LearnerSection.model_validate(ALONE.model_dump() | options)
    return LearnerSpec(str(models(architecture)), head, section, OPTIMIZER, seed=0)


@pytest.mark.parametrize(
    ("parallel", "architecture", "head", "lora"),
    [
        ({"dp": 2}, "qwen3", "logits", None),
        ({"dp": 2}, "gpt neox", "value", None),
        pytest.param({"dp": 2}, "llama", "logits", LoRA(rank=4), marks=pytest.mark.full),
        pytest.param(
            {"dp_replicate": 2, "dp": 2}, "qwen2 tied", "logits", None, marks=pytest.mark.full
        ),
        pytest.param({"dp_replicate": 2}, "qwen3", "value", None, marks=pytest.mark.proof),
    ],
    ids=["policy", "critic", "adapters", "copies", "critic copies"],
)
def test_bf16_training_over_ranks_matches_one_process(
    models: Models, parallel: dict[str, int], architecture: str, head: Any, lora: LoRA | None
) -> None:
    """Norms, biases and a value head among them: what one process computes in fp32 is not rounded
    on its way.
    """
    spec, loss = (
        spec_of(models, architecture, head, lora=lora),
        WeightedLogprob() if head == "logits" else SquaredError(),
    )
    one = spec.build()
    with closing(launch_learner(over(spec, **parallel), timeout_s=400.0)) as many:
        batch = ragged(LENGTHS)
        if head == "logits":
            assert torch.equal(many.logprobs(batch), one.logprobs(batch))
        else:
            assert all(map(torch.equal, many.values(batch), one.values(batch)))
        for seed in range(3):
            alone, together = (
                train(learner, ragged(LENGTHS, seed), loss).floats() for learner in (one, many)
            )
            assert together == pytest.approx(alone, rel=1e-6)
        expected = dict(one.weights())
        for name, tensor in many.weights():
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0.0)


class Watch(TorchDispatchMode):
    """Notes what a rank sends in turn, (operation, type, bytes of all ranks), and its products
    between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, torch.dtype, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d":
            whole = max(
                (x for x in tree_leaves(args) if isinstance(x, Tensor)), key=lambda x: x.nbytes
            )
            self.events.append((name, whole.dtype, whole.nbytes))
        elif name in ("mm", "addmm"):
            self.events.append(("product", args[-1].dtype, 0))
        return func(*args, **(kwargs or {}))


def learn(layout: Layout, spec: LearnerSpec, passes: int) -> list[tuple[str, torch.dtype, int]]:
    """A step of one rank, in passes of one sequence each."""
    learner = spec.build(RankMesh.from_sizes("cpu", spec.section.parallel.model_dump()))
    batch = ragged((9,) * passes, layout.rank)
    train(learner, batch, WeightedLogprob())  # the first step prepares FSDP
    with Watch() as watch:
        train(learner, batch, WeightedLogprob())
    return watch.events


@pytest.mark.parametrize(
    ("dtype", "options", "parallel"),
    [
        ("bf16", {}, {"dp": 4}),
        ("bf16", {}, {"dp_replicate": 2, "dp": 2}),
        ("bf16", {"sync_every_pass": True}, {"dp": 4}),
        ("bf16", {"activation_checkpointing": True}, {"dp": 4}),
        ("bf16", {"cpu_offload": True}, {"dp": 4}),
        ("fp32", {}, {"dp": 4}),
    ],
    ids=["bf16", "copies", "every pass", "checkpointed", "offload", "fp32"],
)
def test_fsdp_step_sends_the_planned_bytes_and_gradient_reductions(
    ranks: Pool, models: Models, dtype: str, options: dict[str, bool], parallel: dict[str, int]
) -> None:
    """Layers twice a pass, in bf16 where they are computed in it, the rest once; gradients once, or
    in every pass.
    """
    passes, every = 3, "sync_every_pass" in options
    spec = over(
        spec_of(models, "llama", dtype=dtype, parallel=Parallel(dp=4), **options), **parallel
    )
    events = ranks.run(learn, spec, passes, cp=4)[0]
    gathers = [(kind, size) for name, kind, size in events if name == "_allgather_base_"]
    narrow = dtype == "bf16" and "cpu_offload" not in options
    kinds = Counter(kind for kind, _ in gathers)
    assert kinds == (
        {torch.bfloat16: 2 * LAYERS * passes, torch.float32: 1}
        if narrow
        else {torch.float32: 2 * LAYERS * passes + 1}
    )
    sums = [(kind, size) for name, kind, size in events if name == "_reduce_scatter_base_"]
    assert len(sums) == (passes if every else 1) * (LAYERS + 1)
    assert {kind for kind, _ in sums} == {torch.float32}
    model = build_skeleton(read_config(spec.model), spec.model)
    rows = passes * spec.section.parallel.row_shares
    planned = ModelRank(
        ModelSizes.from_model(model),
        spec.section.model_copy(update={"micro_batch_tokens": 9}),
        Load(9, 1, rows),
    )
    gathered = passes * 2 * planned.sizes.layers * planned.gathered_layer + planned.root_bytes
    assert sum(size for _, size in gathers) == pytest.approx(gathered, rel=0.01)
    vectors = 4 * planned.sizes.layers * planned.sizes.norms if planned.gathers_half else 0
    summed = (passes if every else 1) * (planned.learned_bytes - vectors)
    assert sum(size for _, size in sums) == pytest.approx(summed, rel=0.01)
    norms = [size for name, _, size in events if name == "allreduce_" and size == vectors]
    assert len(norms) == int(narrow), "over all ranks at once"
    squares = [size for name, _, size in events if name == "allreduce_" and size == 4]
    assert len(squares) == 2, "the count of tokens, and the gradient's square"


class FailsLater:
    """`WeightedLogprob`, which can be computed of one pass alone."""

    denominator: Denominator = "tokens"

    def __init__(self) -> None:
        self._passes = 0

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        self._passes += 1
        if self._passes == 2:
            raise ValueError("pass 2")
        return WeightedLogprob()(outputs, batch)


def test_checkpoint_load_drops_gradients_of_interrupted_batch(
    models: Models, tmp_path: Path
) -> None:
    """A pass has left gradients that are not summed yet; loading a checkpoint drops them."""
    batch = ragged((9,) * 8)
    with closing(launch_learner(over(spec_of(models), dp=2), timeout_s=400.0)) as many:
        many.save(tmp_path)
        assert many.poll_save(wait=True)
        expected = train(many, batch, WeightedLogprob()).floats()
        many.load(tmp_path)
        with pytest.raises(RemoteError, match="pass 2"):
            many.forward_backward(batch, FailsLater())
        many.load(tmp_path)
        assert train(many, batch, WeightedLogprob()).floats() == expected, "bit for bit"


def test_gradients_of_several_batches_on_two_ranks_match_one_process(models: Models) -> None:
    one, batches = spec_of(models).build(), [ragged(LENGTHS, seed) for seed in range(3)]
    with closing(launch_learner(over(spec_of(models), dp=2), timeout_s=400.0)) as many:
        for learner in (one, many):
            for batch in batches:
                learner.forward_backward(batch, WeightedLogprob())
        assert many.optim_step().floats() == pytest.approx(one.optim_step().floats(), rel=1e-6)


@pytest.mark.parametrize("steps", [10, pytest.param(100, marks=pytest.mark.proof)])
def test_bf16_critic_loss_on_two_ranks_stays_within_5_percent_of_fp32(
    models: Models, steps: int
) -> None:
    """Returns are a function of the token before, with noise, so that the loss falls and never to
    nothing.
    """
    spec, losses = (
        spec_of(models, "llama", "value", micro_batch_tokens=100),
        list[tuple[float, float]](),
    )
    plain = replace(spec, section=spec.section.model_copy(update={"dtype": "fp32"})).build()
    with closing(launch_learner(over(spec, dp=2), timeout_s=400.0)) as many:
        for step in range(steps):
            batch = ragged(LENGTHS, step)
            noisy = batch.tokens.roll(1) / 32 - 1 + 0.3 * batch["return"]
            batch = batch.with_columns({"return": noisy})
            fp32, bf16 = (
                train(learner, batch, SquaredError()).floats()["error"] for learner in (plain, many)
            )
            assert bf16 == pytest.approx(fp32, rel=0.05), step
            losses.append((fp32, bf16))
    if steps >= 100:
        assert sum(bf16 for _, bf16 in losses[-20:]) < 0.8 * sum(bf16 for _, bf16 in losses[:20])
