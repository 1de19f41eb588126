"""Manifests as people write them, by hand, with pandas and with pyarrow, and what is wrong with some."""

import csv
import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest

from components.prepare.readers import Listing
from components.prepare.readers.manifest import read_file

ROWS: list[dict[str, Any]] = [
    {"path": "b/2.jpg", "label": "dog", "split": "val"},
    {"path": "b/10.jpg", "label": "cat", "split": "train"},
    {"path": 'a b/q"uote, and é.png', "label": "dog", "split": "train"},
    {"path": "1.jpg", "label": "an owl, small", "split": "train"},
]


def images(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    for row in rows:
        path = folder / row["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(path.name.encode())
    return folder


def as_csv(folder: Path, rows: list[dict[str, Any]], name: str = "list.csv") -> Path:
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def as_parquet(folder: Path, rows: list[dict[str, Any]], name: str = "list.parquet") -> Path:
    pandas.DataFrame(rows).to_parquet(folder / name, index=False)
    return folder / name


def found(listing: Listing) -> dict[str, list[tuple[str, int, bytes]]]:
    return {
        split: [(each.path, each.values["label"], listing.files.read(each.file)) for each in items]
        for split, items in listing.splits.items()
    }


BOTH = pytest.mark.parametrize("write", [as_csv, as_parquet])
Write = Callable[..., Path]


@BOTH
def test_rows_keep_their_order_and_classes_are_sorted(write: Write, tmp_path: Path) -> None:
    listing = read_file(write(images(tmp_path), ROWS))
    assert (listing.kind, listing.classes) == ("images", ["an owl, small", "cat", "dog"])
    assert list(listing.splits) == ["train", "val"]
    assert found(listing) == {
        "train": [
            ("b/10.jpg", 1, b"10.jpg"),
            ('a b/q"uote, and é.png', 2, 'q"uote, and é.png'.encode()),
            ("1.jpg", 0, b"1.jpg"),
        ],
        "val": [("b/2.jpg", 2, b"2.jpg")],
    }
    assert [(each.group, each.unit) for each in listing.splits["val"]] == [("dog", "b/2.jpg")]
    assert listing.files.where(listing.splits["val"][0].file) == str(tmp_path / "b/2.jpg")
    assert found(pickle.loads(pickle.dumps(listing))) == found(listing)


@BOTH
def test_paths_alone_are_images_of_train_without_classes(write: Write, tmp_path: Path) -> None:
    listing = read_file(write(images(tmp_path), [{"path": row["path"]} for row in ROWS]))
    assert (listing.classes, list(listing.splits)) == ([], ["train"])
    assert [(each.path, each.values, each.group) for each in listing.splits["train"]] == [
        (row["path"], {"label": -1}, "") for row in ROWS
    ]


@BOTH
def test_labels_that_are_numbers_are_sorted_as_numbers(write: Write, tmp_path: Path) -> None:
    rows = [{"path": f"{label}.jpg", "label": label} for label in (10, 9, -1, 0)]
    listing = read_file(write(images(tmp_path, rows), rows))
    assert listing.classes == ["-1", "0", "9", "10"]
    assert [each.values["label"] for each in listing.splits["train"]] == [3, 2, 0, 1]
    mixed = [{"path": row["path"], "label": f"0{row['label']}"} for row in rows]
    assert read_file(write(tmp_path, mixed)).classes == ["0-1", "00", "010", "09"]


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    images(tmp_path)
    text = as_csv(tmp_path, ROWS).read_text(encoding="utf-8")
    (tmp_path / "windows.csv").write_bytes(("\ufeff" + text.replace("\n", "\r\n") + "\r\n").encode())
    assert found(read_file(tmp_path / "windows.csv")) == found(read_file(tmp_path / "list.csv"))
    (tmp_path / "na.csv").write_text("path,label\n1.jpg,NA\nb/2.jpg,null\n")
    assert read_file(tmp_path / "na.csv").classes == ["NA", "null"]  # they are names, and no gaps


def test_parquet_of_any_text_type(tmp_path: Path) -> None:
    images(tmp_path)
    for name, kind in (("large", pa.large_string()), ("dictionary", pa.dictionary(pa.int8(), pa.string()))):
        columns = {key: pa.array([row[key] for row in ROWS]).cast(kind) for key in ROWS[0]}
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        assert found(read_file(tmp_path / f"{name}.parquet")) == found(read_file(as_csv(tmp_path, ROWS)))


@pytest.mark.parametrize("name", ["manifest.csv", "manifest.parquet"])
def test_a_folder_with_a_manifest(name: str, tmp_path: Path) -> None:
    write = as_csv if name.endswith("csv") else as_parquet
    write(images(tmp_path), ROWS, name)
    assert sum(map(len, read_file(tmp_path).splits.values())) == len(ROWS)


def test_a_folder_with_two_manifests_or_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has neither: manifest.csv and manifest.parquet; a folder is read by one"):
        read_file(images(tmp_path))
    as_csv(tmp_path, ROWS, "manifest.csv")
    as_parquet(tmp_path, ROWS, "manifest.parquet")
    with pytest.raises(ValueError, match="has both of them: manifest.csv"):
        read_file(tmp_path)


def test_absolute_paths_and_links(tmp_path: Path) -> None:
    images(tmp_path / "far")
    rows = [{"path": str(tmp_path / "far" / row["path"])} for row in ROWS]
    (tmp_path / "near").mkdir()
    listing = read_file(as_csv(tmp_path / "near", rows))
    assert [each.path for each in listing.splits["train"]] == [row["path"].lstrip("/") for row in rows]
    listed = as_csv(tmp_path / "far", ROWS)
    (tmp_path / "near/link").symlink_to(listed)  # beside the link lie no images, beside the file they do
    assert found(read_file(tmp_path / "near/link")) == found(read_file(listed))
    (tmp_path / "cache").mkdir()
    listed.rename(tmp_path / "cache/0123")  # as DVC's cache holds it
    listed.symlink_to(tmp_path / "cache/0123")
    assert listed.exists() and len(read_file(listed).splits["train"]) == 3


@BOTH
def test_bytes_and_sha256_are_checked_when_the_image_is_read(write: Write, tmp_path: Path) -> None:
    images(tmp_path)
    rows = [
        {"path": row["path"], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest().upper()}
        for row in ROWS
        for data in [(tmp_path / row["path"]).read_bytes()]
    ]
    listing = read_file(write(tmp_path, rows))
    files, items = listing.files, listing.splits["train"]
    assert [files.read(each.file) for each in items] == [Path(row["path"]).name.encode() for row in ROWS]
    (tmp_path / "b/2.jpg").write_bytes(b"2.jpeg")
    with pytest.raises(ValueError, match="^it has 6 bytes, and the manifest says 5$"):
        files.read(items[0].file)
    (tmp_path / "b/2.jpg").write_bytes(b"3.jpg")
    with pytest.raises(ValueError, match="^its sha256 is [0-9a-f]{64}, and the manifest says [0-9a-f]{64}$"):
        files.read(items[0].file)
    assert read_file(write(tmp_path, rows)).stamp != listing.stamp


def test_the_stamp_is_the_manifests_and_the_images(tmp_path: Path) -> None:
    path = as_csv(images(tmp_path), ROWS)
    stamp = read_file(path).stamp
    assert read_file(path).stamp == stamp
    (tmp_path / "1.jpg").write_bytes(b"another")
    changed = read_file(path).stamp
    path.write_text(path.read_text().replace("cat", "dog"))
    assert len({stamp, changed, read_file(path).stamp}) == 3


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lable": "cat"}, "has a column 'lable'; the first line of CSV names the columns, path and"),
        ({"path": None}, "path of row 1 is empty; it must be a file's path"),
        ({"path": "../1.jpg"}, "path of row 1 is '../1.jpg'; it must be a file's path without '..'"),
        ({"path": "b/../../x"}, "path of row 1 is 'b/../../x'"),
        ({"path": "x\0y"}, "path of row 1 is 'x.x00y'"),
        ({"path": "gone.jpg"}, "1 of the 4 images in '.*list.*' are no files; the first is '.*/gone.jpg'"),
        ({"path": "b"}, "1 of the 4 images in .* are no files; the first is '.*/b'"),
        ({"path": "1.jpg/x"}, "1 of the 4 images in .* are no files"),
        ({"path": "long" * 100}, "1 of the 4 images in .* are no files"),
        ({"path": "b/10.jpg"}, "row 2 has path 'b/10.jpg' again; list each image once"),
        ({"path": "b//./10.jpg"}, "row 2 has path 'b/10.jpg' again; list each image once"),
        ({"label": ""}, "label is empty in 1 of the 1 rows of split 'val'|label 'dog'"),
        ({"label": "ox"}, "split 'val' has label 'ox', which train does not have; every class must have training"),
        ({"split": ""}, "split of row 1 is empty; it must be a folder's name, such as train"),
        ({"split": "a/b"}, "split of row 1 is 'a/b'"),
        ({"split": ".."}, "split of row 1 is '..'"),
        ({"bytes": "many"}, "bytes of row 1 is 'many'; it must be a whole number"),
        ({"bytes": "-1"}, "bytes of row 1 is '-1'"),
        ({"sha256": "ab"}, "sha256 of row 1 is 'ab'; it must be 64 hexadecimal digits"),
        ({"name": "../up"}, "name of row 1 is '../up'"),
        ({"name": "same"}, "row 2 has name 'same' again"),
    ],
)
def test_what_is_wrong_is_named(write: Write, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rest = {"bytes": "5", "sha256": "0" * 64, "name": "same", "lable": "cat"}
    (key,) = change
    others = [{**row, **({key: rest[key]} if key in rest else {})} for row in ROWS]
    path = write(images(tmp_path), [{**others[0], **change}, *others[1:]])
    if change == {"label": ""}:  # a whole split without labels is fine
        assert [each.values["label"] for each in read_file(path).splits["val"]] == [-1]
        return
    with pytest.raises(ValueError, match=message):
        read_file(path)


def test_a_link_in_a_circle_is_no_file(tmp_path: Path) -> None:
    (images(tmp_path) / "circle.jpg").symlink_to("circle.jpg")
    with pytest.raises(ValueError, match="1 of the 5 images in .* are no files; the first is '.*/circle.jpg'"):
        read_file(as_csv(tmp_path, [*ROWS, {"path": "circle.jpg", "label": "dog", "split": "val"}]))


def test_some_labels_are_no_labels(tmp_path: Path) -> None:
    rows = [{**row, "label": "" if row["path"] == "1.jpg" else row["label"]} for row in ROWS]
    with pytest.raises(ValueError, match="label is empty in 1 of the 3 rows of split 'train'; give each a label"):
        read_file(as_csv(images(tmp_path), rows))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is neither CSV in UTF-8, separated by commas, nor Parquet: .*mpty"),
        (b"path\n", "lists no image"),
        (b"label\ncat\n", "has no column 'path'"),
        (b"path,path\n1.jpg,1.jpg\n", "has a column 'path' twice"),
        (b"path;label\n1.jpg;cat\n", "has a column 'path;label'"),
        (b"1.jpg,cat\nb/2.jpg,dog\n", "has a column '1.jpg'; the first line of CSV names the columns"),
        (b"path,label\n1.jpg\n", "is neither CSV .*Expected 2 columns, got 1"),
        (b"path\n\xff.jpg\n", "is neither CSV in UTF-8.*UTF8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is neither CSV|has a column"),
        (b"PAR1", "is neither CSV in UTF-8, separated by commas, nor Parquet: "),
        (b"PAR1" + bytes(100) + b"PAR1", ".* nor Parquet: "),
    ],
)
def test_files_that_are_no_manifests(data: bytes, message: str, tmp_path: Path) -> None:
    images(tmp_path)
    (tmp_path / "list").write_bytes(data)
    with pytest.raises(ValueError, match=f"list' (?:{message})"):
        read_file(tmp_path / "list")


def test_parquet_of_other_types(tmp_path: Path) -> None:
    images(tmp_path)
    for column, rule in (("label", "text or whole numbers"), ("bytes", "text or whole numbers"), ("split", "text")):
        as_parquet(tmp_path, [{"path": "1.jpg", column: 1.5}])
        with pytest.raises(ValueError, match=f"has column '{column}' of type double; it must hold {rule}: convert it"):
            read_file(tmp_path / "list.parquet")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_parquet_file_is_an_error(damage: str, tmp_path: Path) -> None:
    path = as_parquet(images(tmp_path), ROWS)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:20] + bytes(40) + data[60:])
    with pytest.raises(ValueError, match="list.parquet' is neither CSV"):
        read_file(path)


def test_classes_of_an_index_keep_their_order(tmp_path: Path) -> None:
    def write(classes: str) -> Path:
        columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
        table = pa.table(columns).replace_schema_metadata({"classes": classes})
        pyarrow.parquet.write_table(table, tmp_path / "index.parquet")
        return tmp_path / "index.parquet"

    images(tmp_path)
    classes = ["dog", "nobody's", "cat", "an owl, small"]
    listing = read_file(write(json.dumps(classes)))
    assert listing.classes == classes
    assert all(classes[each.values["label"]] == each.group for items in listing.splits.values() for each in items)
    for wrong, message in (
        (json.dumps(classes[:3]), "has label 'an owl, small', which is none of its classes"),
        (json.dumps([*classes, "cat"]), "has classes twice"),
        ("{}", "no JSON list of text"),
        ("[1]", "no JSON list of text"),
        ("dog", "no JSON list of text"),
    ):
        with pytest.raises(ValueError, match=message):
            read_file(write(wrong))


def test_pandas_and_we_read_the_same(tmp_path: Path) -> None:
    path = as_csv(images(tmp_path), ROWS)
    theirs = pandas.read_csv(io.StringIO(path.read_text(encoding="utf-8")))
    listing = read_file(path)
    for split, rows in theirs.groupby("split"):
        ours = [(each.path, each.group) for each in listing.splits[str(split)]]
        assert ours == list(zip(rows["path"], rows["label"], strict=True))
