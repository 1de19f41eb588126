"""The changes of a checkout that nobody has committed, as one patch, without touching its index or its files."""

import stat
import tempfile
import time
from pathlib import Path

from flows.git import GitError, git
from flows.records import FOLDER

LARGEST_MIB = 100
"""A new file above this is data, and belongs to DVC or into .gitignore."""
DIFFERING = "--others", "--modified"
"""The files of `git ls-files` that a run takes along."""
PAUSES_S = 0.0, 0.1, 0.2, 0.4, 0.8, 1.6
"""Before each try to read files that somebody may be writing in that moment."""
REST = ("--", ".", f":(exclude,glob)**/{FOLDER}/**")  # the runs' own trees, also where .gitignore does not name them


def patch(checkout: Path) -> bytes:
    """What `git apply` needs to make HEAD's files those of the checkout: edits, deletions and new files that git doesn't ignore.

    b'' when nothing differs. Raises ValueError naming new files that are too large to be carried along, and files that something
    keeps writing to.
    """
    top = Path(git(checkout, "rev-parse", "--show-toplevel"))
    _check_sizes(top)
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(top, "read-tree", "HEAD", environment=index)
        _add(top, index)
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


def _add(top: Path, index: dict[str, str]) -> None:
    """Puts the files as they are into that index. Git refuses one that changes or goes while it is read: then once more."""
    for pause in PAUSES_S:
        time.sleep(pause)
        before = _differing(top, *DIFFERING)
        try:
            git(top, "add", "--all", *REST, environment=index)
            return
        except GitError:
            changed = sorted({name for name, _ in before.items() ^ _differing(top, *DIFFERING).items()})
            if not changed:
                raise
    raise ValueError(
        f"the checkout changes while it is read, {len(PAUSES_S)} times on end: {', '.join(map(repr, changed[:5]))}"
        f"{' …' * (len(changed) > 5)}. Uncommitted files go along with a run; end what writes them, or add them to .gitignore"
    )


def _differing(top: Path, *which: str) -> dict[str, tuple[int, int]]:
    """Size in bytes and time of change in ns of those files that `git ls-files` lists for `which`."""
    names = git(top, "ls-files", *which, "--exclude-standard", "-z", *REST).split("\0")
    found = dict[str, tuple[int, int]]()
    for name in filter(None, names):
        try:
            about = (top / name).lstat()
        except OSError:  # gone meanwhile, or deleted by the person
            continue
        if stat.S_ISREG(about.st_mode):
            found[name] = about.st_size, about.st_mtime_ns
    return found


def _check_sizes(top: Path) -> None:
    sizes = {name: size / 2**20 for name, (size, _) in _differing(top, "--others").items()}
    large = {name: mib for name, mib in sizes.items() if mib > LARGEST_MIB}
    if large:
        raise ValueError(
            "\n".join(f"new file {name!r} has {mib:.0f} MiB" for name, mib in large.items())
            + f"\nUncommitted files up to {LARGEST_MIB} MiB go along with a run; add larger ones to .gitignore, or to DVC with `dvc add`"
        )
