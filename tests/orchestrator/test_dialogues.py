"""Claims about the synthetic engineer dialogues."""

from __future__ import annotations

import random
import re
from collections import Counter

from environments.base import KnobSpec
from orchestrator.dialogues import dialogues
from orchestrator.engineer.controller import classify, moved, share
from orchestrator.engineer.replies import parse_reply, reply_constraint, write_reply
from orchestrator.evidence import CLASSES, vocabulary
from tests.orchestrator.test_evidence import INFO

MADE = [(messages[0]["content"], reply) for messages, reply in dialogues(INFO, random.Random(5), 600)]


def reply_from_words(prompt: str) -> str:
    """The controller's rules, applied by a reader who has nothing but the prompt's words."""
    rows: dict[str, dict[str, int]] = {}
    classes = {}
    lines = {line.split()[0]: line.split()[1:] for line in prompt.split("\n")[1:]}
    for stratum in INFO.strata:
        words = lines[stratum]
        now = words[: words.index("past")] if "past" in words else words
        levels = [int(now[now.index(w) + 1][1:]) for w in INFO.words if w in INFO.solved and w in now]
        rate = min(10, sum(levels)) / 10 if levels else None
        classes[stratum] = classify(rate)

        def value(spec: KnobSpec, now: list[str] = now) -> int:
            return int(now[now.index(spec.name) + 1]) if spec.name in now else spec.default

        rows[stratum] = {
            spec.name: share(spec, rate) if spec.name == "share" else moved(spec, value(spec), classes[stratum])
            for spec in INFO.knobs
        }
    return write_reply({"strata": rows}, classes, INFO, "compact")


def test_targets_follow_from_the_prompt_s_words_alone() -> None:
    for prompt, reply in MADE:
        assert reply == reply_from_words(prompt)


def test_targets_are_within_the_constraint_and_readable() -> None:
    rule = str(reply_constraint(INFO, "compact")[1])
    for _, reply in MADE:
        assert re.fullmatch(rule, reply)
        assert not parse_reply(reply, INFO, "compact").error


def test_every_word_is_in_the_vocabulary() -> None:
    used = {word for prompt, reply in MADE for word in f"{prompt} {reply}".split()}
    assert used <= set(vocabulary(INFO))


def test_dialogues_are_a_pure_function_of_the_random_stream() -> None:
    assert dialogues(INFO, random.Random(3), 5) == dialogues(INFO, random.Random(3), 5)
    assert dialogues(INFO, random.Random(3), 5) != dialogues(INFO, random.Random(4), 5)


def test_most_prompts_have_the_default_modules_and_every_class_occurs() -> None:
    default = [p for p, _ in MADE if p.startswith("engineer guide round") and "best c" in p and "said" not in p]
    assert len(default) > 0.7 * len(MADE)
    classes = Counter(word for _, reply in MADE for word in reply.split() if word in CLASSES)
    assert min(classes["mastered"], classes["learnable"], classes["hard"]) > 0.2 * sum(classes.values())
    assert classes["unknown"] > 0


def test_first_redesigns_without_history_are_common() -> None:
    first = [prompt for prompt, _ in MADE if "round 1 of" in prompt]
    assert len(first) > 0.2 * len(MADE)
    assert not any("share" in prompt for prompt in first)
