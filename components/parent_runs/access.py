"""Whether MLflow can be written, asked before a run begins."""

import sqlite3
from pathlib import Path

from components.reachable import PATIENCE_S, why_not
from components.tracking.database import EXPERIMENT, Database, database
from components.tracking.delivery import AwayError, away

OTHERWISE = "or set MLFLOW_TRACKING_URI to another one, or unset it for mlflow.db in the project"


def check(checkout: Path) -> None:
    """Raises ValueError where MLflow is unreachable, has a newer or older schema than the installed one, or cannot be written."""
    store = database(checkout)
    if store.file:
        _check_file(store.file)
    elif store.uri.startswith("http"):
        _check_server(store.uri)
    try:
        with away():
            client = store.client()
            known = client.get_experiment(store.experiment(client))
    except AwayError as error:
        raise ValueError(f"MLflow at {_shown(store)} does not work: {error}; mend it, {OTHERWISE}") from error
    if known.lifecycle_stage != "active":
        raise ValueError(
            f"experiment {EXPERIMENT!r} of MLflow at {_shown(store)} was deleted; "
            f"`mlflow experiments restore --experiment-id {known.experiment_id}` brings it back with its runs"
        )


def _check_server(uri: str) -> None:
    if reason := why_not(f"{uri.rstrip('/')}/health"):
        raise ValueError(
            f"MLflow at {uri} cannot be reached: {reason}; start it, for example with `make up`, {OTHERWISE}"
        )


def _check_file(path: Path) -> None:
    """A sqlite file that is there must be MLflow's, of the installed version's schema, and take writes."""
    if not path.exists():
        if not path.parent.is_dir():
            raise ValueError(f"MLflow's database {path} has no folder; make {path.parent}, {OTHERWISE}")
        return
    try:
        connection = sqlite3.connect(path, timeout=PATIENCE_S)
        try:
            connection.execute("BEGIN IMMEDIATE")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = (
                connection.execute("SELECT version_num FROM alembic_version").fetchone()
                if "alembic_version" in tables
                else None
            )
            connection.rollback()
        finally:
            connection.close()
    except sqlite3.Error as error:
        way = "end what holds it" if "locked" in str(error) else "see its permissions and the disk"
        raise ValueError(f"MLflow's database {path} cannot be written: {error}; {way}, {OTHERWISE}") from error
    if found:
        _check_schema(path, str(found[0]))


def _check_schema(path: Path, revision: str) -> None:
    from alembic.script import ScriptDirectory
    from mlflow import __version__
    from mlflow.store.db.utils import _get_alembic_config

    script = ScriptDirectory.from_config(_get_alembic_config(db_url=""))
    if revision == script.get_current_head():
        return
    if revision in {known.revision for known in script.walk_revisions()}:
        way = f"back it up, then `mlflow db upgrade sqlite:///{path}`"
        raise ValueError(
            f"MLflow's database {path} has an older schema ({revision}) than MLflow {__version__}: {way}, {OTHERWISE}"
        )
    raise ValueError(
        f"MLflow's database {path} has a schema ({revision}) that the installed MLflow {__version__} does not know, a newer one: "
        f"`make install` brings the project's version, which may be newer than yours, {OTHERWISE}"
    )


def _shown(store: Database) -> str:
    return str(store.file or store.uri)
