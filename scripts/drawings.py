"""Draw the pictures of README.md, docs/concepts and docs/architecture.md:   python scripts/drawings.py   (in docs/images)

Each picture takes the colours of the page that shows it (`--md-…` of the site's theme), and those of the reader's system where
it stands alone. tests/test_site.py fails when a picture is not what this program draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "docs" / "images"
_STYLE = """
.d-ink{fill:var(--md-typeset-color,#223)}
.d-dim{fill:var(--md-default-fg-color--light,#667)}
.d-line{stroke:var(--md-default-fg-color--light,#667);fill:none;stroke-width:1.5}
.d-box{fill:var(--md-code-bg-color,#eef1f4);stroke:var(--md-default-fg-color--lighter,#aab);stroke-width:1}
.d-a{fill:#00897b}.d-b{fill:#e08a00}.d-c{fill:#5c6bc0}.d-d{fill:#c2487a}
.d-frame{fill:none;stroke:#c62828;stroke-width:3}
.d-on{fill:#fff}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:14px}
.d-small{font-size:12px}.d-bold{font-weight:600}
@media (prefers-color-scheme:dark){svg:root .d-ink{fill:#e6e6ea}svg:root .d-dim{fill:#a9a9b5}
svg:root .d-line{stroke:#a9a9b5}svg:root .d-box{fill:#26282f;stroke:#555}}
"""


def text(x: float, y: float, words: str, kind: str = "d-ink", anchor: str = "start") -> str:
    """Return a line of text; `kind`: its classes, `anchor`: start, middle or end."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "d-box", extra: str = "") -> str:
    """Return a rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"{extra}/>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return an arrow."""
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" class="d-line" marker-end="url(#d-head)"/>'


def labelled(x: float, y: float, width: float, height: float, title: str, words: str = "") -> str:
    """Return a box with a title and a smaller line below it."""
    middle = x + width / 2
    lines = [text(middle, y + height / 2 + (-3 if words else 5), title, "d-ink d-bold", "middle")]
    lines += [text(middle, y + height / 2 + 15, words, "d-dim d-small", "middle")] if words else []
    return box(x, y, width, height, extra=' rx="6"') + "".join(lines)


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a drawing of `width` × `height` units. `title`: what a reader who cannot see it should know."""
    head = '<marker id="d-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    head += '<path d="M0 0L8 4L0 8z" class="d-dim"/></marker>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    body = "\n".join(parts)
    return f"{opening}\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<defs>{head}</defs>\n{body}\n</svg>\n"


def crop_over_segments() -> str:
    """A crop over restart segments: what is decoded, with the row of context that upsampling needs, and what is not."""
    columns, rows, wide, high, left, top = 8, 10, 52, 27, 20, 40
    first, last, upper, lower = 2, 5, 3, 6  # the segments and rows of MCUs that the crop touches
    parts = [text(left, 24, "One JPEG: rows of MCUs, a restart marker after each segment", "d-ink d-bold")]
    for row in range(rows):
        for column in range(columns):
            touched = first <= column <= last and upper <= row <= lower
            context = first <= column <= last and row in (upper - 1, lower + 1)
            kind, extra = ("d-a", "") if touched else ("d-b", "") if context else ("d-box", "")
            parts.append(box(left + column * wide, top + row * high, wide - 3, high - 3, kind, extra + ' rx="2"'))
    x, y = left + first * wide + 14, top + upper * high + 8
    parts.append(box(x, y, (last - first) * wide + 18, (lower - upper) * high + 10, "d-frame"))
    key = left + columns * wide + 26
    for place, (kind, title, words) in enumerate(
        [
            ("d-a", "decoded", "segments that the crop touches"),
            ("d-b", "decoded as context", "a row more, where chroma is upsampled"),
            ("d-box", "skipped", "found by their markers, not decoded"),
        ]
    ):
        at = top + 14 + place * 56
        parts += [box(key, at, 22, 22, kind, ' rx="3"'), text(key + 32, at + 10, title, "d-ink d-bold")]
        parts.append(text(key + 32, at + 27, words, "d-dim d-small"))
    at = top + 14 + 3 * 56
    parts += [box(key + 1, at, 20, 20, "d-frame"), text(key + 32, at + 10, "the crop", "d-ink d-bold")]
    parts.append(text(key + 32, at + 27, "drawn anew for each image and epoch", "d-dim d-small"))
    title = "A grid of restart segments. Only those under the crop, and one row above and below, are decoded."
    return picture(760, 330, title, parts)


def journey() -> str:
    """The journey of the bytes from storage to the model, and who works where."""
    stages = [
        ("storage", "files, shards, objects"),
        ("read ahead", "a few batches"),
        ("decode", "only under the crop"),
        ("resize, flip", "Pillow's arithmetic"),
        ("batch", "slot of the ring, uint8"),
        ("copy", "pinned, own stream"),
        ("normalise", "to bf16"),
        ("model", ""),
    ]
    parts = []
    wide, high, gap, left, top = 152, 58, 38, 20, 52
    for place, (title, words) in enumerate(stages):
        row, column = divmod(place, 4)
        x, y = left + column * (wide + gap), top + row * 150
        parts.append(labelled(x, y, wide, high, title, words))
        if column < 3:
            parts.append(arrow(x + wide + 4, y + high / 2, x + wide + gap - 4, y + high / 2))
    end = left + 3 * (wide + gap) + wide / 2
    parts.append(
        f'<path d="M{end:g} {top + high + 4:g}V{top + 104:g}H{left + wide / 2:g}V{top + 145:g}" class="d-line" '
        'marker-end="url(#d-head)"/>'
    )
    owners = [
        (0, 0, 4, "d-a", "native threads, without Python's lock"),
        (1, 0, 1, "d-a", ""),
        (1, 1, 3, "d-c", "the GPU (or native threads)"),
    ]
    for row, column, count, kind, words in owners:
        x, y = left + column * (wide + gap), top + row * 150 - 18
        parts.append(box(x, y, count * wide + (count - 1) * gap, 5, kind, ' rx="2"'))
        parts.append(text(x, y - 8, words, "d-dim d-small"))
    parts.append(text(left, 290, "No worker process, no queue between processes, no copy of a batch on the CPU.", "d-dim"))
    return picture(780, 300, "Storage, read ahead, decode, resize and flip, batch, copy, normalise, model.", parts)


def fused_geometry() -> str:
    """Three operations one after the other, each sampling the picture again, beside one sampling by one matrix."""
    parts = [text(20, 26, "op by op: three samplings", "d-ink d-bold"), text(20, 196, "fused: one sampling", "d-ink d-bold")]
    for place, (words, turn) in enumerate([("decoded", 0), ("rotate 8°", 8), ("rotate 12°", 20), ("crop, resize, flip", 20)]):
        x, last = 20 + place * 185, place == 3
        width = 84 if last else 110
        parts += [box(x + 55 - width / 2, 42, width, 84, extra=' rx="3"'), _mark(x + 55, 84, turn, mirrored=last)]
        parts.append(text(x + 55, 152, words, "d-dim d-small", "middle"))
        if place:
            parts += [arrow(x - 62, 84, x - 14, 84), text(x - 38, 74, "sample", "d-dim d-small", "middle")]
    parts.append(box(20, 214, 110, 84, "d-box", ' rx="3"'))
    quad = [_turned(75, 256, dx, dy) for dx, dy in ((-30, -28), (30, -28), (30, 28), (-30, 28))]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in quad)
    parts.append(_mark(75, 256, 0))
    parts.append(f'<polygon points="{points}" class="d-frame"/>')
    parts += [
        arrow(160, 256, 515, 256),
        text(338, 244, "one matrix: rotations · crop · resize · flip", "d-dim d-small", "middle"),
    ]
    parts.append(text(338, 274, "each output pixel is sampled once, from the decoded picture", "d-dim d-small", "middle"))
    parts += [box(588, 214, 84, 84, "d-box", ' rx="3"'), _mark(630, 256, 20, mirrored=True)]
    return picture(760, 316, "Op by op the picture is resampled three times; fused, once, by one matrix.", parts)


def _turned(x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    """Return the point (dx, dy) from (x, y), turned by 20 degrees."""
    angle = math.radians(20)
    return x + dx * math.cos(angle) - dy * math.sin(angle), y + dx * math.sin(angle) + dy * math.cos(angle)


def _mark(x: float, y: float, turn: float, *, mirrored: bool = False) -> str:
    """Return the object in the picture: a house, whose turn and mirror image show."""
    scale = "scale(-1,1) " if mirrored else ""
    place = f'<g transform="translate({x:g},{y:g}) {scale}rotate({-turn:g})">'
    house = '<path d="M-20 22V-4L0 -22L20 -4V22z" class="d-a"/><rect x="4" y="4" width="10" height="18" class="d-on"/>'
    return f"{place}{house}</g>"


def resume_over_ranks() -> str:
    """The order of an epoch as one line of positions, cut among four ranks before a stop and two after it."""
    parts = [text(20, 24, "One epoch: positions in the order that (seed, epoch) decides", "d-ink d-bold")]
    kinds = ("d-a", "d-b", "d-c", "d-d")
    wide, left = 20, 20
    for position in range(32):
        step, within = divmod(position, 8)
        ranks = 4 if step < 2 else 2
        kind = kinds[within * ranks // 8]
        x = left + position * (wide + 2) + step * 8
        parts.append(box(x, 70, wide, 30, kind, ' rx="2"'))
        parts.append(text(x + wide / 2, 90, str(within * ranks // 8), "d-on d-small", "middle"))
    for step in range(4):
        x = left + step * (8 * (wide + 2) + 8)
        parts.append(text(x + 4 * (wide + 2), 60, f"step {step}", "d-dim d-small", "middle"))
    stop = left + 16 * (wide + 2) + 11
    parts.append(f'<path d="M{stop:g} 42V142" class="d-frame" stroke-dasharray="6 4"/>')
    parts.append(text(stop - 12, 126, "4 ranks, 2 images each", "d-dim", "end"))
    parts.append(text(stop + 12, 126, "2 ranks, 4 images each", "d-dim"))
    parts.append(text(stop, 162, "stopped here: {epoch: 0, records_done: 16}", "d-ink", "middle"))
    parts.append(
        text(
            left,
            196,
            "Colours and numbers are ranks. Each step holds the same eight records on any number of ranks that divides 8.",
            "d-dim d-small",
        )
    )
    return picture(760, 210, "Thirty-two positions; sixteen done on four ranks, the rest continues on two.", parts)


def step_model() -> str:
    """A step as the longest of the resources that work at the same time."""
    parts = [text(20, 24, "The step is as long as the longest of these, because they work at the same time", "d-ink d-bold")]
    rows = [
        ("training process", "G compute · M hand-over", 300, "d-c"),
        ("workers", "(C + S + K) ÷ n", 430, "d-a"),
        ("cores", "p·(C + c) ÷ P", 520, "d-b"),
        ("storage", "p·x", 210, "d-d"),
    ]
    for place, (title, words, length, kind) in enumerate(rows):
        y = 46 + place * 44
        parts += [text(150, y + 19, title, "d-ink d-bold", "end"), box(162, y, length, 28, kind, ' rx="3"')]
        parts.append(text(172, y + 19, words, "d-on"))
    end = 162 + 520
    parts.append(f'<path d="M{end} 38V232" class="d-frame" stroke-dasharray="6 4"/>')
    parts.append(text(end, 250, "the step: the cores set the pace", "d-ink", "end"))
    parts.append(arrow(162 + 430, 274, end, 274))
    parts.append(text(162 + 424, 278, "the most that any fix of the cores can gain", "d-dim", "end"))
    return picture(760, 292, "Bars for training process, workers, cores and storage; the longest is the step.", parts)


def districts() -> str:
    """The seven districts of the package and their folders, above the native core."""
    rows = [
        [("commands", "cli · demo", "d-dim", 720)],
        [("trials", "trials", "d-d", 230), ("cloud", "cost · launch", "d-d", 474)],
        [
            ("run", "accelerate", "d-c", 150),
            ("train", "training", "d-c", 150),
            ("profile", "attach · diagnosis · report · profiling · callbacks", "d-c", 388),
        ],
        [("data", "transforms · datasets · packing · gpu · loading · inspection", "d-a", 720)],
        [("ground", "errors · _native · system · images · session", "d-b", 720)],
    ]
    parts = [text(20, 26, "python/headrace: each box is a district, with its folders", "d-ink d-bold")]
    for place, row in enumerate(rows):
        x, y = 20, 44 + place * 72
        for title, folders, kind, wide in row:
            parts += [labelled(x, y, wide, 56, title, folders), box(x, y, 6, 56, kind)]
            x += wide + 16
    y = 44 + len(rows) * 72 + 14
    parts.append(arrow(196, y - 28, 196, y - 4))
    parts += [labelled(20, y, 352, 56, "crates/headrace-py", "the module headrace._native"), box(20, y, 6, 56, "d-dim")]
    parts.append(arrow(376, y + 28, 384, y + 28))
    parts += [labelled(388, y, 352, 56, "crates/headrace-core", "the native core, without Python"), box(388, y, 6, 56, "d-dim")]
    title = "Commands; trials and cloud; run, train and profile; data; ground; below them the native core."
    return picture(760, y + 76, title, parts)


def before_after() -> str:
    """A second of the GPU in the demo, plain and under `headrace run`: the share in which it computes, and images a second."""
    document = json.loads((REPOSITORY / "benchmarks/results/data/demo.json").read_text(encoding="utf-8"))
    rows = {row["input"]: row for row in document["rows"]}
    shown = (("before", "the plain script"), ("after", "the same script under headrace run"))
    left, wide, parts = 96, 480, []
    for number, (word, name) in enumerate(shown):
        row, y = rows[name], 34 + number * 62
        busy = wide * (1 - row["wait_share"])
        parts += [text(left - 16, y + 25, word, "d-ink d-bold", "end"), box(left, y, wide, 40, extra=' rx="4"')]
        parts += [box(left, y, busy, 40, "d-a", ' rx="4"')]
        parts.append(text(left + 12, y + 25, f"{1 - row['wait_share']:.0%}", "d-on d-bold"))
        parts.append(text(left + wide + 16, y + 25, f"{row['img_s']:,.0f} img/s", "d-ink d-bold"))
    times = rows[shown[1][1]]["times"]
    device = document["settings"]["device"]
    caption = f"The GPU's time, make demo on 2 cores, {device}: green, it computes; grey, it waits for images"
    parts.append(text(left, 20, caption, "d-dim d-small"))
    parts.append(text(left, 162, f"{times:g} times as fast, the same batches bit for bit, no changed line", "d-dim d-small"))
    title = f"Before, the GPU waits most of its time for images. Under headrace run it gets {times:g} times as many a second."
    return picture(720, 174, title, parts)


PICTURES: dict[str, Callable[[], str]] = {
    "before-after": before_after,
    "crop-over-segments": crop_over_segments,
    "journey": journey,
    "fused-geometry": fused_geometry,
    "resume-over-ranks": resume_over_ranks,
    "step-model": step_model,
    "districts": districts,
}
"""The pictures by the names of their files."""


def main() -> None:
    """Draw all pictures."""
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
