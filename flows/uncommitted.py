"""The changes of a checkout that nobody has committed, as one patch, without touching its index or its files."""

import tempfile
from pathlib import Path

from flows.git import git
from flows.records import FOLDER

LARGEST_MIB = 100
"""A new file above this is data, and belongs to DVC or into .gitignore."""
REST = ("--", ".", f":(exclude,glob)**/{FOLDER}/**")  # the runs' own trees, also where .gitignore does not name them


def patch(checkout: Path) -> bytes:
    """What `git apply` needs to make HEAD's files those of the checkout: edits, deletions and new files that git doesn't ignore.

    b'' when nothing differs. Raises ValueError naming new files that are too large to be carried along.
    """
    top = Path(git(checkout, "rev-parse", "--show-toplevel"))
    _check_sizes(top)
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(top, "read-tree", "HEAD", environment=index)
        git(top, "add", "--all", *REST, environment=index)
        changes = Path(folder) / "changes"
        # To a file: its bytes may be in any encoding. Whatever a person configured, the plain form.
        plain = [
            "--cached",
            "--binary",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--src-prefix=a/",
            "--dst-prefix=b/",
        ]
        git(top, "diff", *plain, f"--output={changes}", "HEAD", environment=index)
        return changes.read_bytes()


def _check_sizes(top: Path) -> None:
    names = [name for name in git(top, "ls-files", "--others", "--exclude-standard", "-z", *REST).split("\0") if name]
    large = [name for name in names if (top / name).is_file() and (top / name).stat().st_size > LARGEST_MIB * 2**20]
    if large:
        raise ValueError(
            "\n".join(f"new file {name!r} has {(top / name).stat().st_size / 2**20:.0f} MiB" for name in large)
            + f"\nUncommitted files up to {LARGEST_MIB} MiB go along with a run; add larger ones to .gitignore, or to DVC with `dvc add`"
        )
