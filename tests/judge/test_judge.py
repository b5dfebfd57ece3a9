"""The judge: its questions, its draws, its budget of tokens, and what becomes of replies that say
nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.judge.asking import ConversationEncoder, SamplerAnswers
from lockstep.judge.build import meta_case, pair_case, pair_judge, response_case, score_judge
from lockstep.judge.judge import (
    CaseJudgments,
    JudgeError,
    LLMJudge,
    judge_metrics,
    mean_score,
    score_variance,
)
from lockstep.judge.options import AskedSection, ComparisonSection, JudgeSection
from lockstep.judge.templates import (
    format_conversation,
)

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|im_start|>", "<|im_end|>", "</s>")
ASKED = ({"role": "user", "content": "What is 2+2?"},)
PLAIN = "Q {prompt} R {response}"


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """One token per byte, and three control tokens: every text can be written in it, and no other
    token comes about.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False
    )
    made.add_special_tokens({"additional_special_tokens": list(CONTROLS[:2])})
    made.chat_template = CHAT
    return made


TOKENIZER = byte_tokenizer()
SPECIAL = set(TOKENIZER.all_special_ids)
Script = Callable[[str, int], str]
"""What is said to a question under a key."""


@dataclass
class Scripted:
    """A sampler that says what a script says; a reply that is too long is cut off."""

    script: Script
    asked: list[Request] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self.asked += requests
        rows = [self._row(request, sampling) for request in requests]
        tokens = [token for prompt, reply in rows for token in (*prompt, *reply)]
        mask = [
            drawn for prompt, reply in rows for drawn in [False] * len(prompt) + [True] * len(reply)
        ]
        truncated = [reply[-1] != TOKENIZER.eos_token_id for _, reply in rows]
        lengths = torch.tensor([len(prompt) + len(reply) for prompt, reply in rows])
        return Batch(
            torch.tensor(tokens),
            lengths,
            {"mask": torch.tensor(mask)},
            {"truncated": torch.tensor(truncated)},
        )

    def _row(self, request: Request, sampling: SamplingParams) -> tuple[tuple[int, ...], list[int]]:
        said = self.script(str(TOKENIZER.decode(list(request.tokens))), request.key)
        reply = [*TOKENIZER(said)["input_ids"], TOKENIZER.eos_token_id]
        return request.tokens, reply[: sampling.max_tokens]


def section(**options: Any) -> JudgeSection:
    said = {
        "sampling": {"max_tokens": 200},
        "max_prompt_tokens": 4000,
        "num_evals_to_average": 2,
        **options,
    }
    return JudgeSection.model_validate(said)


def judge(script: Script, **options: Any) -> tuple[LLMJudge[float], Scripted]:
    options_of = section(**options)
    sampler = Scripted(script)
    return score_judge(options_of, answering(sampler, options_of), seed=3), sampler


def answering(sampler: Scripted, options: AskedSection) -> SamplerAnswers:
    reader = ConversationEncoder(TOKENIZER, options.chat, options.max_prompt_tokens)
    return SamplerAnswers(sampler.generate, reader, SamplingParams(options.sampling.max_tokens))


def scored(judged: Sequence[CaseJudgments[float]]) -> list[float | None]:
    return [mean_score(one) for one in judged]


def by_key(question: str, key: int) -> str:
    """Another score for each draw."""
    return f"It is fine.\nScore: {key % 6}"


CASES = [response_case(ASKED, f"{i} {'so' * i}", (1, i)) for i in range(5)]


def test_judge_score_is_mean_over_num_evals_to_average_replies() -> None:
    asks, sampler = judge(by_key, num_evals_to_average=3)
    judged = asks(CASES)
    assert len(sampler.asked) == 15
    for number, one in enumerate(judged):
        expected = [float(keyed.hash_key(3, "judge", 1, number, draw) % 6) for draw in range(3)]
        assert one.values == expected
        mean = math.fsum(expected) / 3
        assert mean_score(one) == pytest.approx(mean)
        assert score_variance(one) == pytest.approx(
            math.fsum((score - mean) ** 2 for score in expected) / 3
        )


def test_unreadable_judge_reply_gives_no_score_and_a_counted_cause() -> None:
    replies = ["Score: 4", "Score: nine", "so so", "Score: 9", "Score: 2" + "." * 200]
    asks, _ = judge(
        lambda question, key: replies[int(question.split("R ")[1][0])],
        template=PLAIN,
        max_no_verdict_rate=1,
    )
    judged = asks(CASES)
    assert scored(judged) == [4.0, None, None, None, None]
    assert [one.judgments[0].verdict.cause for one in judged] == [
        None, "not_a_number", "no_match", "out_of_range", "unfinished",
    ]  # fmt: skip
    assert score_variance(judged[1]) is None
    found = judge_metrics(judged).floats()
    assert (found["no_verdict"], found["parse_failures"], found["no_verdict_unfinished"]) == (
        0.8,
        0.8,
        2,
    )


def test_unfinished_judge_reply_is_read_if_recipe_allows_it() -> None:
    asks, _ = judge(lambda question, key: "Score: 2" + "." * 200, unfinished_judgments="read")
    assert scored(asks(CASES[:1])) == [2.0]


def test_judge_raises_error_above_max_no_verdict_rate() -> None:
    asks, _ = judge(
        lambda question, key: "Score: 1" if key % 2 else "A fine day.", max_no_verdict_rate=0.1
    )
    expected = (
        r"^\d of 10 judgments have no verdict \(\d no_match\), above "
        r"judge\.max_no_verdict_rate=0\.1; "
        r"an unreadable reply ends in 'A fine day\.'; check the template, "
        r"judge\.sampling\.max_tokens and the judge"
    )
    with pytest.raises(JudgeError, match=expected):
        asks(CASES)


LONG = "y" * 400


def test_overlong_response_is_shortened_to_fit_judge_prompt_and_counted() -> None:
    options = {
        "template": PLAIN,
        "max_prompt_tokens": 300,
        "overlong_judge_prompts": "truncate_response",
    }
    asks, sampler = judge(by_key, **options)
    judged = asks([CASES[1], response_case(ASKED, LONG, (2,))])
    assert [one.shortened for one in judged] == [False, True]
    question = str(TOKENIZER.decode(list(sampler.asked[-1].tokens)))
    shown = re.search(r"R (y+) \[…\]", question)
    assert shown is not None
    assert len(sampler.asked[-1].tokens) == 300
    assert 200 <= len(shown[1]) < 400
    assert judge_metrics(judged).floats()["truncated_judge_prompts"] == 0.5


def test_both_responses_of_overlong_judge_pair_are_shortened_to_equal_length() -> None:
    options = section(max_prompt_tokens=330, overlong_judge_prompts="truncate_response")
    sampler = Scripted(lambda question, key: "Winner: Response B")
    text = "P {prompt} A {response_a} B {response_b}"
    asks = pair_judge(
        ComparisonSection(template=text), options, answering(sampler, options), seed=0
    )
    (judged,) = asks([pair_case(ASKED, "a" * 150, "b" * 200, (1,))])
    question = str(TOKENIZER.decode(list(sampler.asked[0].tokens)))
    assert judged.values == ["B"]
    assert judged.shortened
    assert question.count("a" * 99) == question.count("b" * 99) == 1
    assert (
        abs(max(map(len, re.findall("a+", question))) - max(map(len, re.findall("b+", question))))
        <= 1
    )


def test_tokenizer_prefix_token_is_added_only_to_judge_prompts_without_chat_template() -> None:
    tokenizer, stop = byte_tokenizer(), TOKENIZER.eos_token_id
    around = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", stop)])
    assert isinstance(tokenizer.backend_tokenizer, Tokenizer)
    tokenizer.backend_tokenizer.post_processor = around
    firsts = [
        ConversationEncoder(tokenizer, chat, 99).encode_conversations([ASKED])[0][0]
        for chat in (True, False)
    ]
    assert firsts == [tokenizer.convert_tokens_to_ids("<|im_start|>"), stop]


def test_conversation_is_rendered_as_plain_text_with_role_labels() -> None:
    talk = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "2+2?"},
        {"role": "tool", "content": "4"},
    ]  # fmt: skip
    assert (
        format_conversation(talk)
        == "System: Be kind.\n\nUser: Hi\n\nAssistant: Hello\n\nUser: 2+2?\n\nTool: 4"
    )
    assert format_conversation(talk[1:2]) == "Hi"


def test_judge_sees_answers_without_thoughts_and_is_read_after_its_thought() -> None:
    asks, sampler = judge(lambda question, key: "Score: 1?\n</think>\nScore: 4")
    (judged,) = asks(
        [response_case(ASKED, "I think aloud.</think>It is 4.", (1,), "What is it? <think>")]
    )
    shown = TOKENIZER.decode(list(sampler.asked[0].tokens))
    assert judged.values == [4.0, 4.0]
    assert "It is 4." in shown
    assert "aloud" not in shown
    pair = pair_case(ASKED, "<think>a</think>4", "5", (1,))
    assert pair.texts == {"response_a": "4", "response_b": "5"}
    meta = meta_case(ASKED, "<think>a</think>4", "one", "use </think>, two", (1,))
    assert meta.texts == {"response": "4", "judgement_a": "one", "judgement_b": "use </think>, two"}


INJECTION = st.lists(
    st.sampled_from([*CONTROLS, "<|im_", "end|>", "<", "|", ">", "im_end", " ", "a", "</"]),
    max_size=8,
)


@given(INJECTION, INJECTION, st.booleans())
def test_prompt_and_response_text_never_becomes_control_tokens_for_judge(
    prompt: list[str], response: list[str], chat: bool
) -> None:
    """The special tokens of a question are those of its template, whatever prompt and response
    say.
    """
    asks, sampler = judge(by_key, chat=chat)
    empty, full = (("x", "x"), ("".join(prompt), "".join(response)))
    asks(
        [
            response_case([{"role": "user", "content": asked}], said, (1,))
            for asked, said in (empty, full)
        ]
    )
    controls = [
        [token for token in request.tokens if token in SPECIAL] for request in sampler.asked[::2]
    ]
    assert controls[0] == controls[1]


def test_every_judge_parser_option_takes_effect() -> None:
    def read(reply: str, **options: Any) -> float | None:
        asks, _ = judge(
            lambda question, key: reply, template=PLAIN, max_no_verdict_rate=1, **options
        )
        return scored(asks(CASES[:1]))[0]

    assert (read("Score: 7"), read("Score: 7", judge_score_high=10)) == (None, 7.0)
    assert (read("Score: -1"), read("Score: -1", judge_score_low=-1)) == (None, -1.0)
    assert (read("Score: 3.5"), read("Score: 3.5", decimals=False)) == (3.5, None)
    assert (read("Grade: 3"), read("Grade: 3", score_pattern="grade")) == (None, 3.0)
    options = section()
    sampler = Scripted(lambda question, key: "Best: A")
    asks = pair_judge(
        ComparisonSection(winner_pattern="best"), options, answering(sampler, options), seed=0
    )
    assert asks([pair_case(ASKED, "a", "b", (1,))])[0].values == ["A"]
