"""The measured parts of README.md and of the page of all results: tables of results, their footnotes, the table of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.trials.experiment.cells import Cell, load

from pages.document import Document, machine, page, percent, read, table

DECODE_PEERS = {
    "Pillow": "Pillow",
    "torchvision.io + v2 (tensor)": "torchvision.io",
    "OpenCV (INTER_AREA)": "OpenCV",
    "DALI CPU (image_slice)": "DALI CPU",
}
DECODE_OURS = {
    "headrace, originals, first sight": "**headrace**, a file seen for the first time",
    "headrace, originals, with index": "**headrace**, a file seen before (index)",
    "headrace, restart-marked": "**headrace**, packed (restart markers)",
}


def find(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the row with these values. Raise LookupError where it was not measured."""
    for row in rows:
        if all(row[key] == value for key, value in wanted.items()):
            return row
    raise LookupError(f"README.md shows a row that was not measured: {wanted}; measure it too (without --only)")


def rate(number: float) -> str:
    """Return images per second."""
    return f"{number:,.0f}"


Row = tuple[str, tuple[str, ...]]
"""Name of the page, and the cells of a row."""


def short() -> str:
    """Return the table of the README: five rows and their footnotes."""
    rows = [demo(read("demo")), run(read("run")), loaders(read("loaders")), gpu(read("gpu"))[0], diagnosis(read("diagnosis"))]
    return page(_linked(rows), "\n".join(footnotes(read("demo"), read("diagnosis"))))


def summary() -> str:
    """Return the table of all results and its footnotes."""
    rows = [demo(read("demo")), loaders(read("loaders")), run(read("run")), pack(read("pack"))]
    rows += [augmentation(read("augmentation")), *trials(read("trials")), *gpu(read("gpu")), diagnosis(read("diagnosis"))]
    return page(_linked(rows), "\n".join([*footnotes(read("demo"), read("diagnosis")), trials_footnote(read("trials"))]))


def _linked(rows: list[Row]) -> str:
    linked = [[f"{what} ([page](benchmarks/results/{name}.md))", *cells] for name, (what, *cells) in rows]
    return table(["what", "before", "with headrace", ""], linked)


def demo(document: Document) -> Row:
    """The plain script and the same script under `headrace run`."""
    before, after = (find(document["rows"], input=name) for name in ("the plain script", "the same script under headrace run"))
    what = "`make demo`, 2 cores: the plain PyTorch script, and the same script under `headrace run`"
    what += f" ({document['settings']['device']}¹)"
    return "demo", (what, f"{rate(before['img_s'])} img/s", f"{rate(after['img_s'])} img/s", f"{after['times']:.1f}×")


def headline() -> str:
    """Return the number that the start page begins with."""
    _, (_, before, after, times) = demo(read("demo"))
    words = "as many images a second from the same script, without a changed line"
    rates = f"{before} → {after}; <code>make demo</code>, 2 cores, {read('demo')['settings']['device']}"
    return f'<p class="headline"><strong>{times}</strong> {words}<br><small>{rates}</small></p>'


def loaders(document: Document) -> Row:
    """Loaders beside each other."""

    def on_two(name: str) -> dict[str, Any]:
        found: dict[str, Any] = find(document["rates"], cores=2, loader=name)["uint8"]
        return found

    torch, dali, ffcv, folder, packed = map(
        on_two,
        (
            "torch DataLoader, PIL transforms",
            "DALI, CPU",
            "FFCV, original bytes",
            "headrace, image folder, first epoch",
            "headrace, packed (lossless)",
        ),
    )
    medians = [rate(one["img_s"]["median"]) for one in (torch, dali, ffcv, folder, packed)]
    return "loaders", (
        "loader alone, 2 cores, ImageNet photographs, uint8: torch DataLoader with PIL",
        f"{medians[0]} img/s (DALI CPU {medians[1]}, FFCV {medians[2]})",
        f"{medians[3]} folder · {medians[4]} packed",
        f"{folder['times']:.1f}× · {packed['times']:.1f}×",
    )


def run(document: Document) -> Row:
    """An unmodified script's input path."""
    first, later = (find(document["rows"], transforms="crop, flip, normalise", epoch=epoch) for epoch in ("first", "third"))
    return "run", (
        f"an unmodified script's input alone under `headrace run`, {document['settings']['workers']} cores: first "
        "epoch · later epochs",
        f"{rate(first['plain_img_s'])} · {rate(later['plain_img_s'])} img/s",
        f"{rate(first['run_img_s'])} · {rate(later['run_img_s'])} img/s",
        f"{first['times_faster']:.1f}× · {later['times_faster']:.1f}×",
    )


def pack(document: Document) -> Row:
    """Packing with smaller images."""
    names = ("headrace --max-side 500 --quality 90", "Pillow loop", "FFCV DatasetWriter")
    ours, pillow, ffcv = (find(document["rows"], way=name)["cpu_img_s"]["median"] for name in names)
    return "pack", (
        f"packing {document['settings']['images']:,} photographs at quality 90, at most 500 px, images per second "
        "of CPU time: Pillow loop",
        f"{rate(pillow)} img/s (FFCV's writer {rate(ffcv)})",
        f"{rate(ours)} img/s",
        f"{ours / pillow:.1f}× · {ours / ffcv:.1f}×",
    )


def augmentation(document: Document) -> Row:
    """The heaviest augmentation load."""
    row = find(document["rows"], interpolation="bilinear", load=12)
    pillow, off, fused = (row[f"{way}_ms"]["median"] for way in ("torchvision", "off", "fused"))
    return "augmentation", (
        "12 rotations and 24 flips per image before the crop, one core: torchvision on Pillow, bilinear",
        f"{pillow:.1f} ms of CPU per image",
        f"{fused:.2f} ms fused · {off:.1f} ms op by op, the same pixels",
        f"{row['fused_times']:.0f}× · {row['off_times']:.0f}×",
    )


def trials(document: Document) -> list[Row]:
    """The published experiment's highest load, for each model."""
    dali, published = document["experiments"]["dali"], load("dali")
    made: list[Row] = []
    for model, words in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50"), ("resnet152", "ResNet-152")):
        plain, exact, fused = (
            find(dali["rows"], model=model, load=12, mode="corrected", loader=loader)["seconds_per_epoch"]
            for loader in ("pytorch", "headrace-exact", "headrace")
        )
        cells = (Cell(loader=loader, model=model, load=12, mode="faithful") for loader in ("pytorch", "dali-gpu"))
        side_a, side_b = (side.seconds_per_epoch for side in map(published.published_of, cells) if side is not None)
        what = (
            f"`headrace trials dali`, {words} at augmentation load 12, seconds per epoch, simulated {dali['simulate'].upper()}³"
        )
        what += f" (published, 8 vCPUs: {side_a}; with DALI on the GPU {side_b})"
        after = f"{exact:.1f} s, the same pixels · {fused:.1f} s fused"
        made.append(("trials", (what, f"{plain:.1f} s", after, f"{plain / exact:.1f}× · {plain / fused:.1f}×")))
    return made


def gpu(document: Document) -> list[Row]:
    """Training on one GPU."""
    name = document["machine"]["gpu"].split(",")[0].removeprefix("NVIDIA ")
    made: list[Row] = []
    for model, words in (("resnet50", "ResNet-50"), ("resnet18", "ResNet-18")):
        torch, ours = (
            find(document["rows"], model=model, source=source) for source in ("torch DataLoader", "headrace, packed")
        )
        measured = f"{document['date']}, commit {document['commit']}"
        what = f"{words} training on one {name}, {document['settings']['workers']} cores ({measured}): "
        what += "torch DataLoader → headrace, packed"
        before, after = (f"{rate(one['img_s'])} img/s ({percent(one['of_compute_only'])} of the GPU)" for one in (torch, ours))
        made.append(("gpu", (what, before, after, f"{ours['img_s'] / torch['img_s']:.1f}×")))
    return made


def diagnosis(document: Document) -> Row:
    """Verdicts and predictions."""
    score, others, first = document["score"], document["others"], document.get("first_judged")
    fixes, repeats = score["prediction"], len(score["repeats"])
    right = f"{score['right']} of {score['valid']}" + ("²" if first else "")
    runs = "1 run" if repeats == 1 else f"{repeats} runs"
    return "diagnosis", (
        f"{others['of']} kinds of training job with one known fault, {runs} each: "
        "cause named right · error of the predicted gain",
        f"TraceML names the class in {others['traceml_class']} of {others['traceml_of']}, 3 rule sets no cause",
        f"{right} · median {percent(fixes['median_error'])}, 90 % within {percent(fixes['p90_error'])}",
        "",
    )


def footnotes(demo_document: Document, diagnosis_document: Document) -> list[str]:
    """Return the first two footnotes."""
    settings = demo_document["settings"]
    simulated = settings["gpu_img_s"] is not None
    compute = (
        f"¹ Compute is a timed wait at {rate(settings['gpu_img_s'])} img/s: {settings['gpu_source']}. " if simulated else ""
    )
    lines = [f"{compute}The demo ran on {machine(demo_document)}, {demo_document['date']}."]
    if first := diagnosis_document.get("first_judged"):
        score = diagnosis_document["score"]
        judged = "As the runs were first judged."
        if (first["right"], first["runs"]) != (score["right"], score["valid"]):
            right = f"{first['right']} of the first {first['runs']} runs were right as first judged."
            judged = f"Judged again after rules were changed; {right}"
        lines.append(f"² {judged} The rules were written with the jobs at hand.")
    return lines


def trials_footnote(document: Document) -> str:
    """Return the footnote of the trials."""
    return (
        "³ Compute is a timed wait at the published rate of ResNet-50, for the others estimated from it by their operations. "
        f"Measured on {machine(document)}."
    )


def decoding() -> str:
    """Return the table of decoding on one core, and what two threads do."""
    document = read("decode")
    rows = document["rows"]
    full = find(rows, way="libjpeg-turbo, full decode alone")
    peers = {row["way"]: row for row in rows if row["way"] in DECODE_PEERS}  # those that were installed
    lines = [("libjpeg-turbo, full decode alone", rate(full["img_s"]["median"]), f"{full['times_full_decode']:.2f}")]
    lines.append(
        (
            " · ".join(DECODE_PEERS[way] for way in peers),
            " · ".join(rate(one["img_s"]["median"]) for one in peers.values()),
            " · ".join(f"{one['times_full_decode']:.2f}" for one in peers.values()),
        )
    )
    for name, words in DECODE_OURS.items():
        found: Mapping[str, Any] = find(rows, way=name)
        lines.append((words, rate(found["img_s"]["median"]), f"{found['times_full_decode']:.2f}"))
    threads = document["two_threads"]
    return page(
        f"One core, whole job (JPEG bytes → random crop → 224×224 → flip), {document['settings']['images']} "
        "ImageNet photographs "
        "([page](benchmarks/results/decode.md), `make bench-decode`):",
        table(["way", "img/s per core", "× libjpeg-turbo's full decode alone"], lines),
        f"Two threads do {threads['times']:.2f} times as much as one." if threads else "",
    )


def render() -> dict[str, str]:
    """Return the parts of README.md by the names of their markers."""
    return {"short": short(), "decoding": decoding()}
