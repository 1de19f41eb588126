"""The page is one sound HTML file that needs no other, says what the data says, and runs nothing that a name may hold."""

import base64
import re
from html.parser import HTMLParser
from io import BytesIO

import pytest
from PIL import Image

from components.report.pictures import picture

from .conftest import METRICS, Left

VOID = {"meta", "img", "br", "hr", "link", "input"}
HOSTILE = "<script>alert(1)</script> & \"quoted\" 'too' | `code` *stars*"


class Page(HTMLParser):
    """Tags in order, each closed; all attributes; all text by the tag around it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if text.strip():
            self.texts.append((self.open[-1], text.strip()))


@pytest.fixture
def page(left: Left) -> Page:
    outputs, _ = left.make()
    return Page(outputs.page.read_text())


def test_it_is_sound_and_needs_no_other_file(page: Page) -> None:
    assert not page.open and {"html", "head", "title", "body", "h1", "table"} <= set(page.tags)
    assert not {"script", "link", "iframe", "object", "embed", "a"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href", "srcset", "poster", "data", "background", "action"):
            assert value.startswith("data:image/")
    style = " ".join(text for tag, text in page.texts if tag == "style")
    assert style and not re.search(r"url\(|@import|@font-face|https?:", style)
    policy = next(value for _, name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'") and "script" not in policy


def test_it_reads_in_the_light_in_the_dark_and_on_paper(page: Page) -> None:
    style = " ".join(text for tag, text in page.texts if tag == "style")
    assert "prefers-color-scheme: dark" in style and "@media print" in style
    assert ("meta", "content", "light dark") in page.attributes
    assert all(value for tag, name, value in page.attributes if (tag, name) == ("img", "alt"))


def test_every_metric_stands_in_it_unrounded(page: Page) -> None:
    cells = [text for tag, text in page.texts if tag == "td"]
    for stage, metrics in METRICS.items():
        if stage not in ("linear_probe/old", "prepare/some_more"):
            for name, value in metrics.items():
                found = [cells[i + 1] for i, cell in enumerate(cells[:-1]) if cell == f"{stage}/{name}"]
                assert str(value) in found, (stage, name)


def test_a_worse_score_is_marked_and_a_smaller_decay_is_better(left: Left) -> None:
    outputs, _ = left.make()
    text = outputs.page.read_text()
    assert '<td class="number down">-5.50</td>' in text
    assert '<td class="number up">+9.56</td>' in text and '<td class="number up">-4.00</td>' in text


def test_figures_are_pictures_of_no_more_than_the_size_asked_for(drawn: Left) -> None:
    outputs, _ = drawn.make()
    page = Page(outputs.page.read_text())
    sources = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    titles = [text for tag, text in page.texts if tag == "figcaption"]
    assert titles == [
        "curves over the steps", "first training crops with context and targets", "eigenvalues of AAᵀ",
        "actual and predicted classes", "finetuning, epoch by epoch", "masks of some frames", "some of the images",
    ]  # fmt: skip
    for source in sources:
        kind, _, data = source.removeprefix("data:image/").partition(";base64,")
        with Image.open(BytesIO(base64.b64decode(data, validate=True))) as image:
            image.load()
            assert image.format and image.format.lower() == kind and max(image.size) <= 300
    assert len(outputs.page.read_bytes()) < 300_000


def test_a_long_table_says_that_it_is_cut(left: Left) -> None:
    left.put("plots/davis.csv", ["encoder,object", *(f"pretrained,{i}" for i in range(501))])
    outputs, _ = left.make()
    page = Page(outputs.page.read_text())
    assert ("summary", "every object, percent (the first 500 of 501 rows)") in page.texts
    assert ("td", "499") in page.texts and ("td", "500") not in page.texts


def test_a_drawing_keeps_its_lines_and_a_photograph_its_shades() -> None:
    lines = Image.new("RGB", (200, 100), "white")
    lines.paste((0, 114, 178), (20, 20, 180, 30))
    kept = decoded(picture(lines, 200))
    assert kept.getpixel((100, 25)) == (0, 114, 178) and kept.getpixel((5, 5)) == (255, 255, 255)
    clear = Image.new("RGBA", (10, 10), (0, 0, 0, 0))  # transparent is white, not black
    assert decoded(picture(clear, 200)).getpixel((5, 5)) == (255, 255, 255)
    shades = Image.linear_gradient("L").resize((400, 400))
    small = decoded(picture(shades, 100)).convert("L")
    assert small.size == (100, 100)
    assert all(abs(small.getpixel((50, y)) - shades.getpixel((50, 4 * y + 2))) < 8 for y in range(0, 100, 9))


def decoded(source: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB")


def test_names_are_text_and_never_code(left: Left, record) -> None:
    named = record("linear_probe")
    named["data"]["name"] = HOSTILE
    left.put("protocols/linear_probe/new.json", named)
    rows = [["actual", "predicted"], [HOSTILE, HOSTILE], [HOSTILE, "b"]]
    text = "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    left.put("plots/linear_probe/new/heads.csv", text.replace("actual,", "features,").replace("predicted", "chosen"))
    left.put("plots/linear_probe/new/confusion.csv", text)
    left.put(
        "params/pretrain.yaml",
        {"dataset": HOSTILE, "encoder": {}, "optimisation": {"epochs": 1}},
    )
    outputs, _ = left.make()
    page = Page(outputs.page.read_text())
    assert "script" not in page.tags and not page.open
    assert HOSTILE in [text for tag, text in page.texts if tag == "td"]
    assert any(HOSTILE in text for tag, text in page.texts if tag == "title")
    for line in outputs.report.read_text().splitlines():
        assert "<script" not in line.replace("\\<script", "")
        if line.startswith("| name "):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3  # the cell's own bar is no border
