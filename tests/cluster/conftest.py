"""One cluster for the tests that need a real one."""

from collections.abc import Iterator

import pytest

from .nodes import Nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head that gives 2 CPUs."""
    cluster = Nodes(2)
    yield cluster
    cluster.close()
