"""The learner protocol: the methods that algorithms call, for any training backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.borders import NotFiniteError, require_logprobs
from lockstep.core.errors import RunError
from lockstep.core.metrics import Metrics
from lockstep.losses.base import Loss
from lockstep.weight_sync.outgoing import WeightSender


class NotSavedError(RunError):
    """A learner's state could not be written; the message has the reason."""


class Learner(Protocol):
    """A model with a head and an optimizer. All tensors in this interface are on the CPU."""

    def logprobs(self, batch: Batch) -> Tensor:
        """log π(x_t | x_<t) of masked tokens by `batch.sampling`, nats, fp32 [N]; 0 elsewhere."""
        ...

    def topk(self, batch: Batch, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest tokens at each masked token's position, and their log π(· | x_<t), nats.

        Returns:
            int64 and fp32 [N, k], likeliest first, or all tokens in the order of their ids if k is
        the size of the vocabulary; 0 elsewhere. π is the model's own distribution, not the sampling
        one.
        """
        ...

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """V(x_<t) of every token, fp32 [N], and V after the last token, fp32 [B].

        The first token of each sequence has value 0.
        """
        ...

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        """Adds the gradient of the summed loss to the gradient since the last `optim_step`."""
        ...

    def last_logprobs(self) -> Tensor:
        """`logprobs` of the batch of the last `forward_backward`, as that pass computed them."""
        ...

    def optim_step(self, lr: float | None = None) -> Metrics:
        """Normalizes the accumulated gradient, clips it, and updates the weights.

        The gradient is divided by the loss's denominator. The denominator is summed over all ranks.
        If it is 0, as for an empty mask, nothing is updated and `updates_skipped` is reported. If a
        gradient overflows in fp16, nothing is updated, the loss's scale is halved, and
        `updates_overflowed` is reported.

        Args:
            lr: The learning rate of this update; None: the optimizer's, by its schedule.

        Raises:
            InputError: If `forward_backward` was not called since the last `optim_step`, or `lr`
                is negative or not finite.
            FloatingPointError: If the gradient's norm is not finite; weights are unchanged, the
                gradient is dropped.
        """
        ...

    def reset_optimizer(self) -> None:
        """Resets the optimizer's moments; the learning rate schedule continues."""
        ...

    def plan_updates(self, updates: int) -> None:
        """Fits a learning rate schedule that depends on the run to its number of updates."""
        ...

    @property
    def sender(self) -> WeightSender | None:
        """Sends weights to engines from the processes that hold them; None if this one does."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Streams (name, tensor) of parameters and buffers, with Hugging Face checkpoint names."""
        ...

    def save(self, folder: Path) -> None:
        """Starts writing weights, optimizer moments and counters as safetensors and JSON.

        Returns as soon as training may continue, possibly before everything is written;
        `poll_save(wait=True)` waits for that and reports disk errors. `lockstep.save(learner,
        folder)` does both.
        """
        ...

    def poll_save(self, wait: bool) -> bool:
        """True if the last `save` is written; with `wait`, blocks until then.

        Raises:
            NotSavedError: If it could not be written.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote, bit for bit."""
        ...


def compute_logprobs(learner: Learner, batch: Batch, whose: str) -> Tensor:
    """`Learner.logprobs` with a check: raises NotFiniteError as `require_logprobs`.

    Messages call the learner `whose`, such as "the policy".
    """
    logprob_N = learner.logprobs(batch)
    require_logprobs(whose, batch, logprob_N)
    return logprob_N


def train(
    learner: Learner, batch: Batch, loss: Loss, inspect: Callable[[Metrics], None] | None = None
) -> Metrics:
    """One optimizer step on one batch.

    Args:
        learner: The learner to train.
        batch: The batch.
        loss: Loss of the batch.
        inspect: Called with the loss's metrics before the weights change; may raise to prevent the
            update.

    Raises:
        NotFiniteError: If the gradient is not finite.
    """
    try:
        metrics = learner.forward_backward(batch, loss)
        if inspect is not None:
            inspect(metrics)
        return metrics + learner.optim_step()
    except FloatingPointError as error:
        raise NotFiniteError(f"{type(loss).__name__}: {error}", batch) from error


def copy_weights(learner: Learner, successor: Learner, folder: Path) -> None:
    """Copies a learner's weights to another learner of the same kind, through a shared folder.

    Args:
        learner: Learner to copy.
        successor: Learner that gets the weights.
        folder: Folder on all machines of both; created and removed, including leftovers of a killed
            process.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        learner.save(folder)
        learner.poll_save(wait=True)
        successor.load(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
