"""Claims about the rates, tables and comparisons of `envwright eval`."""

from __future__ import annotations

import csv
import io
import itertools
import json
from importlib import resources

import pytest

from environments.mapf_frozenlake import MapfFrozenLake
from orchestrator.ask import read_evidence
from orchestrator.eval import tables
from orchestrator.eval.comparison import POOLED, differences
from orchestrator.eval.records import Answer
from orchestrator.eval.results import Prices, cell_results, evidence, failures, means, pass_at, usage
from orchestrator.evidence import describe, full

SOLVED, BEST = frozenset({"valid", "optimal"}), "optimal"
PUBLISHED = json.loads((resources.files("orchestrator.eval") / "data" / "published.json").read_text("utf-8"))


def answer(task, outcome, *, sample=0, agents=3, size=4, failure=None, **more):
    stratum = f"{size}x{size}"
    return Answer(task, sample, agents, size, stratum, 0, outcome=outcome, failure=failure, **more)


def answers_of(outcomes, **more):
    """One task per outcome."""
    return [
        answer(f"{more.get('agents', 3)}-{more.get('size', 4)}-{i}", word, **more) for i, word in enumerate(outcomes)
    ]


def results(answers):
    return cell_results(answers, SOLVED, BEST)


@pytest.mark.parametrize(("n", "right", "k"), [(5, 0, 2), (5, 2, 1), (5, 2, 3), (6, 3, 2), (4, 4, 4), (4, 1, 4)])
def test_pass_at_k_is_the_share_of_draws_of_k_samples_that_hold_a_right_one(n, right, k):
    draws = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at(n, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_more_than_there_are_samples_is_refused():
    with pytest.raises(ValueError, match="pass@3"):
        pass_at(2, 1, 3)


def test_a_cell_counts_valid_and_optimal_answers_and_leaves_failures_out():
    failed = answer("f", None, failure={"kind": "timeout", "message": "late"})
    (cell,) = results([*answers_of(["optimal", "valid", "hole", "parse_error"]), failed])
    assert (cell.instances, cell.rates.valid, cell.rates.optimal) == (4, 0.5, 0.25)
    assert failures([failed]) == {"timeout": 1}


def test_the_mean_weighs_cells_equally_however_many_boards_they_have():
    cells = results(answers_of(["optimal"] * 9, size=4) + answers_of(["hole"], size=5))
    assert means(cells)[3].valid == pytest.approx(0.5)


def test_samples_of_a_board_are_averaged_and_give_pass_at_every_power_of_two():
    words = {"a": ["optimal", "hole", "hole"], "b": ["valid", "valid", "hole"]}
    (cell,) = results([answer(t, w, sample=i) for t, row in words.items() for i, w in enumerate(row)])
    assert cell.rates.valid == pytest.approx(0.5) and cell.rates.optimal == pytest.approx(1 / 6)
    assert set(cell.passed) == {2, 3}
    assert cell.passed[2].valid == pytest.approx((2 / 3 + 1) / 2) and cell.passed[3].valid == 1.0
    assert cell.passed[3].optimal == pytest.approx(0.5)


def test_one_answer_per_board_has_no_pass_at_k():
    assert results(answers_of(["optimal"]))[0].passed == {}


def test_cost_needs_prices_and_tokens():
    counted = [answer(str(i), "hole", prompt_tokens=100, completion_tokens=50, latency_s=float(i)) for i in range(21)]
    used = usage(counted, Prices(2.0, 10.0))
    assert used["cost"] == pytest.approx(21 * (100 * 2 + 50 * 10) / 1e6)
    assert (used["prompt_tokens"], used["latency_s"]["median"], used["latency_s"]["p95"]) == (2100, 10.0, 19.0)
    assert usage(counted, Prices())["cost"] is None and usage(answers_of(["hole"]), Prices(1, 1))["cost"] is None


def test_evidence_counts_every_outcome_by_stratum_and_can_be_told_to_an_engineer():
    info = describe(MapfFrozenLake())
    answers = [
        *answers_of(["optimal", "hole"], size=4),
        *answers_of(["hole"], size=10),
        *answers_of(["hole"], agents=4),
    ]
    first, second = evidence(answers, info)
    assert (first["agents"], second["agents"]) == (3, 4)
    told = read_evidence(json.loads(json.dumps(first["evidence"])))
    assert told.strata == ("4x4", "10x10")
    assert set(told.results[0].outcomes) == set(info.words)
    assert told.results[0].outcomes["hole"] == told.results[0].outcomes["optimal"] == 1
    assert "4x4: optimal 1, valid 0, hole 1 (of 2)" in full(told, info)[1]["content"]


# --------------------------------------------------------------------------------------------------------------- tables


def test_the_cells_csv_has_exactly_the_five_columns_in_percent():
    cells = results(answers_of(["optimal", "valid", "hole"]) + answers_of(["optimal"], agents=4, size=10))
    assert tables.cells_csv(cells) == ("agents,size,instances,valid,optimal\n3,4,3,66.67,33.33\n4,10,1,100.00,100.00\n")


def rows():
    ours = tables.Row.of("our_model", results(answers_of(["optimal", "hole"]) + answers_of(["valid"], size=10)))
    return [*tables.published_rows(), ours]


def test_published_rows_are_marked_in_every_format_and_ours_is_not():
    for render in (tables.markdown, tables.latex):
        lines = [line for line in render(rows()).splitlines() if "GPT" in line or "our" in line]
        assert "GPT-5.4 (published)" in lines[0] and "published" not in lines[-1]
    parsed = list(csv.DictReader(io.StringIO(tables.table_csv(rows()))))
    assert {row["model"]: row["published"] for row in parsed}["GPT-5.4"] == "yes"
    assert {row["model"]: row["published"] for row in parsed}["our_model"] == "no"


def test_published_rates_stand_only_beside_cells_that_were_measured():
    text = tables.markdown(rows())
    assert "| model | 4x4 | 10x10 | mean |" in text and "3x3" not in text and "4 agents" not in text
    assert "| GPT-5.4 (published) | 44.67 / 29.33 | 12.67 / 7.33 | 32.50 / 20.58 |" in text
    assert "| our_model | 50.00 / 50.00 | 100.00 / 0.00 | 75.00 / 25.00 |" in text


def test_latex_escapes_names():
    assert r"our\_model & 50.00/50.00" in tables.latex(rows())


def test_the_text_table_fits_80_columns_even_with_every_size():
    from rich.console import Console

    ours = [a for n in range(3, 11) for a in answers_of(["optimal"], size=n)]
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables.text([*tables.published_rows(), tables.Row.of("a-model-with-a-long-name", results(ours))]):
        console.print(table)
    shown = console.export_text()
    assert shown.count("100.0") == 18 and "…" not in shown and "64.7" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_published_file_says_where_it_is_from_and_adds_up_but_for_its_known_slips():
    assert PUBLISHED["published"] is True and "2606.17682" in PUBLISHED["source"]
    wrong = []
    for model in PUBLISHED["models"]:
        assert {agents: len(cells) for agents, cells in model["cells"].items()} == {"3": 8, "4": 7, "5": 6}
        for agents, cells in model["cells"].items():
            for i, kind in enumerate(("valid", "optimal")):
                mean = sum(pair[i] for pair in cells.values()) / len(cells)
                if abs(mean - model["means"][agents][i]) > 0.01:
                    wrong.append((model["name"], agents, kind))
    assert wrong == [("Gemini-3.1-Pro", "4", "valid"), ("Kimi-K2.5", "5", "valid")]
    assert len(PUBLISHED["models"]) == 7


# ----------------------------------------------------------------------------------------------------------- comparison


def keyed(answers):
    return {a.key: a for a in answers}


def test_a_difference_pairs_boards_and_leaves_out_what_one_side_did_not_judge():
    first = keyed(answers_of(["hole", "hole", "optimal", "optimal"]))
    second = keyed(answers_of(["optimal", "valid", "optimal", None]))
    (found,) = differences(first, second, SOLVED, BEST)
    assert (found.agents, found.valid.n) == (3, 3)
    assert found.valid.mean == pytest.approx(2 / 3) and found.optimal.mean == pytest.approx(1 / 3)
    assert found.valid.low < found.valid.mean < found.valid.high


def test_several_agent_counts_are_also_pooled():
    side = keyed(answers_of(["optimal"]) + answers_of(["hole"], agents=5))
    found = differences(side, side, SOLVED, BEST)
    assert [d.agents for d in found] == [3, 5, POOLED]
    assert all((d.valid.mean, d.valid.low, d.valid.high) == (0, 0, 0) for d in found)


def test_evaluations_without_a_common_board_cannot_be_compared():
    with pytest.raises(ValueError, match="no board"):
        differences(keyed(answers_of(["hole"])), keyed(answers_of(["hole"], size=7)), SOLVED, BEST)
