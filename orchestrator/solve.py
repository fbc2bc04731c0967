"""`envwright solve`: boards in, exact labels out; one board for a person, or JSON lines for a program.

A stream is solved in windows of lines: what one read brings, grouped by board size and agent count, answered in the
order of the input. Memory stays bounded, and a Ctrl-C or a closed pipe never leaves half a line.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.config import ConfigError
from solvers import ALL_LABELS, NODE_BUDGET, Labels, Status, movingai, solve_batch
from solvers.batch import WANTS
from solvers.boards import MAX_BYTES, BoardError, Instance, from_bytes, read_json_lines

INTERRUPTED = 128 + signal.SIGINT
READ_BYTES = 1 << 18
MAX_SNIFFED = 4 * READ_BYTES
MAX_WINDOW = 1024
QUICK, SLOW = 0.1, 0.5
"""Seconds: a window that took less is followed by a larger one, one that took more by a smaller one, so that hard
boards do not hold back answers. The answers do not depend on it."""
MAX_BUDGET = 10**12
PIPE_PIECE = select.PIPE_BUF
"""Bytes that a pipe takes whole or not at all."""
STDOUT = 1

LABELS = (
    ("makespan", "makespan T*"),
    ("sum_of_costs", "sum of costs"),
    ("wait_makespan", "every plan of least makespan waits"),
    ("wait_sum_of_costs", "every plan of least sum of costs waits"),
)

Record = tuple[int, Instance | BoardError]
"""(line number, board or what is wrong with it)."""
Write = Callable[[Iterable[bytes]], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What to compute for every board; ConfigError on a name or a budget that isn't allowed."""

    want: frozenset[str] = ALL_LABELS
    node_budget: int = NODE_BUDGET

    @classmethod
    def of(cls, want: str | None, node_budget: int | None) -> Question:
        """From the options of the command; None takes the default."""
        names = ALL_LABELS if want is None else frozenset(name.strip() for name in want.split(","))
        return cls(names, NODE_BUDGET if node_budget is None else node_budget)

    def __post_init__(self) -> None:
        for name in sorted(self.want - ALL_LABELS):
            near = difflib.get_close_matches(name, WANTS, n=1, cutoff=0)[0]
            raise ConfigError(f"--want: {name!r} is not allowed; did you mean {near}? Labels: {','.join(WANTS)}")
        if not 1 <= self.node_budget <= MAX_BUDGET:
            raise ConfigError(f"--node-budget: {self.node_budget} is not allowed; give 1..{MAX_BUDGET}")


@dataclass(frozen=True, slots=True)
class Source:
    """Where boards come from: a file, `-` for standard input, or a MovingAI map with a scenario and an agent count."""

    file: str = "-"
    map: Path | None = None
    scenario: Path | None = None
    agents: int | None = None

    def scenario_board(self) -> Instance | None:
        """The instance of map and scenario, None if neither is named."""
        given = {"--map": self.map, "--scen": self.scenario, "--agents": self.agents}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return None
        if self.map is None or self.scenario is None or self.agents is None:
            raise ConfigError(f"{' and '.join(missing)} missing; --map, --scen and --agents go together")
        if self.file != "-":
            raise ConfigError(f"{self.file} is not allowed beside --map and --scen; give one or the other")
        return movingai.instance(self.map, self.scenario, self.agents)


def run(source: Source, question: Question, as_json: bool) -> int:
    """The command: exit code 0, 1 after bad lines in a stream, 130 after Ctrl-C; BoardError if the one board is bad."""
    try:
        board = source.scenario_board()
        if board:
            return _answer((1, board), question, as_json)
        with ExitStack() as closing:
            single, blocks = sniffed(line_blocks(_opened(source.file, closing)), as_json)
            if single:
                return _answer(_one_board(blocks), question, as_json)
            return _finish(solve_lines(blocks, question, _write))
    except KeyboardInterrupt:
        print("interrupted; every line written is whole", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 0


def _answer(record: Record, question: Question, as_json: bool) -> int:
    """One board: its answer drawn for a person, or the one line of a stream."""
    _, board = record
    if isinstance(board, BoardError) and not as_json:
        raise board
    labels = _solved([record], question)[0]
    if not _is_answered((record, labels)):
        raise KeyboardInterrupt
    if labels is None or as_json:
        _write([json_line(record, labels, question)])
    else:
        _write([drawn(labels, question).encode()])
    return _finish(int(isinstance(board, BoardError)))


def _finish(bad: int) -> int:
    if bad:
        lines = "1 line is" if bad == 1 else f"{bad} lines are"
        print(f"error: {lines} no board; the output says why, at the same place", file=sys.stderr)
    return int(bad > 0)


# -------------------------------------------------------------------------------------------------------------- reading


def _opened(file: str, closing: ExitStack) -> BinaryIO:
    if file != "-":
        try:
            return closing.enter_context(open(file, "rb"))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror}); give a file, or - for a pipe") from None
    if sys.stdin is None:
        raise ConfigError("standard input is closed; give a file, or pipe a board in")
    if sys.stdin.isatty():
        print("reading a board from the terminal; end it with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


def line_blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that each read brings, so that a pipe is answered as it speaks.

    Of a line longer than MAX_BYTES only enough is kept to be refused.
    """
    rest = b""
    while chunk := _read(stream):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: MAX_BYTES + 1]
        if whole:
            yield whole
    if rest:
        yield [rest]


def _read(stream: BinaryIO) -> bytes:
    try:
        return bytes(stream.read1(READ_BYTES))  # type: ignore[attr-defined]
    except OSError as error:
        raise ConfigError(f"the input cannot be read ({error.strerror}); give a file, or pipe a board in") from None


def sniffed(blocks: Iterator[list[bytes]], as_json: bool) -> tuple[bool, Iterator[list[bytes]]]:
    """Whether the input is one board, and all of its blocks.

    A stream is a first line that is an object as a whole (and, unless JSON was asked for, more after it), or a second
    line that opens one. Lines of a drawing or of an object spread out do neither.
    """
    seen: list[list[bytes]] = []
    filled: list[bytes] = []
    size = 0
    for block in blocks:
        seen.append(block)
        size += sum(map(len, block)) + len(block)
        filled += (stripped for line in block if (stripped := line.removeprefix(b"\xef\xbb\xbf").strip()))
        if size > MAX_SNIFFED or len(filled) > 1 or (as_json and filled and _is_object(filled[0])):
            break
    everything = itertools.chain(seen, blocks)
    if len(filled) > 1:
        return not (_is_object(filled[0]) or filled[1].startswith(b"{")), everything
    return not (as_json and filled and _is_object(filled[0])), everything


def _is_object(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}")


def _one_board(blocks: Iterable[list[bytes]]) -> Record:
    """All of a short input as one board; of a long one only enough to be refused."""
    lines: list[bytes] = []
    for block in blocks:
        lines += block
        if sum(len(line) + 1 for line in lines) > MAX_BYTES + 1:
            break
    try:
        return 1, from_bytes(b"\n".join(lines))
    except BoardError as error:
        return 1, error


# -------------------------------------------------------------------------------------------------------------- solving


def solve_lines(
    blocks: Iterable[list[bytes]], question: Question, write: Write, clock: Callable[[], float] = time.monotonic
) -> int:
    """Answer a stream of JSON lines through `write`, whole lines at a time; the number of bad lines.

    KeyboardInterrupt passes through after what was known by then is written.
    """
    bad, first, size = 0, 1, 16
    for block in blocks:
        while block:
            window, block = block[:size], block[size:]
            begin = clock()
            records = list(read_json_lines(window, first))
            answers = _solved(records, question)
            done = list(itertools.takewhile(_is_answered, zip(records, answers)))
            write(json_line(record, labels, question) for record, labels in done)
            if len(done) < len(records):
                raise KeyboardInterrupt
            bad += sum(isinstance(board, BoardError) for _, board in records)
            first += len(window)
            seconds = clock() - begin
            size = min(MAX_WINDOW, 2 * size) if seconds < QUICK else max(1, size // 2) if seconds > SLOW else size
    return bad


def _is_answered(pair: tuple[Record, Labels | None]) -> bool:
    (_, board), labels = pair
    return labels is not None or isinstance(board, BoardError)


def _solved(records: list[Record], question: Question) -> list[Labels | None]:
    """Labels by record, None for a bad line, and for what was not reached when Ctrl-C came."""
    answers: list[Labels | None] = [None] * len(records)
    groups: dict[tuple[int, int], list[tuple[int, Instance]]] = {}
    for index, (_, board) in enumerate(records):
        if isinstance(board, Instance):
            groups.setdefault(board.shape, []).append((index, board))
    try:
        for group in groups.values():
            boards = [board for _, board in group]
            batch = solve_batch(
                [board.holes for board in boards],
                [board.starts for board in boards],
                [board.goals for board in boards],
                node_budget=question.node_budget,
                want=question.want,
            )
            for (index, _), labels in zip(group, batch):
                answers[index] = labels
    except KeyboardInterrupt:
        pass
    return answers


# -------------------------------------------------------------------------------------------------------------- writing


def json_line(record: Record, labels: Labels | None, question: Question) -> bytes:
    """The line of one board: its number, its `id` if it has one, and its labels (null: unknown or not wanted)."""
    number, board = record
    if isinstance(board, BoardError) or labels is None:
        return json.dumps({"line": number, "error": str(board)}).encode() + b"\n"
    answer: dict[str, Any] = {"line": number} if board.id is None else {"line": number, "id": board.id}
    answer |= {
        "status": labels.status.name.lower(),
        "makespan": labels.makespan,
        "sum_of_costs": labels.sum_of_costs,
        "wait_makespan": labels.wait_makespan,
        "wait_sum_of_costs": labels.wait_sum_of_costs,
        "plan_makespan": labels.plan_makespan,
        "plan_sum_of_costs": labels.plan_sum_of_costs,
        "expansions": labels.expansions,
    }
    if labels.status == Status.UNDECIDED:
        answer["hint"] = _hint(question)
    return json.dumps(answer).encode() + b"\n"


def drawn(labels: Labels, question: Question) -> str:
    """The answer to one board for a person: what was asked, and both plans by agent."""
    texts = {Status.SOLVABLE: "solvable", Status.UNSOLVABLE: "unsolvable (proven)", Status.UNDECIDED: _hint(question)}
    lines = [f"status: {texts[labels.status]}"]
    if labels.status != Status.UNSOLVABLE:
        values = zip(LABELS, (labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs))
        lines += [f"{title}: {_word(value)}" for (name, title), value in values if name in question.want]
    for title, plan in (("makespan", labels.plan_makespan), ("sum of costs", labels.plan_sum_of_costs)):
        if plan is not None:
            lines.append(f"plan of least {title}:")
            lines += [f"  agent {agent}: {' '.join(words) or '(stays)'}" for agent, words in enumerate(plan, 1)]
    return "\n".join([*lines, f"expansions: {labels.expansions}", ""])


def _hint(question: Question) -> str:
    return f"undecided: {question.node_budget} expansions were not enough; raise --node-budget"


def _word(value: int | bool | None) -> str:
    return "unknown" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _write(lines: Iterable[bytes]) -> None:
    """Whole lines to standard output. A Ctrl-C waits until they are out, but not for a reader that takes nothing."""
    with _interrupt_deferred() as pending:
        data, sent = b"".join(lines), 0
        try:
            while sent < len(data):
                while not select.select([], [STDOUT], [], 0.2)[1]:
                    if pending:
                        raise KeyboardInterrupt
                end = data.rfind(b"\n", sent, sent + PIPE_PIECE) + 1 or sent + PIPE_PIECE
                sent += os.write(STDOUT, data[sent:end])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ConfigError(f"the output cannot be written ({error.strerror}); free space or redirect it") from None


@contextmanager
def _interrupt_deferred() -> Iterator[list[int]]:
    """Ctrl-C becomes an entry of the list, and a KeyboardInterrupt at the end."""
    pending: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, as a shell does for background jobs: it stays so
        yield pending
        return
    signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield pending
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt
