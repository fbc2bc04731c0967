"""A thought that the chat template opens belongs to the completion, or a trial plan in it would count as the answer."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from actors.chat import opened_thought
from actors.records import Request, Sampling
from actors.rollout import RolloutWorker

OPENED = "{{ '<think>\n' }}"
QWEN3_TAIL = "{% if enable_thinking %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"


@dataclass
class Tokenizer:
    """Writes the last message and the end of a template."""

    tail: str

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, enable_thinking):
        assert add_generation_prompt and not tokenize
        return messages[-1]["content"] + (self.tail if enable_thinking else "<think></think>")


@pytest.mark.parametrize(
    ("tail", "opening"),
    [
        ("<|assistant|>", ""),
        ("<|assistant|><think>", "<think>"),
        ("<|assistant|>\n<think>\n", "<think>\n"),
        ("<|assistant|><think>\n\n</think>\n\n", ""),
        ("think between <think> and </think>, beginning with <think>.\n<|assistant|>", ""),
    ],
)
def test_a_thought_is_open_only_where_the_prompt_ends_with_its_tag(tail, opening):
    assert opened_thought(Tokenizer(tail), thinking=True) == opening
    assert opened_thought(Tokenizer(tail), thinking=False) == ""


@dataclass
class Output:
    """What an engine gives back, as far as a worker reads it."""

    token_ids: list
    finish_reason: str
    weight_versions: list = field(default_factory=list)

    @property
    def logprobs(self):
        """Flat log-probs, of the sampled tokens only."""
        return SimpleNamespace(token_ids=self.token_ids, logprobs=[-0.5] * len(self.token_ids))


@pytest.fixture
def outcome(monkeypatch, new_model, environment, environment_name, rollout_config, tasks):
    """Rolls out one task in this process and gives its sample and outcome; the engine says what the test wants."""

    def of(tail, thinking, said, finish_reason):
        tokenizer = new_model(tied=True)[1]
        tokenizer.chat_template += tail

        class Engine:
            version = 0

            def __init__(self, model, config):
                self.tokenizer = tokenizer

            def generate(self, prompts, seeds, **options):
                return [Output(tokenizer.encode(said, add_special_tokens=False), finish_reason) for _ in prompts]

        monkeypatch.setattr("actors.engine.Engine", Engine)
        config = rollout_config.model_copy(update={"thinking": thinking})
        worker = RolloutWorker("rollout-0", "no model", config, environment_name)
        (group,), _ = worker.rollout([Request(tasks[0], (1,))], Sampling(0.7, 24))
        return group.members[0].sample, group.members[0].result.outcome

    return of


def test_a_trial_plan_in_a_thought_that_was_cut_off_is_no_answer(outcome, environment, tasks):
    plan = environment.answer(tasks[0])
    said = f"{plan}\nor is there"
    sample, judged = outcome(OPENED, True, said, "length")
    assert judged == "truncated"
    assert sample.text == f"<think>\n{said}"
    assert outcome(OPENED, True, f"maybe not\n</think>\n{plan}", "stop")[1] == "optimal"


def test_without_an_open_thought_the_completion_is_judged_as_it_stands(outcome, environment, tasks):
    plan = environment.answer(tasks[0])
    for tail, thinking in (("", True), (QWEN3_TAIL, False)):
        sample, judged = outcome(tail, thinking, plan, "length")
        assert (sample.text, judged) == (plan, "optimal")
    assert outcome(QWEN3_TAIL, True, plan, "length")[1] == "truncated"
