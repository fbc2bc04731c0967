"""Which actor sits on which reserved resources: a pure plan, and the Ray placement group made from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cluster.config import ClusterConfig

MIB = 2**20
_UNITS = {"CPU": "CPU cores", "GPU": "GPUs", "memory": "MiB of memory"}
_SETTINGS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_mib"}


class PlacementError(RuntimeError):
    """The cluster did not grant the placement in time; the message says what was awaited and what there is."""


@dataclass(frozen=True, slots=True)
class Role:
    """``count`` actors of one kind. ``cpus`` and ``gpus`` may be fractions; ``memory_mib`` = 0 reserves none.

    ``section`` and ``counter`` name the settings in error messages (``ground_truth.workers``).
    """

    name: str
    count: int
    cpus: float
    gpus: float = 0.0
    memory_mib: int = 0
    note: str = ""
    section: str = ""
    counter: str = "workers"

    def __post_init__(self) -> None:
        if self.count < 1 or min(self.cpus, self.gpus, self.memory_mib) < 0:
            raise ValueError(f"role {self.name}: count must be at least 1 and resources not negative")
        if not self.resources:
            raise ValueError(f"role {self.name} reserves nothing: give it a fraction of a CPU core")

    @property
    def resources(self) -> dict[str, float]:
        """Ray's resources of one actor: cores, GPUs, bytes of memory; zeros left out."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory_mib * MIB)}
        return {name: amount for name, amount in amounts.items() if amount}

    def setting(self, name: str) -> str:
        """The dotted name of one of this role's settings."""
        return f"{self.section or self.name}.{name}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """The resources reserved for one actor."""

    name: str
    role: Role

    @property
    def resources(self) -> dict[str, float]:
        """Ray's resources of this actor."""
        return self.role.resources


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """One bundle per actor in a fixed order, so that a bundle's index always means the same actor."""

    roles: tuple[Role, ...]
    strategy: str
    bundles: tuple[Bundle, ...] = field(init=False)

    def __post_init__(self) -> None:
        bundles = tuple(Bundle(f"{role.name}-{i}", role) for role in self.roles for i in range(role.count))
        object.__setattr__(self, "bundles", bundles)

    def index(self, name: str) -> int:
        """Position of an actor's bundle; ``KeyError`` names the actors there are."""
        for i, bundle in enumerate(self.bundles):
            if bundle.name == name:
                return i
        raise KeyError(f"no actor {name} in the placement: {', '.join(b.name for b in self.bundles)}")

    def totals(self) -> dict[str, float]:
        """Sum over all bundles: cores, GPUs, bytes of memory; zeros left out."""
        sums: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.resources.items():
                sums[name] = sums.get(name, 0.0) + amount
        return sums

    def table(self) -> str:
        """The plan as plain text, one actor a line and the totals below."""
        rows = [("actor", "cores", "GPUs", "memory", "note")]
        rows += [(b.name, *_cells(b.resources), b.role.note) for b in self.bundles]
        rows.append(("total", *_cells(self.totals()), f"strategy {self.strategy}"))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join(
            "  ".join(row[i].rjust(widths[i]) if 0 < i < 4 else row[i].ljust(widths[i]) for i in range(5)).rstrip()
            for row in rows
        )

    def check(self, available: Mapping[str, float], nodes: Iterable[Mapping[str, float]] = ()) -> list[str]:
        """What keeps this plan from fitting; empty if nothing does.

        ``available`` has Ray's units (cores, GPUs, bytes). ``nodes``, one mapping per node, adds what only holds node
        by node: the largest actor, and the strict strategies.
        """
        problems = [
            f"the placement needs {_amount(kind, need)} {_UNITS[kind]} ({self._shares(kind)}), the cluster has "
            f"{_amount(kind, available.get(kind, 0.0), short=True)}: {self._remedy(kind)}"
            for kind, need in self.totals().items()
            if need > available.get(kind, 0.0) + 1e-9
        ]
        per_node = list(nodes)
        return problems if problems or not per_node else self._check_nodes(per_node)

    def _check_nodes(self, nodes: list[Mapping[str, float]]) -> list[str]:
        problems = []
        for role in self.roles:
            if not any(_fits(role.resources, node) for node in nodes):
                needs = " and ".join(f"{_amount(k, a, short=True)} {_UNITS[k]}" for k, a in role.resources.items())
                problems.append(f"no single node has the {needs} of one {role.name} actor: add a larger node")
        if self.strategy == "STRICT_PACK" and not any(_fits(self.totals(), node) for node in nodes):
            problems.append("STRICT_PACK needs one node for the whole placement: set cluster.placement=PACK")
        if self.strategy == "STRICT_SPREAD" and len(nodes) < len(self.bundles):
            problems.append(
                f"STRICT_SPREAD needs a node per actor ({len(self.bundles)}), the cluster has {len(nodes)}: "
                "set cluster.placement=SPREAD"
            )
        return problems

    def _shares(self, kind: str) -> str:
        users = [role for role in self.roles if kind in role.resources]
        return ", ".join(f"{role.name} {role.count} x {_amount(kind, role.resources[kind])}" for role in users)

    def _remedy(self, kind: str) -> str:
        largest = max(self.roles, key=lambda role: role.count * role.resources.get(kind, 0.0))
        settings = [largest.setting(_SETTINGS[kind])] if kind != "memory" else []
        if largest.count > 1 or not settings:
            settings.insert(0, largest.setting(largest.counter))
        return f"lower {' or '.join(settings)}, or add nodes"


def plan(roles: Iterable[Role], strategy: str = "PACK") -> PlacementPlan:
    """The placement of ``roles``; ``ValueError`` if two roles share a name."""
    ordered = tuple(roles)
    names = [role.name for role in ordered]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a placement needs roles with different names, got {names}")
    return PlacementPlan(ordered, strategy)


class Reservation:
    """Resources the cluster has granted. ``release`` gives them back and ends every actor on them."""

    def __init__(self, granted: PlacementPlan, group: Any, run: str) -> None:
        self.plan = granted
        self.run = run
        self._group = group

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def options(self, name: str, attempt: int = 0) -> dict[str, Any]:
        """What to pass to ``Actor.options``. A replacement of a dead actor raises ``attempt``: Ray frees names late."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index = self.plan.index(name)
        resources = self.plan.bundles[index].resources
        chosen: dict[str, Any] = {
            "name": f"{self.run}/{name}" + (f".{attempt}" if attempt else ""),
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            ),
        }
        if "memory" in resources:
            chosen["memory"] = resources["memory"]
        return chosen

    def release(self) -> None:
        """Give the resources back; calling it again does nothing."""
        if self._group is None:
            return
        import ray

        group, self._group = self._group, None
        if ray.is_initialized():
            ray.util.remove_placement_group(group)


def reserve(wanted: PlacementPlan, config: ClusterConfig, run: str = "") -> Reservation:
    """Ask the connected cluster for ``wanted``; raise :class:`PlacementError` after ``config.deadline_s`` seconds.

    ``run`` prefixes the actors' names in the dashboard; by default it is the session's namespace, its run.
    """
    import ray

    run = run or str(ray.get_runtime_context().namespace)
    group = ray.util.placement_group([b.resources for b in wanted.bundles], strategy=wanted.strategy, name=run)
    reservation = Reservation(wanted, group, run)
    started = time.monotonic()
    try:
        granted = group.wait(config.deadline_s)
    except BaseException:
        reservation.release()
        raise
    if granted:
        return reservation
    message = _explain(wanted, time.monotonic() - started)
    reservation.release()
    raise PlacementError(message)


def _explain(wanted: PlacementPlan, waited: float) -> str:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    shares = "; ".join(f"{_UNITS[kind]}: {wanted._shares(kind)}" for kind in wanted.totals())
    stock = ", ".join(
        f"{_amount(kind, total.get(kind, 0.0), short=True)} {unit} "
        f"({_amount(kind, free.get(kind, 0.0), short=True)} free)"
        for kind, unit in _UNITS.items()
    )
    reasons = wanted.check(total, nodes) or wanted.check(free) or ["the nodes' free resources are too scattered"]
    return (
        f"waited {waited:.0f} s for {len(wanted.bundles)} actors, placement {wanted.strategy} ({shares}); "
        f"{len(nodes)} node(s) have {stock}. {'; '.join(reasons)}. "
        "If nodes are still starting, raise cluster.deadline_s; `ray status` shows what waits"
    )


def _fits(need: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(amount <= node.get(kind, 0.0) + 1e-9 for kind, amount in need.items())


def _amount(kind: str, amount: float, short: bool = False) -> str:
    if kind == "memory":
        return f"{amount / MIB:.0f}"
    text = f"{amount:.2f}".rstrip("0").rstrip(".")
    return text if short or "." in text else f"{text}.0"


def _cells(resources: Mapping[str, float]) -> tuple[str, str, str]:
    cells = [_amount(kind, resources[kind]) if kind in resources else "-" for kind in ("CPU", "GPU", "memory")]
    return cells[0], cells[1], cells[2] if cells[2] == "-" else f"{cells[2]} MiB"
