"""Fakes that implement the protocols by a table: the next token depends on the last one alone, so all is exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import draw, token_scores
from lockstep.learners.base import Learner
from lockstep.losses.base import Loss, Outputs, active
from lockstep.metrics import Mean, Metrics
from lockstep.rollouts.rollout import PromptStream
from lockstep.samplers.base import Piece
from lockstep.types import Prompt, Request, SamplingParams
from lockstep.weight_sync.attestation import Attestation
from lockstep.weight_sync.fingerprints import fingerprint

TOKENS = 4


class TabularLearner(Learner):
    """A learner whose model is a table of logits and a table of values, both by the token before."""

    def __init__(self, lr: float) -> None:
        self.logits = torch.zeros(TOKENS, TOKENS, requires_grad=True)
        self.value = torch.zeros(TOKENS, requires_grad=True)
        self._lr, self._count = lr, 0.0

    def logprobs(self, batch: Batch) -> Tensor:
        return self._logprob(batch)[0].detach()

    def topk(self, batch: Batch, k: int) -> tuple[Tensor, Tensor]:
        table = self.logits.detach().log_softmax(-1)[batch.tokens.roll(1)]
        logprob, token = (table, torch.arange(TOKENS).expand_as(table)) if k == TOKENS else table.topk(k)
        return token * batch.mask[:, None], logprob * batch.mask[:, None]

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        last = batch.tokens[batch.starts + batch.lengths - 1]
        return self._value(batch).detach(), self.value[last].detach()

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        total, metrics = loss(self._outputs(batch), batch)
        total.backward()
        self._count += float(active(batch, loss.denominator))
        return metrics

    def optim_step(self) -> Metrics:
        with torch.no_grad():
            for table in (self.logits, self.value):
                if table.grad is not None:
                    table -= self._lr * table.grad / max(self._count, 1.0)
                    table.grad = None
        self._count = 0.0
        return Metrics(lr=Mean(self._lr))

    def reset_optimizer(self) -> None:
        """Nothing to forget: there are no moments."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "logits", self.logits.detach()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"logits": self.logits.detach(), "value": self.value.detach()}, folder / "model.safetensors")

    def poll_save(self, wait: bool) -> bool:
        return True

    def load(self, folder: Path) -> None:
        saved = load_file(folder / "model.safetensors")
        with torch.no_grad():
            self.logits.copy_(saved["logits"])
            self.value.copy_(saved["value"])

    def _outputs(self, batch: Batch) -> Outputs:
        logprob, entropy = self._logprob(batch)
        return Outputs(logprob=logprob, entropy=entropy, value=self._value(batch))

    def _logprob(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies."""
        sampling = batch.sampling or SamplingParams(1)
        logprob, entropy = token_scores(self.logits[batch.tokens.roll(1)], batch.tokens, sampling)
        return logprob * batch.mask, entropy * batch.mask

    def _value(self, batch: Batch) -> Tensor:
        return self.value[batch.tokens.roll(1)] * (batch.position > 0)


class TabularSampler:
    """Draws `max_tokens` tokens from a table of its own, which `load_weights` replaces; writes down what it is told."""

    dtype = torch.float32

    def __init__(self) -> None:
        self.logits = torch.zeros(TOKENS, TOKENS)
        self.version: int | None = None
        self.phases: list[str] = []

    def wake(self) -> None:
        self.phases.append("wake")

    def sleep(self) -> None:
        self.phases.append("sleep")

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        yield range(len(requests)), self.generate(requests, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        logprob, _ = token_scores(self.logits[batch.tokens.roll(1)], batch.tokens, SamplingParams(1))
        return logprob * batch.mask

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self.phases.append("generate")
        count, length = len(requests), sampling.max_tokens
        uniform = keyed.uniforms(torch.tensor([request.key for request in requests]), torch.arange(length))
        tokens = torch.tensor([request.tokens[:1] for request in requests])
        logprobs = torch.zeros(count, 1)
        for k in range(length):
            token, logprob = draw(self.logits[tokens[:, -1]], uniform[:, k], sampling)
            tokens = torch.cat([tokens, token[:, None]], 1)
            logprobs = torch.cat([logprobs, logprob[:, None]], 1)
        mask = (torch.arange(length + 1) > 0).repeat(count)
        return Batch(
            tokens.reshape(-1),
            torch.full((count,), length + 1),
            {"mask": mask, "sampler_logprob": logprobs.reshape(-1)},
            {
                "truncated": torch.zeros(count, dtype=torch.bool),
                "version": torch.full((count,), self.version or 0),
                "request": torch.arange(count),
            },
            sampling,
        )

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]:
        self.phases.append(f"load {version}")
        self.logits, self.version = dict(stream)["logits"].clone(), version
        return [Attestation(version, {"logits": fingerprint(self.logits)})]


class OnePrompt(PromptStream):
    """A source of prompts that gives the token 0, for ever."""

    def at(self, position: int, count: int, seed: int) -> list[Prompt]:
        return [Prompt(f"{position + i}", "0", (0,), {}) for i in range(count)]

    def answer(self, prompt: Prompt) -> str:
        return ""
