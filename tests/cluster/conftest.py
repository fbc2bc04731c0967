import pytest

from cluster.config import ClusterConfig
from cluster.session import connect


@pytest.fixture(scope="module")
def ray_session():
    with connect(ClusterConfig(dashboard=False, object_store_mib=100), "placement-test") as session:
        yield session
