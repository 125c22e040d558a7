"""`headrace cost`: time and money of an epoch and a run on each instance type."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import math
from pathlib import Path

from rich import box
from rich.table import Table

from headrace.cli.shared import output
from headrace.cli.shared.number_types import positive_count, positive_number
from headrace.cost import page
from headrace.cost.answer import SHOWN_ROWS, Answer, Question, answer, usd
from headrace.cost.chart import write_png
from headrace.cost.estimates.budget import Limits
from headrace.cost.estimates.calibrate import calibrate, factors
from headrace.cost.estimates.estimate import Estimate, exactly
from headrace.cost.estimates.floors import INPUT_MODES, LOADERS, Job
from headrace.cost.estimates.measured import MeasuredRates, input_cpu_ms, measured_rates
from headrace.cost.estimates.runs import Purchase, Row
from headrace.cost.market.live_prices import read_table, refresh
from headrace.cost.market.prices import PREFIX, SERVICES, Instance, PriceTable, Service
from headrace.datasets.open import open as open_dataset
from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.report.text import numbers
from headrace.system.files.atomic_write import write_output

SUMMARY = "say what an epoch and a run cost on each instance type, on demand and spot, and which resource binds"
EXAMPLE = """
headrace cost --model resnet50 --images 1281167 --epochs 16 --bytes 141e9 --deadline 4
headrace cost --model resnet50 --images 1281167 --epochs 100 --instance p2.16xlarge --img-s 400,700 --spot-discount 0.89
headrace cost --hours 50 --instance ml.g5.xlarge --spot-discount 0.6
headrace cost refresh --region eu-west-1                     # current prices from AWS, kept for later
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace cost`."""
    parser.add_argument(
        "action", nargs="?", choices=("refresh",), metavar="refresh", help="fetch current prices from AWS (needs credentials)"
    )
    _job_arguments(parser)
    _machine_arguments(parser)
    _spot_arguments(parser)
    parser.add_argument("--deadline", type=positive_number, metavar="HOURS", help="the run must end within so many hours")
    parser.add_argument("--budget", type=positive_number, metavar="USD", help="the run must cost at most so much")
    parser.add_argument(
        "--max-instances", type=int, default=1, metavar="N", help="instances that may work together (default: 1)"
    )
    parser.add_argument(
        "--reuse-runs", type=int, default=1, metavar="N", help="runs that will use the packed data (default: 1)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with chart, table and arithmetic")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the chart of time against money (needs the extra plot)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV")
    parser.add_argument(
        "--calibrate",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="learn from finished runs: compare predicted with observed seconds",
    )
    parser.add_argument("--list", action="store_true", help="list the instance types of the price table")


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument("--model", metavar="NAME", help="resnet18, resnet34, resnet50, resnet101 or resnet152")
    group.add_argument("--images", type=positive_count, metavar="N", help="images of an epoch")
    group.add_argument("--epochs", type=positive_number, default=None, metavar="N", help="passes over the images (default: 1)")
    group.add_argument("--bytes", type=positive_number, metavar="N", help="bytes of the dataset, such as 141e9")
    group.add_argument(
        "--objects", type=positive_count, metavar="N", help="objects of the dataset in the store (default: estimated)"
    )
    group.add_argument("--data", metavar="PATH", help="read number of images, bytes and objects from a dataset")
    group.add_argument(
        "--loader", choices=LOADERS, default="headrace-packed", help="who feeds the GPU (default: headrace-packed)"
    )
    group.add_argument(
        "--input-mode",
        choices=(*INPUT_MODES, "auto"),
        default="local",
        help="how the data reach the instance; auto: all ways (default: local, they lie there)",
    )
    group.add_argument("--img-s", type=_rates, default=(), metavar="A,B", help="measured rates of the whole job, in img/s")
    group.add_argument(
        "--img-s-per-core",
        type=positive_number,
        metavar="RATE",
        help="the loader's img/s per vCPU, as `headrace tune` measures",
    )
    group.add_argument(
        "--augmentation",
        metavar="LOAD",
        help="CPU milliseconds that the input takes for an image; or a session folder that measured them; or light or heavy, "
        "1 or 12 × (flips, rotation) before the crop",
    )
    group.add_argument("--cpu", metavar="NAME", help="processor of that measurement (default: of this machine)")
    group.add_argument("--gpu-img-s", type=positive_number, metavar="RATE", help="img/s of one GPU that never waits for input")
    group.add_argument(
        "--session",
        type=Path,
        metavar="FOLDER",
        help="take rates from a session, or the JSON of tune or trials; price the fixes of the session",
    )
    group.add_argument("--hours", type=positive_number, metavar="H", help="price a run of known length instead")


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine")
    group.add_argument(
        "--instance",
        nargs="+",
        default=[],
        metavar="TYPE",
        help="instance types; `ml.` before one means SageMaker (default: all)",
    )
    group.add_argument("--service", choices=(*SERVICES, "both"), help="EC2, SageMaker or both (default: by the names)")
    group.add_argument(
        "--region", default="us-east-1", metavar="NAME", help="region, or `all` that have been refreshed (default: us-east-1)"
    )
    group.add_argument(
        "--data-region", metavar="NAME", help="region of the data, if they must be copied (default: that of the run)"
    )
    group.add_argument(
        "--usd-per-hour", type=positive_number, metavar="USD", help="price of an instance hour instead of the table's"
    )


def _spot_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("spot")
    group.add_argument("--spot-discount", type=_share, metavar="SHARE", help="discount on the price on demand, 0 to 1")
    group.add_argument("--interruption-hours", type=positive_number, metavar="H", help="mean hours between interruptions")
    group.add_argument(
        "--checkpoint-minutes", type=positive_number, metavar="M", help="minutes between checkpoints (default: the best)"
    )
    group.add_argument(
        "--checkpoint-seconds", type=positive_number, metavar="S", help="seconds that a checkpoint takes (default: 2)"
    )
    group.add_argument(
        "--restart-minutes", type=positive_number, metavar="M", help="minutes from an interruption to training (default: 8)"
    )


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 1 (60 % is 0.6)")
    return value


def _rates(text: str) -> tuple[float, ...]:
    return tuple(positive_number(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Estimate the cost of a job, print the rows and the choice, and write the files asked for. Return the exit code."""
    if args.action == "refresh":
        refreshed = refresh(args.region, log=output.log)
        output.emit(
            args, refreshed, lambda: output.say(f"{refreshed['prices']} prices of {args.region}, stored in {refreshed['file']}")
        )
        return 0
    if args.calibrate:
        learned = calibrate(args.calibrate)
        output.emit(args, dataclasses.asdict(learned), lambda: output.say("\n".join(learned.lines())))
        return 0
    tables = read_table(args.region, output.log)
    if args.list:
        output.emit(
            args, {"instances": [dataclasses.asdict(one) for one in tables[0].instances.values()]}, lambda: _list(tables[0])
        )
        return 0
    found = answer(_question(args, tables[0]), tables)
    if args.csv:
        _write_csv(args.csv, found)
    if args.png:
        write_png(found, args.png, title=" ".join(("headrace", *args.words)))
    if args.html:
        page.write(found, args.html, title=" ".join(("headrace", *args.words)))
    output.emit(args, found.document(), lambda: _show(found, args))
    return 0


def _question(args: argparse.Namespace, table: PriceTable) -> Question:
    if args.hours is not None and (args.img_s or args.images):
        raise UsageError("--hours gives the length of the run, so no rate is needed", hint="leave out --img-s and --images")
    if args.augmentation and (args.hours is not None or args.img_s or args.img_s_per_core):
        raise UsageError(
            "--augmentation gives the CPU time of the input, but another option gives the rate or the length of the run",
            hint="leave out --img-s, --img-s-per-core and --hours, or --augmentation",
        )
    if args.hours is not None and not args.instance:
        raise UsageError("--hours needs --instance TYPE", hint="headrace cost --list shows all types")
    purchase = Purchase(
        usd_per_hour=args.usd_per_hour,
        spot_discount=args.spot_discount,
        hours_between=args.interruption_hours,
        checkpoint_s=args.checkpoint_seconds,
        interval_s=None if args.checkpoint_minutes is None else 60 * args.checkpoint_minutes,
        restart_s=None if args.restart_minutes is None else 60 * args.restart_minutes,
        calibration=factors(),
    )
    measured = measured_rates(args.session) if args.session else None
    job = None if args.hours is not None else _job(args, table, measured)
    return Question(
        job=job,
        hours=args.hours,
        rates=args.img_s,
        asked=_asked(args, table),
        purchase=purchase,
        limits=Limits(args.deadline, args.budget),
        max_instances=args.max_instances,
        compare_loaders=args.loader != "pytorch" and not args.img_s and (job is None or job.img_s_per_core is None),
        all_input_modes=args.input_mode == "auto",
        watched=measured.diagnosis if measured else None,
    )


def _job(args: argparse.Namespace, table: PriceTable, measured: MeasuredRates | None) -> Job:
    images, size, objects = args.images, args.bytes, args.objects
    if args.data:
        data = open_dataset(args.data)
        images = images or len(data)
        size = size or _dataset_bytes(data)
        objects = objects or len(data.table.files) or None
    if images is None and measured is not None:
        images = measured.images
    if images is None:
        raise UsageError("the number of images is not given", hint="--images N, or --data PATH of the dataset")
    rate, augmentation, measured_on = _input_rate(args, measured)
    gpu = args.gpu_img_s or (measured.gpu_img_s if measured else None)
    cpu = table.cpu_by_model_name(measured_on) if measured_on else None  # unknown: as this machine's
    if args.cpu is not None:
        cpu = table.cpu_by_model_name(args.cpu) or args.cpu
        table.cpu_score(cpu)  # unknown names are refused
    return Job(
        images=images,
        epochs=args.epochs or 1.0,
        model=args.model,
        dataset_bytes=size,
        objects=objects,
        objects_source="--objects" if args.objects else "--data",
        data_region=args.data_region,
        reuse_runs=args.reuse_runs,
        loader=args.loader,
        augmentation=augmentation,
        input_mode="local" if args.input_mode == "auto" else args.input_mode,
        img_s_per_core=rate,
        measured_cpu=cpu,
        gpu_img_s=None if gpu is None else exactly(gpu, "--gpu-img-s" if args.gpu_img_s else "the session", "measured"),
    )


def _input_rate(args: argparse.Namespace, measured: MeasuredRates | None) -> tuple[Estimate | None, str | None, str | None]:
    """Return the input's img/s per vCPU, the table's augmentation load, and the processor measured on, as far as given."""
    session_cpu = measured.cpu if measured else None
    if args.augmentation is None:
        rate = args.img_s_per_core or (measured.img_s_per_core if measured else None)
        source = "--img-s-per-core" if args.img_s_per_core else "the session"
        return (exactly(rate, source, "measured") if rate else None), None, session_cpu
    try:
        milliseconds, cpu, source = float(args.augmentation), None, f"--augmentation {args.augmentation}"
    except ValueError:
        if not Path(args.augmentation).is_dir():
            return None, args.augmentation, None
        (milliseconds, cpu), source = input_cpu_ms(Path(args.augmentation)), f"the session {args.augmentation}"
    if not 0.001 <= milliseconds <= 1e7:
        raise UsageError(f"the input cannot take {milliseconds:g} CPU milliseconds an image", hint="0.001 to 10,000,000")
    return exactly(1000 / milliseconds, source, "measured"), None, cpu


def _dataset_bytes(data: Dataset) -> float | None:
    """Return the bytes of all records; None where the sizes are not known without opening the files."""
    for sizes in (data.table.size, data.table.file_size):
        if sizes is not None and len(sizes) and (sizes >= 0).all():
            return float(sizes.sum())
    return None


def _asked(args: argparse.Namespace, table: PriceTable) -> list[tuple[Instance, Service]]:
    """Return the instance types and services to price: those named, else all but the historic ones."""
    asked: list[tuple[Instance, Service]] = []
    services: tuple[Service, ...] = SERVICES if args.service in (None, "both") else (args.service,)
    if not args.instance:
        return [(one, service) for one in table.instances.values() if not one.historic for service in services]
    for name in ",".join(args.instance).split(","):
        if args.service is None:
            services = ("sagemaker",) if name.startswith(PREFIX) else ("ec2",)
        asked += [(table.instance(name), service) for service in services]
    return asked


def _write_csv(path: Path, found: Answer) -> None:
    rows = [
        {name: "; ".join(value) if name == "missing" else value for name, value in row.items() if name != "floors"}
        for row in found.document()["rows"]  # type: ignore[attr-defined]
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_output(path, text.getvalue())


def _list(table: PriceTable) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("type", "GPUs", "vCPUs", "EC2 USD/h", "SageMaker USD/h"):
        shown.add_column(name, justify="left" if name in ("type", "GPUs") else "right")
    for one in table.instances.values():
        prices = [f"{table.price(one, service).usd_per_hour:.3f}" for service in SERVICES]
        shown.add_row(one.name + (" (historic)" if one.historic else ""), f"{one.gpus} × {one.gpu}", str(one.vcpus), *prices)
    output.stdout_console.print(shown)
    output.say(f"prices of {table.region}, {table.source('ec2')['date']}: {table.source('ec2')['source']}")


def _show(found: Answer, args: argparse.Namespace) -> None:
    rows = found.rows
    shown = rows if args.instance else sorted(rows, key=lambda row: row.best_usd)[:SHOWN_ROWS]
    output.stdout_console.print(_row_table(shown, found))
    if len(shown) < len(rows):
        output.say(f"{len(rows) - len(shown)} dearer rows are not shown; --json, --csv and --html have all")
    for line in found.sentences():
        output.say(line)
    if found.question.watched is not None and found.watched is None:
        output.log("headrace cost: one --instance TYPE, the machine of the session, prices what its fixes save")
    for name, path in (("chart", args.png), ("page", args.html)):
        if path:
            output.say(f"{name}: {path}")


def _row_table(rows: list[Row], found: Answer) -> Table:
    modes = found.question.all_input_modes
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    given = ("instance", *(["input"] if modes else []), "img/s", "binds", "an epoch", "run")
    for name in (*given, "on demand", "spot", "total", "total, spot"):
        table.add_column(
            name, justify="left" if name in ("instance", "input", "binds") else "right", no_wrap=name == "instance"
        )
    for row in rows:
        bound = "≥ " if row.missing else ""
        table.add_row(
            row.name,
            *([row.input_mode or ""] if modes else []),
            _marked(row),
            row.binds,
            numbers.seconds(row.seconds_per_epoch) if row.seconds_per_epoch else "",
            numbers.seconds(row.hours * 3600),
            usd(row.on_demand_usd),
            usd(row.spot_usd),
            bound + usd(row.total_usd),
            (bound if row.spot_total_usd is not None else "") + usd(row.spot_total_usd),
        )
    return table


def _marked(row: Row) -> str:
    """Return the rate as text, with `~` before an estimated rate."""
    if row.img_s is None:
        return ""
    return ("~" if row.rate_kind == "estimated" else "") + numbers.image_rate(row.img_s)
