"""Ask what is not answered yet, judge it, keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from environments.base import Environment, Failure, FailureKind, Task, Verdict
from orchestrator.eval.journal import Journal
from orchestrator.eval.records import Answer, Question, Reply, Solver
from orchestrator.eval.sets import cell_of
from orchestrator.evaluation import EvaluationFailed

STREAK = 20
"""Failures in a row that end an evaluation: what fails always should not be asked thousands of times."""


def questions_of(tasks: list[Task], samples: int, seed: int) -> list[Question]:
    """``samples`` questions per task, task by task."""
    return [Question.of(task, sample, seed) for task in tasks for sample in range(samples)]


def ask(
    solver: Solver,
    questions: list[Question],
    environment: Environment,
    journal: Journal,
    tick: Callable[[], None],
) -> None:
    """Put every question that is not done to the solver; ``tick`` is called once for each answer.

    Raises :class:`EvaluationFailed` after ``STREAK`` failures in a row; what was answered before is kept.
    """
    streak = 0

    def keep(question: Question, reply: Reply | Failure) -> None:
        nonlocal streak
        answer = judged(question, reply, environment)
        journal.append(answer)
        tick()
        streak = streak + 1 if answer.failure else 0
        if streak == STREAK:
            last = (answer.failure or {})["message"]
            raise EvaluationFailed(
                f"{solver.name}: {STREAK} questions in a row failed, so the rest was not asked; last: {last}"
            )

    if pending := [question for question in questions if not journal.done(question.key)]:
        solver.answer(pending, keep)


def judged(question: Question, reply: Reply | Failure, environment: Environment) -> Answer:
    """The record of a reply: with its verdict, or with the failure that took its place."""
    task = question.task
    agents, size = cell_of(task)
    same: dict[str, Any] = {"task_id": task.id, "sample": question.sample, "seed": question.seed}
    same |= {"agents": agents, "size": size, "stratum": task.stratum}
    if isinstance(reply, Failure):
        return Answer(**same, failure=_failure(reply))
    same |= {"completion": reply.text, "finish_reason": reply.finish_reason, "latency_s": round(reply.latency_s, 6)}
    same |= {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
    verdict = environment.score(task, reply.text, truncated=reply.truncated)
    if not isinstance(verdict, Verdict):
        return Answer(**same, failure=_failure(verdict))
    return Answer(**same, outcome=str(verdict.outcome), reward=verdict.reward, facts=verdict.facts)


def _failure(failure: Failure) -> dict[str, str]:
    return {"kind": str(FailureKind(failure.kind)), "message": failure.message}
