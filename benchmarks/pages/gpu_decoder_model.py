"""The page of benchmarks/gpu_decoder_model.py."""

from __future__ import annotations

from pages.document import Document, facts, note, page, percent, table

WORK = {
    "file_bytes": "bytes of the file",
    "uploaded_bytes": "bytes that cross the bus: segments under the crop, tables, records",
    "segments": "restart segments under the crop, one thread each",
    "symbols": "Huffman symbols",
    "longest_segment_symbols": "symbols of the longest segment of all",
    "blocks": "8×8 blocks",
    "weights": "words of filter weights",
    "middle_pixels": "pixels between the two passes of the resize",
    "first_taps": "taps of the first pass, at most",
    "second_taps": "taps of the second pass, at most",
}


def render(document: Document) -> str:
    """Return the page."""
    found, work, assumed = document["settings"], document["work"], document["assumed"]
    cycles = assumed["cycles_between_instructions"]
    return page(
        "# The CUDA decoder: a model",
        "**Every rate on this page is predicted, and awaits a GPU.** It is a bound for the kernels if the assumptions hold.\n"
        f"The work of {found['photographs']} photographs with restart markers and RandomResizedCrop({found['size']}) was\n"
        f"counted, for batches of {found['batch']}; the GPUs' figures are their maker's.\n"
        "`benchmarks/gpu_decoder_model.py` describes the method.",
        facts(document),
        "## Predicted, awaits a GPU",
        table(
            [
                "GPU",
                "kernels, img/s predicted",
                "bus, img/s predicted",
                "multiprocessors",
                "clock",
                "memory",
                "bus rate",
                "source",
            ],
            (
                (
                    gpu["name"],
                    f"{gpu['kernels_img_s']:,.0f}",
                    f"{gpu['bus_img_s']:,.0f}",
                    f"{gpu['multiprocessors']}",
                    f"{gpu['clock_ghz']:.4f} GHz ({gpu['fp32_tflops']:g} TFLOP/s over {gpu['lanes']} lanes)",
                    f"{gpu['memory_gb_s']:,} GB/s",
                    f"{gpu['bus_gb_s']} GB/s",
                    gpu["source"],
                )
                for gpu in document["gpus"]
            ),
        ),
        "The kernels' rate is the inverse of the sum, over the kernels, of the longest of the three times below.\n"
        "The copy of the next batch runs beside them. Planning on the CPU is not in it.",
        "## Kernels, microseconds an image, predicted",
        table(
            [
                "GPU",
                "kernel",
                "by its bytes",
                "by its instructions",
                "by its longest thread",
                "registers",
                "shared memory",
                "resident warps",
            ],
            (
                (
                    f"{gpu['name']} ({gpu['target']}, {gpu['shared_kib']} KiB)",
                    row["kernel"],
                    f"{row['memory_us']:.4f}",
                    f"{row['instructions_us']:.4f}",
                    f"{row['longest_thread_us']:.4f}",
                    f"{row['registers']}",
                    f"{row['shared_bytes']:,} B",
                    f"{row['resident_warps']}",
                )
                for gpu in document["gpus"]
                for row in gpu["kernels"]
            ),
        ),
        f"By bytes: bytes / ({percent(assumed['share_of_memory_rate'])} of the memory's rate). By instructions: warp\n"
        "instructions / (multiprocessors × 4 × clock × issue), where issue is the share of cycles in which a scheduler has a\n"
        f"warp ready: resident warps / 4 / {cycles}, at most 1. By the longest thread: its symbols × instructions per symbol\n"
        f"× {cycles} cycles, once a batch. Bus: {percent(assumed['share_of_bus_rate'])} of its rate.",
        "## The work of an average image, counted",
        table(["count", "of"], ((f"{work[name]:,.1f}", words) for name, words in WORK.items())),
        f"Lanes of a warp that have a segment to decode: {percent(work['busy_lanes'], 1)}, because segments differ in length.",
        table(
            ["kernel", "bytes read", "bytes written", "warp instructions"],
            (
                (row["kernel"], *(f"{row[key]:,.1f}" for key in ("read_bytes", "written_bytes", "warp_instructions")))
                for row in document["pieces"]
            ),
        ),
        "## Assumed",
        table(
            ["assumption", "value"],
            ((name.replace("_", " "), f"{value:g}") for name, value in assumed.items()),
        ),
        note("gpu_decoder_model"),
    )
