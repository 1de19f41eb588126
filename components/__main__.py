"""Runs one stage: `python -m components <stage> --params FILE [--member NAME] --<input> PATH … --<output> PATH …`.

Parameters and inputs are checked before anything heavy is imported, so that a mistake costs a fraction of a second.
"""

import argparse
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from components import stage as stages


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 on success, 2 for bad input (one message on stderr), 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return run_stage(arguments)
    except ValueError as error:
        if not _raised_by_us(error):  # a library's ValueError is a fault of ours: show where
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _raised_by_us(error: ValueError) -> bool:
    source = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return source.is_relative_to(Path(__file__).parent)


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Ends like Ctrl-C does, so that MLflow says KILLED and Ray stops its workers."""
    raise SystemExit(128 + signum)


def run_stage(arguments: list[str]) -> int:
    """Validates, runs and records one stage. Raises ValueError for bad input."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\nStages: {', '.join(stages.STAGES)}")
        return 0
    stage, contract = arguments[0], stages.contract(arguments[0])
    parsed = vars(_parser(stage, contract).parse_args(arguments[1:]))
    params = stages.load_params(stage, parsed.pop("params"), parsed.pop("member", ""))
    try:
        inputs = contract.inputs(**{name: parsed[name].absolute() for name in contract.inputs.model_fields})
    except ValidationError as error:
        raise ValueError(stages.explain(error, stage, contract.inputs)) from None
    outputs = contract.outputs(**{name: parsed[name].absolute() for name in contract.outputs.model_fields})

    # Threads that wait for work sleep. Spinning ones cost siblings on the same cores half their speed; read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.pop("MLFLOW_RUN_ID", None)  # it would make this stage write into a run that is not its own
    from components import tracking  # imports mlflow: only once the input is known to be good

    tracking.database(tracking.project_root())  # an address that won't do is told before libraries are loaded
    run = importlib.import_module(f"components.{stage}.run").run
    with tracking.stage_run(stage, contract, params, inputs, outputs) as record:
        record.finish(run(params, inputs, outputs))
    if stage == stages.STAGES[-1]:  # the report ends the pipeline
        from components import parent_runs  # only here: its code is in no stage's fingerprint

        parent_runs.record_pipeline()
    return 0


def _parser(stage: str, contract: stages.Contract) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m components {stage}", allow_abbrev=False)
    parser.add_argument("--params", type=Path, required=True, metavar="FILE", help="the stage's params file")
    if contract.members:
        parser.add_argument("--member", required=True, metavar="NAME", help=f"which of {contract.members} to work on")
    for kind, model in (("input", contract.inputs), ("output", contract.outputs)):
        for name, field in model.model_fields.items():
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=Path, required=True, metavar="PATH", help=f"{kind}: {field.description}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
