"""Data sets made from a seed alone, in the layouts of real ones, so that a fresh clone runs without a download."""

from pathlib import Path


def vacant(folder: Path) -> None:
    """Raises ValueError when `folder` holds anything, which would get mixed into the data set."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"folder {str(folder)!r} is not empty; data is generated into a new folder; name another or empty it"
        )
