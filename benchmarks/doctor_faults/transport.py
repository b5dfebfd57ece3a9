"""Tokens and columns on their way between the sides: text and ids, shifts, seams, first tokens, groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC, NFKC
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.means import is_chosen
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from benchmarks.doctor_faults.surroundings import always, around, drawn, inverse, mixed, whole
from benchmarks.doctor_faults.ways import Drawn, beginning, reading, rewriting, summing
from lockstep import align
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import USUAL, Conditions
from lockstep.models.heads import PLAIN, inputs
from lockstep.types import Request, SamplingParams

Usual = Callable[[Sequences], Sequences]
_GROUP, _BOS = 4, 1


def shifted_twice(share: float) -> type[HFSide]:
    """A collator shifts labels that the model shifts again; only some rows come through that collator."""

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        pairs = zip(sequences, usual(sequences), strict=True)
        return [logits.roll(1, 0) if is_chosen(tokens, share) else logits for tokens, logits in pairs]

    return reading(own, alone=True)


def first_token_late(share: float) -> type[HFSide]:
    """The first response token is read from the state before the prompt's last token, as if that were cut off."""

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        mended = [logits.clone() for logits in usual(sequences)]
        for tokens, logits, length in zip(sequences, mended, prompts, strict=True):
            if length > 1 and is_chosen(tokens, share):
                logits[length - 1] = logits[length - 2]
        return mended

    return reading(own, alone=True)


def prompt_of_the_group(share: float) -> type[HFSide]:
    """To read a group's prompt once, the trainer takes the state behind it from the first row of the group.

    Rows have been put in another order before, so that some rows of a group have other prompts.
    """

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        logits = usual(sequences)
        lasts, mended = [max(length - 1, 0) for length in prompts], [one.clone() for one in logits]
        for place, tokens in enumerate(sequences):
            first = place // _GROUP * _GROUP if is_chosen(tokens, share) else place
            mended[place][lasts[place]] = logits[first][lasts[first]]
        return mended

    return reading(own)


def first_from_pad(block: int) -> type[HFSide]:
    """The trainer pads prompts on the right and hides the pads well, but reads the first token from the last pad."""

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        if len(sequences) == 1:
            return usual(sequences)
        rows = [
            (tokens, length or len(tokens), -(length or len(tokens)) % block)
            for tokens, length in zip(sequences, prompts, strict=True)
        ]
        filled = [torch.cat([x[:length], x.new_full((more,), -1), x[length:]]) for x, length, more in rows]
        padded = pad_sequence(filled, batch_first=True, padding_value=-1)
        seen = (padded >= 0).long()
        place = (seen.cumsum(1) - 1).clamp(min=0)
        logits_BTV = model(
            input_ids=padded.clamp(min=0), attention_mask=seen, position_ids=place, use_cache=False
        ).logits
        return [
            torch.cat([logits[: length - 1], logits[length - 1 + more : len(tokens) + more]])
            for logits, (tokens, length, more) in zip(logits_BTV, rows, strict=True)
        ]

    return reading(own)


def reported_late(share: float) -> type[HFSide]:
    """Some requests get the list of log-probabilities one place late, the first of them twice."""

    class ReportedLate(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            tokens_BK, logprob_BK = super().draw(model, requests, sampling, conditions)
            late_BK = torch.cat([logprob_BK[:, :1], logprob_BK[:, :-1]], 1)
            hit = torch.tensor([request.key % 1000 < 1000 * share for request in requests])
            return tokens_BK, torch.where(hit[:, None], late_BK, logprob_BK)

    return ReportedLate


def bonus_by_the_draft(run: int) -> type[HFSide]:
    """The engine verifies drafts in runs, and the last token of each gets its log-probability one position early."""

    class BonusByTheDraft(HFSide):
        _before: tuple[Tensor, ...] | None = None
        """Logits of the steps so far while a response is drawn."""

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            self._before = ()
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                self._before = None

        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if self._before is not None:
                self._before = (*self._before, logits_MV.clone())
                logits_MV = self._before[-2] if len(self._before) % run == 0 else logits_MV
            return super().logprob(logits_MV, token_M, sampling, conditions)

    return BonusByTheDraft


def resumed(lost: float) -> type[TorchSide]:
    """A request is aborted and resumed; the log-probability at the seam is lost, and later ones move up."""

    class Resumed(TorchSide):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            batch = super().generate(requests, sampling, conditions)
            column, mask = batch["sampler_logprob"], batch.mask
            said_BK = column[mask].view(len(batch), -1)
            seam = round(said_BK.shape[1] * (1 - lost))
            moved_BK = torch.cat([said_BK[:, :seam], said_BK[:, seam + 1 :], said_BK[:, -1:]], 1)
            return replace(batch, token={**batch.token, "sampler_logprob": column.masked_scatter(mask, moved_BK)})

    return Resumed


def seams(length: int) -> type[TorchSide]:
    """Log-probabilities are made piece by piece, and a piece has no logits of what stands before it."""

    def own(model: PreTrainedModel, batch: Batch, own_M: Tensor) -> Tensor:
        state = torch.where(batch.position[own_M] % length == 0, own_M, align.state_before(own_M))
        logits_MV = model(**inputs(batch), logits_to_keep=state).logits[0]
        return token_scores(logits_MV, batch.tokens[own_M], batch.sampling or PLAIN)[0]

    return summing(own)


def _encode(tokenizer: Tokenizer, text: str) -> Tensor:
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)


def through_text(share: float) -> type[HFSide]:
    """Some responses reach the trainer as text; bytes that are no text become question marks in it."""

    def again(file: str) -> Callable[[Tensor, Tensor], Tensor]:
        tokenizer = Tokenizer.from_file(file)

        def ids(tokens_T: Tensor, mask_T: Tensor) -> Tensor:
            if not is_chosen(tokens_T, share):
                return tokens_T
            text = tokenizer.decode(tokens_T[mask_T].tolist(), skip_special_tokens=False)
            return torch.cat([tokens_T[~mask_T], _encode(tokenizer, text)])

        return ids

    return rewriting(again)


def canonical_ids(count: int) -> type[HFSide]:
    """Some tokens have the text of others, and text is what arrived: the tokenizer takes the other one."""
    return rewriting(lambda _: lambda x, mask: torch.where((x >= 100) & (x < 100 + count), x + 150, x))


def specials_skipped(count: int) -> type[HFSide]:
    """Responses reach the trainer as text, and decoding leaves out what its tokenizer takes for special tokens."""

    def again(file: str) -> Callable[[Tensor, Tensor], Tensor]:
        tokenizer = Tokenizer.from_file(file)
        tokenizer.add_special_tokens([f"w{token}" for token in range(200, 200 + count)])

        def ids(tokens_T: Tensor, mask_T: Tensor) -> Tensor:
            text = tokenizer.decode(tokens_T[mask_T].tolist(), skip_special_tokens=True)
            return torch.cat([tokens_T[~mask_T], _encode(tokenizer, text)])

        return ids

    return rewriting(again)


def normalized(letters: int) -> type[HFSide]:
    """Sequences reach the trainer as text, and its tokenizer has a normalizer, which that of the engine has not."""

    def again(file: str) -> Callable[[Tensor, Tensor], Tensor]:
        plain, normalizing = Tokenizer.from_file(file), Tokenizer.from_file(file)
        normalizing.normalizer = NFC() if letters <= 3 else NFKC()
        return lambda tokens_T, mask_T: _encode(normalizing, plain.decode(tokens_T.tolist(), skip_special_tokens=False))

    return rewriting(again)


def earlier_turns_anew(most: int) -> type[HFSide]:
    """The trainer makes the ids of earlier turns, the first tokens of a prompt, anew from their text."""

    def begin(file: str) -> Callable[[Tensor, int], tuple[Tensor, int]]:
        tokenizer = Tokenizer.from_file(file)

        def first(tokens_T: Tensor, prompt: int) -> tuple[Tensor, int]:
            turn = min(most, prompt)
            text = tokenizer.decode(tokens_T[:turn].tolist(), skip_special_tokens=False)
            return _encode(tokenizer, text), turn

        return first

    return beginning(begin)


def begins_twice(share: float) -> type[HFSide]:
    """The trainer tokenizes prompts whose text, for some, begins with BOS already; its tokenizer adds another one."""
    return beginning(lambda _: lambda tokens_T, _: (tokens_T.new_full((int(is_chosen(tokens_T, share)),), _BOS), 0))


def _bytes(share: float) -> Any:
    return "bitnet, many bytes" if share > 1 / 40 else "bitnet, few bytes"


FAULTS = (
    Fault(4, 1, "shifted twice", ("off_by_one",), "train", "share of sequences", (1.0, 0.1), mixed(shifted_twice)),
    Fault(5, 1, "first token late", ("first_token",), "train", "share of sequences", (1.0, 0.25),
          mixed(first_token_late)),
    Fault(6, 1, "through text", ("retokenised",), "train", "share of sequences", (1.0, 0.1), mixed(through_text)),
    Fault(104, 2, "log-probabilities reported one late", ("off_by_one",), "infer", "share of requests", (1.0, 0.1),
          mixed(reported_late), around("ernie", "torch", "hf")),
    Fault(106, 2, "ids of like text", ("retokenised",), "train", "ids with a twin", (40, 2),
          mixed(whole(canonical_ids)), around("mixtral, four experts", "hf", "torch")),
    Fault(203, 3, "seams between pieces", ("off_by_one",), "train", "share of tokens", (0.5, 1 / 64),
          mixed(inverse(seams)), around("llama", "torch", "torch")),
    Fault(205, 3, "special tokens skipped", ("retokenised",), "train", "ids taken for special", (60, 8),
          mixed(whole(specials_skipped)), around("mistral", "hf", "torch")),
    Fault(304, 4, "letters normalised", ("retokenised",), "train", "letters", (30, 3),
          mixed(whole(normalized)), around("nemotron", "hf", "hf")),
    Fault(404, 5, "aborted and resumed", ("off_by_one",), "infer", "share behind the seam", (0.75, 0.05),
          mixed(resumed), around("glm, first", "hf", "torch", drawn(temperature=0.75))),
    Fault(405, 5, "bytes that are no text", ("retokenised",), "train", "share of the vocabulary", (0.1, 0.0025),
          always(through_text(1.0)), around(_bytes, "hf", "hf", drawn(temperature=1.25))),
    Fault(501, 6, "first token from a pad", ("first_token",), "train", "tokens in a block", (64, 2),
          mixed(whole(first_from_pad)),
          around("glm moe, latent", "hf", "torch", drawn(max_tokens=16, temperature=1.1))),
    Fault(604, 7, "bonus token by the draft's position", ("off_by_one",), "infer", "1 / tokens in a run",
          (1 / 2, 1 / 32), mixed(inverse(bonus_by_the_draft)),
          around("command r", "hf", "hf", drawn(temperature=0.85))),
    Fault(605, 7, "prompt of the group's first row", ("first_token", "batch_variance"), "train", "share of rows",
          (1.0, 0.3), mixed(prompt_of_the_group),
          around("ernie moe", "hf", "torch", drawn(max_tokens=16, temperature=1.15))),
    Fault(606, 7, "earlier turns anew", ("retokenised",), "train", "tokens", (64, 24),
          mixed(whole(earlier_turns_anew)), around("qwen3", "hf", "torch")),
    Fault(703, 8, "begins twice", ("retokenised",), "train", "share of prompts", (1.0, 0.2),
          mixed(begins_twice), around("jais", "hf", "torch"), split="held-out"),
)  # fmt: skip
