"""Boards as text and JSON: what is written is read again, and what is malformed is one clear error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import solve
from solvers.boards import (
    MAX_BYTES,
    BoardError,
    Instance,
    from_bytes,
    from_json,
    from_text,
    read_json_lines,
    to_json,
    to_text,
)

GOOD = {"holes": [[0, 1, 0], [0, 0, 0], [0, 0, 0]], "starts": [0, 3], "goals": [8, 6]}
SQUARE = "1 . b\n. # .\na . 2\n"


@st.composite
def instances(draw):
    n, k = draw(st.integers(3, 10)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    free = random.permutation(n * n)[: draw(st.integers(k, n * n))]
    rows = np.ones(n * n, bool)
    rows[free] = False
    starts, goals = (tuple(random.permutation(free)[:k].tolist()) for _ in range(2))
    name = draw(st.none() | st.text(max_size=5) | st.integers())
    return Instance(tuple(map(tuple, rows.reshape(n, n).tolist())), starts, goals, name)


quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(instances())
def test_a_board_written_as_json_is_read_again(instance):
    assert from_json(to_json(instance)) == instance == from_bytes(to_json(instance).encode())
    assert "\n" not in to_json(instance)


@quick
@given(instances())
def test_a_board_written_as_text_is_read_again(instance):
    plain = Instance(instance.holes, instance.starts, instance.goals)
    assert from_text(to_text(instance)) == plain == from_bytes(to_text(instance).encode())


@quick
@given(st.text() | st.text(alphabet=".#12ab \n") | st.text(alphabet='{}[],:"01 holesn\n'))
def test_any_text_is_a_board_or_one_line_of_error(text):
    for read in (from_text, from_json):
        try:
            read(text)
        except BoardError as error:
            assert str(error) and len(str(error).splitlines()) == 1


@quick
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "n", "id"]), inner),
        max_leaves=20,
    ),
    st.sampled_from([*GOOD, "n", "id"]),
)
def test_any_value_of_a_field_is_accepted_or_one_line_of_error(value, field):
    try:
        from_json(json.dumps({**GOOD, field: value}))
    except BoardError as error:
        assert str(error) and len(str(error).splitlines()) == 1


def test_the_text_forms_say_the_same():
    spaced, tight = from_text(SQUARE), from_text("\n\n1.b\r\n.#.\r\na.2\r\n\r\n")
    assert spaced == tight == Instance(((False,) * 3, (False, True, False), (False,) * 3), (0, 8), (6, 2))


def test_a_cell_may_be_start_and_goal():
    assert from_text("1b 2a .\n. . .\n. . .") == Instance(((False,) * 3,) * 3, (0, 1), (1, 0))
    assert from_text("1a . .\n. . .\n. . .").goals == (0,)


def test_the_json_forms_say_the_same():
    forms = [
        GOOD,
        {**GOOD, "holes": [1], "n": 3},
        {**GOOD, "n": 3},
        {**GOOD, "starts": [[0, 0], [1, 0]], "goals": [[2, 2], [2, 0]]},
    ]
    assert len({from_json(json.dumps(form)) for form in forms}) == 1
    spread = "\ufeff" + json.dumps({"id": 7, **GOOD}, indent=1)
    assert from_bytes(spread.encode()) == Instance(from_json(json.dumps(GOOD)).holes, (0, 3), (8, 6), 7)


def test_a_board_without_holes_needs_its_size():
    assert from_json('{"holes": [], "n": 4, "starts": [0], "goals": [15]}').shape == (4, 1)


def test_an_instance_is_what_the_solver_takes():
    board = from_text(SQUARE)
    assert solve(board.holes, board.starts, board.goals).sum_of_costs == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the input is empty; give a board"),
        (" \n\n", "the input is empty"),
        ("1 a\n. .", "holes: 2 rows are not allowed; a board has 3..10"),
        ("1 a\n" + ". .\n" * 10, "holes: 11 rows are not allowed"),
        ("1 a .\n. .\n. . .", "line 2: 2 cells are not allowed in a board of 3 rows; boards are square"),
        ("1a.\n...\n....", "line 3: 4 cells .*without blanks every character is a cell"),
        ("1 a .\n. . .\n\n. . .", "line 3: a blank line inside a board"),
        ("1 a .\n. x .\n. . .", r'line 2, cell 2: "x" is not allowed; write \. \(free\)'),
        ("1 a .\n. 6 .\n. f .", r'line 2, cell 2: "6" .* 1\.\.5'),
        ("1 a .\n. a1 .\n. . .", '"a1" is not allowed; .*as in 1b'),
        ("1 a .\n. 1 .\n. . .", "line 2: 1 is there twice"),
        ("1 a .\n. 2a .\n. b .", "line 2: a is there twice"),
        ("1 a .\n. b .\n. . .", "starts: agent 2 has no start; .*write 2 on a cell"),
        ("1 a .\n. 2 .\n. . .", "goals: agent 2 has no goal; .*write b"),
        ("1 a .\n. 3 .\n. c .", "starts: agent 2 has no start"),
        (". . .\n. . .\n. . .", "starts: the board has no agent"),
        ("1 a .\n. \0 .\n. . .", r'cell 2: "\\u0000" is not allowed'),
        ("1 a .\n. " + "y" * 500 + " .\n. . .", r'cell 2: "y{35}\.\.\. is not allowed'),
    ],
)
def test_a_bad_drawing_is_one_clear_error(text, message):
    with pytest.raises(BoardError, match=message):
        from_text(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hole": []}, 'unknown key "hole"; did you mean holes'),
        ({"q" * 1000: 1}, r'unknown key "q+\.\.\.; did you mean'),
        ({"starts": None}, "starts: null is not allowed; give a list"),
        ({"holes": "101"}, 'holes: "101" is not allowed'),
        ({"holes": []}, "n: missing"),
        ({"holes": [1, 1], "n": 3}, "holes: a cell is there twice"),
        ({"holes": [9], "n": 3}, r"holes: 9 is not allowed; .*0\.\.8"),
        ({"holes": [1], "n": 2}, r"holes: 2 rows are not allowed; a board has 3\.\.10"),
        ({"holes": [1], "n": 10**400}, r"holes: 10+\.\.\. rows are not allowed"),
        ({"holes": [1], "n": True}, "n: true is not allowed"),
        ({"holes": [1], "n": 3.0}, "n: 3.0 is not allowed"),
        ({"holes": [1], "n": None}, "n: null is not allowed"),
        ({"n": 4}, "n: 4 is not allowed with 3 rows"),
        ({"holes": [[0, 0], [0, 0]]}, "holes: 2 rows"),
        ({"holes": [[0] * 11] * 11}, "holes: 11 rows"),
        ({"holes": [[0, 0, 0], [0, 0], [0, 0, 0]]}, "holes: 2 cells in row 1"),
        ({"holes": [[0, 0, 0], 5, [0, 0, 0]]}, "holes: 5 as row 1"),
        ({"holes": [[0, 0, 2], [0, 0, 0], [0, 0, 0]]}, "holes: 2 at row 0, column 2"),
        ({"holes": [[0, 0, True], [0, 0, 0], [0, 0, 0]]}, "holes: true at row 0, column 2"),
        ({"holes": [[0, 0, 1.0], [0, 0, 0], [0, 0, 0]]}, "holes: 1.0 at row 0, column 2"),
        ({"holes": [[[[0]], 0, 0], [0, 0, 0], [0, 0, 0]]}, "holes: a list at row 0, column 0"),
        ({"starts": [0, 1]}, "starts: cell 1 .row 0, column 1. of agent 2 is a hole"),
        ({"goals": [1, 8]}, "goals: cell 1 .* of agent 1 is a hole"),
        ({"starts": [4, 4]}, "starts: cell 4 is there twice"),
        ({"goals": [4, 4]}, "goals: cell 4 is there twice"),
        ({"goals": [8]}, "goals: 1 for 2 starts"),
        ({"starts": [], "goals": []}, r"starts: 0 agents are not allowed; give 1\.\.5"),
        ({"starts": [0, 2, 3, 4, 5, 6]}, r"starts: 6 agents are not allowed; give 1\.\.5"),
        ({"starts": [0, 9]}, r"starts: 9 is not allowed; .*integers 0\.\.8"),
        ({"starts": [0, -1]}, "starts: -1 is not allowed"),
        ({"starts": [0, 2.0]}, "starts: 2.0 is not allowed"),
        ({"starts": [0, True]}, "starts: true is not allowed"),
        ({"starts": [0, "2"]}, 'starts: "2" is not allowed'),
        ({"starts": [0, [1, 1]]}, "starts: a list is not allowed"),
        ({"starts": [[0, 0], 3]}, "starts: 3 is not allowed; after one .row, column. pair"),
        ({"starts": [[0, 0], [1, 3]]}, r"starts: 3 in a .row, column. pair .*0\.\.2"),
        ({"starts": [[0, 0], [1, 1, 1]]}, "starts: a list is not allowed"),
        ({"id": {}}, "id: an object is not allowed"),
        ({"id": True}, "id: true is not allowed"),
    ],
)
def test_a_bad_field_is_one_clear_error(changes, message):
    with pytest.raises(BoardError, match=message):
        from_json(json.dumps({**GOOD, **changes}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"holes": [[0,1', r"column 16: not JSON .* give an object like \{"),
        ('{\n"holes": [[0,1\n', "line 3, column 1: not JSON"),
        ("{} {}", "column 4: not JSON"),
        ("[1, 2]", "a list is not a board"),
        ("7", "7 is not a board"),
        ('{"holes": [[0]], "goals": [1]}', "starts: missing"),
        ('{"starts": [1], "starts": [2]}', 'key "starts" is there twice'),
        ('{"n": NaN}', "NaN is not allowed"),
        ('{"starts": [-Infinity]}', "-Infinity is not allowed"),
        ('{"holes": [], "n": 3, "starts": [1e999], "goals": [0]}', "starts: Infinity is not allowed"),
        ('{"n": ' + "9" * 5000 + "}", "too many digits"),
        ("[" * 60_000, "JSON nested too deeply"),
        ('{"holes": ' + "[" * 30_000 + "]" * 30_000 + "}", "JSON nested too deeply"),
    ],
)
def test_bad_json_is_one_clear_error(text, message):
    with pytest.raises(BoardError, match=message):
        from_json(text)


def test_what_is_no_text_or_too_long_is_refused():
    with pytest.raises(BoardError, match="line 2: byte 0xff is not UTF-8 text"):
        from_bytes(b"1 a .\n\xff . .\n. . .")
    with pytest.raises(BoardError, match=f"longer than {MAX_BYTES} bytes"):
        from_bytes(b"." * (MAX_BYTES + 1))


def test_a_bad_line_does_not_lose_the_others():
    good = json.dumps(GOOD).encode()
    read = list(read_json_lines([good, b" \n", b"{", good + b"\r", b"\xff"], first=5))
    assert [number for number, _ in read] == [5, 7, 8, 9]
    assert [isinstance(board, Instance) for _, board in read] == [True, False, True, False]
