"""What is legal for `report`."""

from pathlib import Path

from pydantic import Field

from components.stage import Inputs, Metrics, Outputs, Params


class ReportParams(Params):
    """The page of results that stands at the end of every run."""

    decimals: int = Field(
        ge=0, le=6, description="Digits after the point in the report's tables; report.json keeps all."
    )
    picture_pixels: int = Field(
        ge=200,
        le=4000,
        description="Longest side of a picture in report.html, in pixels; larger ones are scaled down. Raise it to see details of contact "
        "sheets, lower it when the page must be small enough for mail: its size grows with the square.",
    )


class ReportInputs(Inputs):
    """What the report reads: folders, of which it takes what the params name and no leftovers."""

    metrics: Path = Field(description="folder of the stages' metrics files")
    values: Path = Field(description="folder of the params files, which say whose metrics are current")
    protocols: Path = Field(description="folder of the evaluations' protocol files")
    plots: Path = Field(description="folder of the stages' figures and tables")


class ReportOutputs(Outputs):
    """What the report leaves."""

    report: Path = Field(description="the report, Markdown")
    page: Path = Field(description="the report with its figures, one HTML file that needs no other")
    table: Path = Field(description="the same numbers unrounded, JSON rows for plots and programs")
    run: Path = Field(description="JSON that links to the MLflow run")


class ReportMetrics(Metrics):
    """How many comparisons there are. They stand in no file of their own: the report is made of the others' metrics."""

    compared: int = Field(description="scores with an untrained twin")
    improved: int = Field(description="those that pretraining raised")
    published: int = Field(description="scores that stand beside the paper's")
