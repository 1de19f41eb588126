"""Versions of the registered model `encoder`, and which of them is its `champion`.

A version carries everything it is compared by as tags, so that it stays comparable when its run is removed. The alias is what
others load, `models:/encoder@champion`; the tag `champions` of the registered model has the versions in the order of their reigns.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before mlflow is imported: it reads its environment then

from mlflow import MlflowClient  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

from components.parent_runs import access  # noqa: E402
from components.registry import packaging  # noqa: E402
from components.tracking.database import existing  # noqa: E402

NAME, ALIAS = "encoder", "champion"
METRIC, PROTOCOL, CHAMPIONS = "metric.", "protocol.", "champions"


@dataclass(frozen=True)
class Version:
    """One version of the registered encoder."""

    number: str
    tags: Mapping[str, str]

    @property
    def run(self) -> str:
        """The name of the pipeline run it is of."""
        return self.tags.get("run", "")

    @property
    def metrics(self) -> dict[str, float]:
        """Headline metrics of that run by MLflow's names."""
        return {key.removeprefix(METRIC): float(text) for key, text in self.tags.items() if key.startswith(METRIC)}

    @property
    def protocols(self) -> dict[str, str]:
        """The hash of each evaluation's protocol by its dotted name."""
        return {key.removeprefix(PROTOCOL): text for key, text in self.tags.items() if key.startswith(PROTOCOL)}


@contextmanager
def opened(root: Path) -> Iterator["Registry"]:
    """The registry of the project in `root`.

    Raises ValueError where there is no database, or MLflow cannot be reached or written; RuntimeError for what it refuses meanwhile.
    """
    where = existing(root)
    access.check(root)
    try:
        yield Registry(where)
    except MlflowException as error:
        said = str(error).splitlines()[0]  # what follows is SQL
        raise RuntimeError(
            f"MLflow at {where} refused: {said}; what was done before stays: try again once it answers"
        ) from error


class Registry:
    """The registered encoder at one tracking server or database."""

    def __init__(self, uri: str) -> None:
        self.uri, self._client = uri, MlflowClient(uri, uri)

    def champion(self) -> Version | None:
        """The version that the alias names; None before the first promotion."""
        return next((version for version in self.versions() if version.number == self._champion()), None)

    def versions(self) -> list[Version]:
        """All of them, newest first."""
        found, token = list[Any](), None
        while token != "":
            page = self._client.search_model_versions(f"name = '{NAME}'", page_token=token)
            found, token = [*found, *page], page.token or ""
        made = [Version(str(entry.version), dict(entry.tags)) for entry in found]
        return sorted(made, key=lambda version: -int(version.number))

    def register(self, encoder: Path, code: Path, source_run: str, tags: Mapping[str, str]) -> Version:
        """A new version of the weights in `encoder`, with the code in the checkout `code` that reads them.

        It belongs to the run with id `source_run`. A model is a version only when it is complete.
        """
        model = packaging.log(self._client, NAME, encoder, code, source_run, tags)
        if self._entity() is None:
            self._client.create_registered_model(NAME, description="Frozen vision encoders: images in, embeddings out")
        place = model.artifact_location  # `models:/…` would be asked of MLflow's global address
        made = self._client.create_model_version(NAME, place, source_run, dict(tags), model_id=model.model_id)
        return Version(str(made.version), dict(made.tags))

    def tag(self, version: Version, tags: Mapping[str, str]) -> None:
        """Adds tags to a version."""
        for key, text in tags.items():
            self._client.set_model_version_tag(NAME, version.number, key, text)

    def crown(self, version: Version, told: str) -> None:
        """Makes `version` the champion; what is `told` of it stays in the history. The alias moves last."""
        reigns = self._reigns()
        if reigns[-1:] != [version.number]:
            reigns.append(version.number)
        self._client.set_registered_model_tag(NAME, CHAMPIONS, " ".join(reigns))
        self._move(version, told)

    def dethrone(self) -> tuple[Version, Version]:
        """Gives the alias back to the champion before: the version it left, and the one it went to.

        Raises ValueError where there is no champion, or none before it that still exists.
        """
        champion = self.champion()
        if champion is None:
            raise ValueError(
                f"no version of {NAME!r} in {self.uri} is {ALIAS}, so nothing can be rolled back; promote a run first"
            )
        known = {version.number: version for version in self.versions()}
        reigns = [number for number in self._reigns()[:-1] if number in known]  # the rest was deleted since
        while reigns[-1:] == [champion.number]:
            reigns.pop()
        if not reigns:
            raise ValueError(
                f"version {champion.number} (run {champion.run}) is the first {ALIAS} of {NAME!r}, there is none to go back to; "
                "promote another run instead"
            )
        before = known[reigns[-1]]
        self._move(before, f"rolled back from version {champion.number} (run {champion.run})")
        self._client.set_registered_model_tag(NAME, CHAMPIONS, " ".join(reigns))
        return champion, before

    def _move(self, version: Version, told: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H.%M.%S.%f")  # a tag's name takes no colon
        self._client.set_registered_model_tag(
            NAME, f"history.{now}", f"version {version.number} (run {version.run}): {told}"
        )
        self._client.set_registered_model_alias(NAME, ALIAS, version.number)

    def _entity(self) -> Any:
        return next(iter(self._client.search_registered_models(f"name = '{NAME}'")), None)

    def _champion(self) -> str:
        entity = self._entity()
        return str(entity.aliases.get(ALIAS, "")) if entity else ""

    def _reigns(self) -> list[str]:
        """The versions that were champion, the present one last. What a promotion wrote that never moved the alias is left out."""
        reigns, champion = str(self._entity().tags.get(CHAMPIONS, "")).split(), self._champion()
        if champion not in reigns:  # none yet, or set by hand
            return [*reigns, champion] if champion else []
        while reigns[-1] != champion:
            reigns.pop()
        return reigns
