"""Rows that teach a small model to judge: answers whose right judgment is known, and judgments of
judgments.

The words are in no row that self-rewarding trains or is measured on (`opposites`). A judgment
first says what the judge holds for right, so that it is short and can be compared with another one.
Rows of self-instruct stand for all other instructions: their own answer is about the instruction,
that of another row is not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.mission.opposites import ask_opposite, name_opposite

PAIRS = (
    "east west, yes no, man woman, boy girl, father mother, brother sister, husband wife, come "
    "go, give take, question answer, war peace, life death, sunrise sunset, success failure, safe "
    "dangerous, simple complex, public private, guilty innocent, polite rude, awake asleep, "
    "ancient modern, arrive depart, attack defend, accept reject, always never, everything "
    "nothing, increase decrease, maximum minimum, major minor, near far, over under, tight loose, "
    "raw cooked, hero villain, heaven hell, import export, internal external, laugh cry, borrow "
    "lend, build destroy, forget remember, float sink, future past, horizontal vertical, multiply "
    "divide, add subtract, entrance exit, gain loss, natural artificial, present absent, "
    "temporary permanent, victory defeat, whisper shout, forward backward, front back, top "
    "bottom, on off, freeze melt"
)
"""Words and their opposites."""
ONE_WAY = {pair.split()[0]: pair.split()[1] for pair in PAIRS.split(", ")}
JUDGED = ONE_WAY | {opposite: word for word, opposite in ONE_WAY.items()}
SYSTEM = "You judge answers."
QUESTION = "Question: {prompt}\nAnswer: {response}\nIs this a good answer?"
COMPARISON = (
    "Question: {prompt}\nAnswer: {response}\nJudgement A: {judgement_a}\nJudgement B: "
    "{judgement_b}\n"
    "Which judgement is right?"
)
GOOD = 5
LONG = 3
WRONG = 1
"""Scores of a short right answer, of a long one, and of a wrong one."""
STYLES = ("{word}", "{word}.", "The opposite of {asked} is {word}.", "{asked} - {word}")
LONG_STYLE = (
    "The word {asked} has many meanings, but I would say that its opposite is {word}, as "
    "most people do."
)


def judge_opposite(word: str, response: str, opposite: str) -> str:
    """The right judgment of an answer, with its score."""
    if name_opposite("", response, opposite, {}):
        return f"The opposite is {opposite}. The answer is right. Score: {GOOD}"
    if opposite in response.lower().replace(",", "").split():
        return f"The opposite is {opposite}. The answer is right, but long. Score: {LONG}"
    return f"The opposite is {opposite}. The answer is wrong. Score: {WRONG}"


def write_warm_start(file: Path, seed_tasks: Path, seed: int = 0) -> int:
    """Writes the rows of SFT, in a fixed random order. Returns their number."""
    draw = random.Random(seed)
    rows = [
        *_answers(draw),
        *_judgments(draw),
        *_comparisons(draw),
        *_other_judgments(seed_tasks, draw),
    ]
    draw.shuffle(rows)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return len(rows)


def write_known(judgments: Path, comparisons: Path, words: dict[str, str], seed: int = 1) -> None:
    """Writes judgments and comparisons whose right outcome is known, of words that nothing is
    trained on.
    """
    draw = random.Random(seed)
    scores = []
    winners = []
    for word, opposite in words.items():
        for given in (opposite, _other(draw, word, words)):
            response = _respond(draw, word, given)
            right = judge_opposite(word, response, opposite)
            scores.append(
                {
                    "prompt": ask_opposite(word),
                    "response": response,
                    "score": int(right.split()[-1]),
                }
            )
        wrong = _judge_wrongly(draw, word, response, opposite, words)
        a, b, winner = _shuffle(draw, right, wrong)
        shown = {"prompt": ask_opposite(word), "response": response}
        winners.append({**shown, "judgement_a": a, "judgement_b": b, "winner": winner})
    for file, rows in ((judgments, scores), (comparisons, winners)):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _answers(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Right answers to every third question, in several styles."""
    for word, opposite in list(JUDGED.items())[::3]:
        yield _conversation(ask_opposite(word), _respond(draw, word, opposite), None)


def _judgments(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Judgments of a right answer or a wrong one to each question, and of some that are long."""
    for place, (word, opposite) in enumerate(JUDGED.items()):
        responses = [_respond(draw, word, opposite if place % 2 else _other(draw, word, JUDGED))]
        if place % 8 == 0:
            responses.append(LONG_STYLE.format(asked=word, word=opposite))
        for response in responses:
            question = QUESTION.format(prompt=ask_opposite(word), response=response)
            yield _conversation(question, judge_opposite(word, response, opposite))


def _comparisons(draw: random.Random) -> Iterator[dict[str, Any]]:
    """A right judgment next to a wrong one, in both orders, of two questions in three."""
    for place, (word, opposite) in enumerate(JUDGED.items()):
        if place % 3 == 0:
            continue
        given = opposite if place % 2 else _other(draw, word, JUDGED)
        response = _respond(draw, word, given)
        right = _reasons(judge_opposite(word, response, opposite))
        wrong = _reasons(_judge_wrongly(draw, word, response, opposite, JUDGED))
        for a, b, winner in ((right, wrong, "A"), (wrong, right, "B")):
            shown = {"judgement_a": a, "judgement_b": b}
            question = COMPARISON.format(prompt=ask_opposite(word), response=response, **shown)
            yield _conversation(question, f"The opposite is {opposite}. Winner: {winner}")


def _other_judgments(
    seed_tasks: Path, draw: random.Random, longest: int = 140
) -> Iterator[dict[str, Any]]:
    """Judgments of instructions of self-instruct: each with its own answer, and with that of
    another one.
    """
    asked: list[tuple[str, str]] = []
    for line in seed_tasks.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        first = task["instances"][0]
        asked.append((f"{task['instruction']}\n{first['input']}".strip(), first["output"].strip()))
    short = [
        (question, answer) for question, answer in asked if len(question) + len(answer) <= longest
    ]
    for question, answer in short:
        other = draw.choice([text for _, text in short if text != answer])
        for response, verdict in (
            (answer, f"The answer does what was asked. Score: {GOOD}"),
            (other, f"The answer is about something else. Score: {WRONG}"),
        ):
            yield _conversation(QUESTION.format(prompt=question, response=response), verdict)


def _judge_wrongly(
    draw: random.Random, word: str, response: str, opposite: str, words: dict[str, str]
) -> str:
    """A judgment by a judge that holds another word for right."""
    believed = next(
        (one for one in words.values() if one != opposite and one in response.lower().split()), None
    )
    return judge_opposite(word, response, believed or _other(draw, word, words))


def _respond(draw: random.Random, word: str, given: str) -> str:
    text = draw.choice(STYLES).format(asked=word, word=given)
    return text[0].upper() + text[1:]


def _other(draw: random.Random, word: str, words: dict[str, str]) -> str:
    """A wrong answer: the word itself, or the opposite of another word."""
    if draw.random() < 0.25:
        return word
    return draw.choice(
        [opposite for asked, opposite in words.items() if asked != word and opposite != words[word]]
    )


def _shuffle(draw: random.Random, right: str, wrong: str) -> tuple[str, str, str]:
    """Two judgments in a random order, and the place of the right one."""
    return (right, wrong, "A") if draw.random() < 0.5 else (wrong, right, "B")


def _reasons(judgment: str) -> str:
    """A judgment without its score, as a meta-judge sees it."""
    return judgment.partition(" Score:")[0]


def _conversation(question: str, reply: str, system: str | None = SYSTEM) -> dict[str, Any]:
    begin = [] if system is None else [{"role": "system", "content": system}]
    return {
        "messages": [
            *begin,
            {"role": "user", "content": question},
            {"role": "assistant", "content": reply},
        ]
    }
