import pytest

from cluster.config import ClusterConfig
from cluster.placement import PlacementError, Role, plan, reserve

ROLES = (
    Role("rollout", 2, 1.0, note="vLLM engines"),
    Role("learner", 1, 1.0, counter="ranks"),
    Role("solver", 2, 0.5, section="ground_truth"),
)


def test_bundles_keep_the_order_of_roles_and_have_readable_names():
    names = [bundle.name for bundle in plan(ROLES).bundles]
    assert names == ["rollout-0", "rollout-1", "learner-0", "solver-0", "solver-1"]
    assert plan(ROLES).index("learner-0") == 2


def test_an_unknown_actor_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match="rollout-0, rollout-1"):
        plan(ROLES).index("rollout-7")


def test_totals_add_up_all_bundles_and_leave_out_what_nobody_needs():
    assert plan(ROLES).totals() == {"CPU": 4.0}
    assert plan([Role("learner", 2, 1.0, gpus=1.0, memory_mib=512)]).totals() == {
        "CPU": 2.0,
        "GPU": 2.0,
        "memory": 2 * 512 * 2**20,
    }


def test_the_table_shows_every_actor_and_the_totals():
    lines = plan(ROLES, "SPREAD").table().splitlines()
    assert lines[0].split() == ["actor", "cores", "GPUs", "memory", "note"]
    assert lines[1].split() == ["rollout-0", "1.0", "-", "-", "vLLM", "engines"]
    assert lines[-1].split() == ["total", "4.0", "-", "-", "strategy", "SPREAD"]


@pytest.mark.parametrize(
    ("roles", "available", "problem"),
    [
        (ROLES, {"CPU": 4.0}, None),
        (
            ROLES,
            {"CPU": 2.0},
            "the placement needs 4.0 CPU cores (rollout 2 x 1.0, learner 1 x 1.0, solver 2 x 0.5), the cluster has 2: "
            "lower rollout.workers or rollout.cpus, or add nodes",
        ),
        (
            [Role("learner", 1, 0.5, gpus=2.0, counter="ranks")],
            {"CPU": 4.0, "GPU": 1.0},
            "the placement needs 2.0 GPUs (learner 1 x 2.0), the cluster has 1: lower learner.gpus, or add nodes",
        ),
        (
            [Role("solver", 3, 0.1, memory_mib=1024, section="ground_truth")],
            {"CPU": 4.0, "memory": 2.0**31},
            "the placement needs 3072 MiB of memory (solver 3 x 1024), the cluster has 2048: "
            "lower ground_truth.workers, or add nodes",
        ),
        ([Role("rollout", 10, 0.1)], {"CPU": 1.0}, None),
    ],
)
def test_the_check_says_who_needs_what_and_which_setting_to_lower(roles, available, problem):
    assert plan(roles).check(available) == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("strategy", "nodes", "part"),
    [
        ("PACK", [2.0, 2.0], None),
        ("PACK", [0.5] * 8, "no single node has the 1 CPU cores of one rollout actor"),
        ("STRICT_PACK", [2.0, 2.0], "cluster.placement=PACK"),
        ("STRICT_SPREAD", [4.0, 4.0], "cluster.placement=SPREAD"),
    ],
)
def test_the_check_knows_what_holds_node_by_node(strategy, nodes, part):
    problems = plan(ROLES, strategy).check({"CPU": sum(nodes)}, [{"CPU": cores} for cores in nodes])
    assert not problems if part is None else part in problems[0]


def test_a_role_must_reserve_something_and_names_must_differ():
    with pytest.raises(ValueError, match="reserves nothing"):
        Role("rollout", 1, 0.0)
    with pytest.raises(ValueError, match="different names"):
        plan([ROLES[0], ROLES[0]])


def test_a_placement_that_is_not_granted_is_explained_and_removed_and_one_that_is_places_actors(ray_session):
    import ray

    config = ClusterConfig(deadline_s=1.0)
    with pytest.raises(PlacementError) as refusal:
        reserve(plan([Role("rollout", 9, 1.0)]), config)
    for part in ("waited 1 s for 9 actors", "PACK", "node(s) have", "rollout.workers", "cluster.deadline_s"):
        assert part in str(refusal.value)

    class Where:
        def name(self) -> str:
            return str(ray.get_runtime_context().get_actor_name())

    wanted = plan([Role("rollout", 2, 0.5)])
    with reserve(wanted, ClusterConfig(deadline_s=30.0)) as reservation:
        actor = ray.remote(Where).options(**reservation.options("rollout-1")).remote()
        assert ray.get(actor.name.remote(), timeout=60) == "placement-test/rollout-1"
        assert reservation.options("rollout-1", attempt=1)["name"] == "placement-test/rollout-1.1"
    states = {group["state"] for group in ray.util.placement_group_table().values()}
    assert states == {"REMOVED"}
