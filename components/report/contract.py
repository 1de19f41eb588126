"""What is legal for `report`."""

from pathlib import Path

from pydantic import Field

from components.stage import Inputs, Metrics, Outputs, Params


class ReportParams(Params):
    """The table of results that stands at the end of every run."""

    decimals: int = Field(ge=0, le=6, description="Digits after the point in the report's table; the files keep all.")


class ReportInputs(Inputs):
    """What the report reads."""

    metrics: Path = Field(description="folder of the stages' metrics files")
    values: Path = Field(description="folder of the params files, which say whose metrics are current")


class ReportOutputs(Outputs):
    """What the report leaves."""

    report: Path = Field(description="the report, Markdown")
    table: Path = Field(description="the same numbers unrounded, JSON rows for plots and programs")
    run: Path = Field(description="JSON that links to the MLflow run")


class ReportMetrics(Metrics):
    """How many comparisons there are. They stand in no file of their own: the report is made of the others' metrics."""

    compared: int
    improved: int
