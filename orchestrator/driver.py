"""The whole run, in order. Start reading here.

Train a stage on one environment configuration; validate; show the results to the engineer; let the gate decide on what
it proposes; go on with the next stage. Before and after, held-out tasks tell whether the policy got better.
"""

from __future__ import annotations

import dataclasses

from environments.base import stream
from orchestrator import counterfactual, gate
from orchestrator.evaluation import evaluate, pairs, valid_rate
from orchestrator.evidence import collect, remember
from orchestrator.finish import finish, introduce
from orchestrator.records import Decision, Evidence, Proposal
from orchestrator.resume import restore
from orchestrator.run import Run, spread
from orchestrator.stage import save_checkpoint, train_stage


def drive(run: Run) -> None:
    """Everything between the first weights and the last."""
    if not restore(run):
        begin(run)
    while run.state.stage < len(run.config.curriculum.stages):
        train_stage(run)
        end_stage(run)
        save_checkpoint(run, border=True)
    evaluate_held_out(run, "after")
    finish(run)


def begin(run: Run) -> None:
    """Prove that engines and learner hold the same weights, judge them, and draw stage 0 at random."""
    run.sync()
    introduce(run)
    knobs = run.environment.random_knobs(stream(run.config.seed, "stage 0"))
    adopt(run, Decision("accepted", Proposal("initial", None), knobs.model_dump(mode="json"), ()))
    evaluate_held_out(run, "before")
    save_checkpoint(run, border=True)


def end_stage(run: Run) -> None:
    """Validate, and unless this was the last stage let the engineer design the next one."""
    state, config = run.state, run.config
    validation = spread(run.environment.validation(), config.evaluation.validation_per_stratum)
    record = evaluate(run, f"validation of stage {state.stage}", validation)
    run.store.write_stage(state.stage, "validation", record)
    run.progress.note(
        f"stage {state.stage}: {100 * valid_rate(record):.1f} % of {len(validation)} validation tasks valid"
    )
    if state.stage + 1 == len(config.curriculum.stages):
        state.stage += 1
        return
    evidence = collect(
        pairs(record),
        run.info,
        stage=state.stage,
        stages=len(config.curriculum.stages),
        knobs=run.knobs,
        history=state.history,
        rationale=state.rationale,
    )
    decision = redesign(run, evidence)
    state.history, state.rationale = remember(evidence), decision.proposal.rationale
    state.stage, state.step_in_stage, state.extra = state.stage + 1, 0, 0
    adopt(run, decision)


def redesign(run: Run, evidence: Evidence) -> Decision:
    """The engineer proposes, the gate decides; both are stored word for word, rejected proposals too."""
    stage = evidence.stage
    run.store.write_stage(stage, "evidence", evidence.to_dict())
    proposal = run.engineer.propose(evidence)
    run.store.write_stage(stage, "engineer", {"prompt": list(proposal.prompt), "reply": proposal.reply})
    if proposal.source == "policy" and (swaps := run.config.engineer.swaps):
        reads = counterfactual.sound_out(run.engineer, run.controller, run.info, run.config.seed + stage, swaps)
        run.store.write_stage(stage, "counterfactual", dataclasses.asdict(reads))
        run.progress.note(
            f"with results of strata swapped, proposals followed in {reads.followed} of {reads.cells} cells"
        )
    decision = gate.decide(proposal, run.knobs, run.environment, lambda: run.controller.propose(evidence))
    run.store.write_stage(stage, "decision", decision.to_dict())
    changes = ", ".join(decision.changes) or "nothing changed"
    run.progress.note(f"redesign after stage {stage} by {proposal.source}: {decision.status}; {changes}")
    return decision


def adopt(run: Run, decision: Decision) -> None:
    """Make a decision's configuration that of the current stage."""
    state = run.state
    state.knobs = decision.knobs
    run.store.write_stage(state.stage, "environment", {"knobs": state.knobs, "source": decision.proposal.source})
    run.store.write_lineage(
        {
            "id": f"stage-{state.stage}",
            "parent": f"stage-{state.stage - 1}" if state.stage else None,
            "kind": "stage",
            "hypothesis": decision.proposal.rationale,
            "expected": decision.proposal.expected,
            "changed_variable": list(decision.changes),
            "decision": decision.status,
        }
    )


def evaluate_held_out(run: Run, name: str) -> None:
    """Judge the current weights on held-out tasks, once."""
    if run.store.read_evaluation(name) is not None:
        return
    tasks = spread(run.environment.held_out(), run.config.evaluation.held_out_per_stratum)
    record = evaluate(run, name, tasks)
    run.store.write_evaluation(name, record)
    run.progress.note(f"held-out {name} training: {100 * valid_rate(record):.1f} % of {len(tasks)} tasks valid")
