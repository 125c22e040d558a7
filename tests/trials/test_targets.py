"""What a run of trials says of its targets: whether each holds, by how much, and why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.trials.experiment.cells import Cell, Experiment, Published, load
from headrace.trials.pages import page
from headrace.trials.results.row import Row
from headrace.trials.results.rows import with_gains
from headrace.trials.results.targets import BEGINNINGS, targets_of

DALI = load("dali")


def row(loader: str, load: int, cpu_ms: float) -> Row:
    return Row(loader, "resnet18", load, 32, "corrected", cpu_ms=cpu_ms, val_cpu_ms=6.0)


def rows() -> list[Row]:
    """Two loads of two loaders, and two numbers of workers."""
    found = [row("headrace", 1, 1.5), row("headrace", 12, 1.6), row("pytorch", 1, 8.0), row("pytorch", 12, 17.6)]
    found[0] = replace(found[0], img_s=99.0, ingest_img_s=200.0, compute_img_s=100.0, handover_ms=3.0)
    found[1] = replace(found[1], img_s=50.0, ingest_img_s=105.0, compute_img_s=100.0)
    found[2] = replace(found[2], img_s=95.0, expected_img_s=100.0, workers=2)
    return found


def test_every_sentence_of_a_target_is_known_by_its_beginning() -> None:
    busy = [replace(each, foreign_cores=2.0) for each in [*rows(), projected("b", 20.0, 10.0, 100.0)]]
    found = targets_of(DALI, busy)
    assert len(found) == 6 and all(sentence.startswith(BEGINNINGS) for sentence in found)


def test_each_target_says_that_it_holds_and_by_how_much() -> None:
    load, published, predicted, reached = targets_of(DALI, rows())
    assert ": holds. 1.60 ÷ 1.50 ms = 1.07." in load
    ratio = (9469 * 17.6 + 3925 * 6) / (9469 * 8 + 3925 * 6)
    assert f": holds. 190.2 ÷ 99.3 s = {ratio:.2f}." in published
    assert ": holds." in predicted and "2 workers: expected 100, measured 95 img/s. The largest error is 5.3 %" in predicted
    assert ": holds. 1 of 1 cell." in reached


def test_each_target_says_that_it_does_not_hold_and_why() -> None:
    found = rows()
    found[0] = replace(found[0], img_s=80.0)
    found[1] = replace(found[1], cpu_ms=1.8)
    found[2] = replace(found[2], expected_img_s=120.0)
    found[3] = replace(found[3], cpu_ms=9.0)
    load, published, predicted, reached = targets_of(DALI, found)
    assert all(": does not hold." in sentence for sentence in (load, published, predicted, reached))
    assert "0.09 ms an image here and all else, decoding included, 7.91 ms" in published
    assert "26.3 %" in predicted
    assert "below: headrace load 1 80.0 %." in reached
    assert "takes over a batch: 3.0 ms of CPU time, 0.9 % of a step" in reached  # 32 images at 100 a second


def test_a_run_beside_other_programs_is_no_measure_of_targets() -> None:
    busy = [replace(each, foreign_cores=0.1 + 0.6 * number) for number, each in enumerate(rows())]
    assert targets_of(DALI, busy)[0].startswith("Other programs used up to 1.9 cores")
    assert len(targets_of(DALI, busy)) == 1 + len(targets_of(DALI, rows()))


def test_a_slow_source_must_have_the_verdict_of_storage() -> None:
    cell = replace(row("pytorch", 1, 5.0), verdict="CPU_PREP")
    assert "Target, verdict STORAGE_LATENCY: does not hold. 0 of 1 cell." in targets_of(load("slow-source"), [cell])
    failed = replace(cell, error="too long")
    assert targets_of(load("slow-source"), [failed]) == []


def test_ratios_of_an_own_experiment_are_not_held_against_the_article() -> None:
    own = Experiment("own", "title", "question?", (Cell(),))
    assert not [sentence for sentence in targets_of(own, rows()) if "published" in sentence]


def projected(model: str, published_s: float, projected_s: float, compute_img_s: float) -> Row:
    return Row("pytorch", model, 1, 32, "corrected", published_s=published_s, projected_s=projected_s,
               compute_img_s=compute_img_s, projected_low_s=0.7 * projected_s, projected_high_s=1.4 * projected_s)  # fmt: skip


def test_projections_that_miss_the_published_cells_are_explained() -> None:
    experiment = replace(
        DALI,
        train_images=800,
        validation_images=600,
        not_projected="Disks are cold.",
        published=(Published({"model": "b", "load": 1}, 15.0, side="B"),),
    )
    near, computing, cpu = (
        projected("a", 11.0, 10.0, 200.0),
        projected("b", 20.0, 10.0, 100.0),
        projected("c", 26.0, 20.0, 100.0),
    )
    (words,) = targets_of(experiment, [near, computing, cpu])
    assert words.startswith("Projected to the published machine, within 15 %: 1 of 3 published cells;")
    assert "published ÷ projected is 1.10 to 2.00, median 1.30" in words
    assert "Computing binds 1 of the other 2: published ÷ projected is 2.00." in words
    assert "Side B of the publication, whose images the GPU prepares, takes 1.50 times" in words
    assert "The CPU binds 1 of the other 2: published ÷ projected is 1.30." in words
    assert "Within the interval that the processor's score leaves: 1 of 1." in words
    assert words.endswith("Disks are cold.")
    (all_near,) = targets_of(experiment, [near])
    assert "Disks are cold." not in all_near and "within 15 %: 1 of 1 published cell;" in all_near


def test_the_article_on_preprocessing_has_its_projection_explained_and_its_contradiction_named() -> None:
    assert "cuDNN" in DALI.not_projected
    assert "72, 37 and 43 %" in DALI.source and "72.59, 47.76 and 33.95 %" in DALI.source


def test_only_quiet_cells_beside_a_quiet_reference_are_in_the_headline(tmp_path: Path) -> None:
    def head_of(reference_cores: float, cell_cores: float) -> str:
        slow = replace(row("pytorch", 12, 9.0), seconds_per_epoch=60.0, foreign_cores=reference_cores)
        fast = replace(row("headrace", 12, 1.6), seconds_per_epoch=9.0, foreign_cores=cell_cores)
        some = replace(row("headrace-packed", 12, 1.6), seconds_per_epoch=45.0, foreign_cores=0.1)
        rows = with_gains([slow, fast, some], DALI.reference)
        text = page.write(tmp_path / "page.html", DALI, rows, [], [], [], []).read_text()
        return text[text.index('id="verdict"') : text.index("all cells</h2>")].replace("\u00a0", " ")

    warning = "Other programs used up to 2.0 cores while cells were measured: repeat the run on a quiet machine"
    quiet = head_of(0.0, 0.1)
    assert ">85 %<" in quiet and warning not in quiet
    busy_cell = head_of(0.0, 2.0)
    assert ">25 %<" in busy_cell and "85 %" not in busy_cell and warning in busy_cell
    busy_reference = head_of(2.0, 0.1)
    assert "less time per epoch" not in busy_reference and warning in busy_reference


def on_gpu(loader: str, model: str, seconds: float, img_s: float = 99.0) -> Row:
    found = Row(loader, model, 12, 32, "corrected", accelerator="measured on NVIDIA H100", seconds_per_epoch=seconds)
    return replace(found, simulated=False, img_s=img_s, compute_img_s=100.0)


def test_on_a_gpu_an_epoch_is_set_beside_the_loaders_that_decode_there() -> None:
    found = [on_gpu("headrace", "resnet18", 10.0), on_gpu("headrace", "resnet50", 10.0, img_s=98.0)]
    found += [on_gpu("headrace-exact", "resnet18", 15.0), on_gpu("headrace-exact", "resnet50", 8.0, img_s=90.0)]
    found += [on_gpu("torchvision-gpu", "resnet18", 12.0), on_gpu("torchvision-gpu", "resnet50", 10.0)]
    found += [replace(on_gpu("torchvision-gpu", "resnet152", 1.0), error="crashed")]
    assert len(targets_of(DALI, found)) == 2  # ResNet-152 has no row yet
    found += [on_gpu(name, "resnet152", 30.0, img_s=97.0) for name in ("headrace", "headrace-exact")]
    fused, exact, fed = targets_of(DALI, found)
    assert "with headrace is no longer than with torchvision-gpu: holds. 2 of 2 cells" in fused
    assert fused.endswith("its time over torchvision-gpu's is 0.83 to 1.00.")
    assert "with headrace-exact is no longer than with torchvision-gpu: does not hold. 1 of 2 cells" in exact
    assert exact.endswith("longer: resnet18 load 12 1.25.")
    assert "reach 97 % of computing alone at load 12: does not hold." in fed
    assert "headrace resnet50 98.0 %, headrace-exact resnet50 90.0 %, headrace resnet152 97.0 %" in fed


def test_what_a_cpu_computes_or_a_wait_simulates_is_no_measure_of_a_gpu() -> None:
    cpu = [replace(on_gpu("headrace", "resnet50", 1.0), accelerator="measured on the CPU")]
    waits = [replace(on_gpu(name, "resnet50", 1.0), simulated=True) for name in ("headrace", "torchvision-gpu")]
    assert targets_of(DALI, cpu) == targets_of(DALI, waits) == []
