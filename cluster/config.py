"""Settings of where a run is placed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ClusterConfig(BaseModel):
    """How the run finds or starts its Ray cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None = Field(
        None, description="Ray address; empty uses RAY_ADDRESS if set, else starts a local cluster"
    )
    dashboard: bool = Field(True, description="start the dashboard of a local cluster")
    dashboard_port: int | None = Field(
        None, ge=1024, le=65535, description="dashboard port of a local cluster; empty takes a free one"
    )
    object_store_mib: int = Field(512, ge=80, description="object store of a local cluster, MiB")
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="Ray placement group strategy"
    )
    deadline_s: float = Field(120.0, gt=0, description="longest wait for the cluster to grant the placement")
