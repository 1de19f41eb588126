"""Lines of progress, which Prefect's UI reads as well."""

import pytest

from components import progress


def test_the_meter_counts_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    meter = progress.Meter("probe: features", 10, "images")
    meter.advance(4)
    meter.advance(6)
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 1 and lines[0].startswith("probe: features: 10/10 images, ") and lines[0].endswith(", 0 s left")
    )
