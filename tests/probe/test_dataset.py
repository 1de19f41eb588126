import numpy as np
import pytest

from components.probe.dataset import spread


@pytest.mark.parametrize(("total", "limit"), [(10, 0), (10, 10), (10, 11)])
def test_no_limit_or_a_large_one_takes_all(total: int, limit: int) -> None:
    np.testing.assert_array_equal(spread(total, limit), np.arange(total))


@pytest.mark.parametrize(("total", "limit"), [(50_000, 7), (50_000, 10_000), (101, 100), (3, 1)])
def test_a_limit_spreads_distinct_rows_over_the_whole_split(total: int, limit: int) -> None:
    rows = spread(total, limit)
    assert len(set(rows.tolist())) == len(rows) == limit
    assert rows[0] == 0
    assert rows[-1] >= total - total / limit - 1
    assert set(np.diff(rows).tolist()) <= {total // limit, total // limit + 1}


def test_rows_in_order_of_class_stay_balanced() -> None:
    labels = np.repeat(np.arange(10), 5000)
    assert (np.bincount(labels[spread(50_000, 1000)]) == 100).all()
