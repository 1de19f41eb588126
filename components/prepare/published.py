"""How many classes and images a dataset was published with, beside what is there."""

from typing import NamedTuple


class Size(NamedTuple):
    """Of one split; `classes` is 0 where images carry none."""

    classes: int
    images: int


Release = dict[str, Size]
"""By split. A reader has a list of them, PUBLISHED, which is empty for what was never published."""


def missing(releases: list[Release], found: Release) -> list[str]:
    """What a raw dataset lacks, or has too much of, beside the release it is closest to, a line for each."""
    return min((_beside(release, found) for release in releases), key=len, default=[])


def _beside(release: Release, found: Release) -> list[str]:
    lines = []
    for split, size in release.items():
        has = found.get(split)
        if has is None:
            lines.append(f"split {split} is missing: {size.images} images")
            continue
        for what, number, rule in (("classes", has.classes, size.classes), ("images", has.images, size.images)):
            if number != rule:
                lines.append(f"split {split} has {number} {what}, published are {rule}")
    return lines
