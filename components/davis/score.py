"""Scores masks like the official DAVIS-2017 tool: `python -m components.davis.score RESULTS DAVIS [--csv FOLDER]`.

RESULTS holds <sequence>/<frame>.png for every sequence in the list, DAVIS is the dataset as published (Annotations/480p and
ImageSets). The numbers are those of davis2017-evaluation with `--task semi-supervised`, computed anew each time; exit status
2 and one line for masks that cannot be scored.
"""

import argparse
import sys
from pathlib import Path, PurePosixPath

from components import progress
from components.davis import results
from components.davis.annotation import Annotation
from components.davis.judging import Judge, Score


def main(argv: list[str] | None = None) -> int:
    """Prints the scores per sequence and over all objects, and writes them as CSV where asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m components.davis.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, metavar="RESULTS", help="folder of <sequence>/<frame>.png")
    parser.add_argument("davis", type=Path, metavar="DAVIS", help="folder with Annotations/480p and ImageSets")
    parser.add_argument(
        "--split", default="val", help="which list of ImageSets/2017, else 2016, names the sequences (val)"
    )
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="where objects.csv and sequences.csv go")
    options = parser.parse_args(argv)
    try:
        table = score(options.results, options.davis, options.split)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(table)
    if options.csv:
        results.write_objects(options.csv / "objects.csv", table)
        results.write_sequences(options.csv / "sequences.csv", table)
    return 0


def score(folder: Path, davis: Path, split: str) -> list[Score]:
    """One score per object of every listed sequence; those without a frame to score are named and left out.

    Raises ValueError naming the file for missing frames, ids that the first true mask lacks and masks of another size.
    """
    videos = {name: _truths(davis, name) for name in listed(davis, split)}
    scored = {name: truths[1:-1] for name, truths in videos.items()}
    for name in [name for name, truths in scored.items() if not truths]:
        progress.show(f"{name} is left out: it has {len(videos[name])} masks, and the first and the last do not count")
        del scored[name]
    if not scored:
        raise ValueError(f"{str(davis)!r}: no sequence of split {split!r} has a third mask, so nothing can be scored")
    _check_complete(folder, scored)
    table, perfect = list[Score](), True
    for name, truths in scored.items():
        first = videos[name][0]
        annotation = Annotation(name, first.read_bytes(), str(first))
        judge = Judge(folder.resolve().name, name, annotation.objects)
        for truth in truths:
            predicted = folder / name / truth.name
            judge.take(
                annotation.predicted(predicted.read_bytes(), str(predicted)),
                annotation.ids(truth.read_bytes(), str(truth)),
            )
        table += judge.scores()
        perfect = perfect and judge.perfect
    if perfect:
        print(
            f"warning: every scored mask in {str(folder)!r} equals the truth; is it the annotations themselves?",
            file=sys.stderr,
        )
    return table


def listed(davis: Path, split: str) -> list[str]:
    """The sequences in a list of DAVIS 2017 (a name a line) or 2016 (`/JPEGImages/480p/<name>/00000.jpg …`, a frame a line)."""
    lists = [davis / "ImageSets" / year / f"{split}.txt" for year in ("2017", "2016")]
    path = next((path for path in lists if path.is_file()), None)
    if path is None:
        raise ValueError(f"{str(davis)!r} has no ImageSets/2017/{split}.txt; name the folder that DAVIS unpacks to")
    lines = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return list(dict.fromkeys(PurePosixPath(line).parent.name if "/" in line else line for line in lines))


def _truths(davis: Path, name: str) -> list[Path]:
    folder = davis / "Annotations" / "480p" / name
    truths = sorted(path for path in folder.glob("*.png") if not path.name.startswith("."))
    if not truths:
        raise ValueError(f"{str(folder)!r} holds no mask (*.png) of the listed sequence {name!r}; unpack DAVIS again")
    return truths


def _check_complete(folder: Path, scored: dict[str, list[Path]]) -> None:
    """All at once and before anything is scored. Raises ValueError naming the first file that is missing."""
    wanted = [folder / name / truth.name for name, truths in scored.items() for truth in truths]
    missing = [path for path in wanted if not path.is_file()]
    if not missing:
        return
    inner = [path for path in sorted(folder.glob("*")) if any((path / name).is_dir() for name in scored)]
    if inner and not any((folder / name).is_dir() for name in scored):
        raise ValueError(
            f"{str(folder)!r} has no folder {next(iter(scored))!r}, but {str(inner[0])!r} has: score that one; a folder of results "
            f"holds <sequence>/<frame>.png"
        )
    raise ValueError(
        f"{str(missing[0])!r} is missing, as are {len(missing) - 1} more of the {len(wanted)} masks to score; each scored frame needs "
        f"one, an empty one where nothing was found"
    )


def show(table: list[Score]) -> None:
    """The official tool's numbers in percent: a line per sequence, then the means over all objects."""
    names = list(dict.fromkeys(score.sequence for score in table))
    width = max(len(name) for name in [*names, f"all {len(table)} objects"])
    print(" " * width + "".join(f"{column:>10}" for column in results.STATISTICS))
    for name in names:
        _line(name.ljust(width), [score for score in table if score.sequence == name])
    _line(f"all {len(table)} objects".ljust(width), table)


def _line(title: str, table: list[Score]) -> None:
    print(title + "".join(f"{value:10.2f}" for value in results.means(table).values()))


if __name__ == "__main__":
    sys.exit(main())
