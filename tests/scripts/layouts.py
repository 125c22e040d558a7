"""Tiny data in the layouts that public training scripts expect. Every file is generated, the same in each run.

A layout is a function of an empty folder. Photographs have many sizes. A few of each folder are what large collections hold
too: a gray JPEG, a progressive one, one in CMYK, one turned by EXIF, a PNG by the name of a JPEG, one with cut EXIF data.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from sample_images import photograph

SIZES = ((96, 72), (64, 80), (120, 90), (75, 75), (150, 113), (83, 61), (200, 133), (110, 146))
CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox")
CUT_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12\0\x03\0\0\0\x01\0\x01\0\0"
TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


def picture(number: int, *, plain: bool = False, scale: float = 1.0) -> bytes:
    """Return a JPEG file (one in eight: a PNG). plain: every file is a baseline JPEG in RGB."""
    width, height = (round(side * scale) for side in SIZES[number % len(SIZES)])
    image, file, kind = photograph(width, height, seed=number), io.BytesIO(), 0 if plain else number % 24
    if kind == 5:
        image.convert("L").save(file, "JPEG", quality=85)
    elif kind == 7:
        image.save(file, "JPEG", quality=80, progressive=True)
    elif kind == 11:
        image.save(file, "JPEG", quality=90, exif=TURNED)
    elif kind == 13:
        image.convert("CMYK").save(file, "JPEG", quality=85)
    elif kind == 17:
        image.save(file, "PNG")
    elif kind == 19:
        image.save(file, "JPEG", quality=88, exif=CUT_EXIF)
    else:
        image.save(file, "JPEG", quality=70 + number % 25, subsampling=("4:2:0", "4:4:4", "4:2:2")[number % 3])
    return file.getvalue()


def _write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def _folder(root: Path, each: int, first: int, *, plain: bool = False, ending: str = ".JPEG", scale: float = 1.0) -> None:
    for place, name in enumerate(CLASSES):
        for number in range(each):
            count = first + place * each + number
            _write(root / name / f"{name}_{number:04d}{ending}", picture(count, plain=plain, scale=scale))


def imagenet(root: Path) -> None:
    """`train/CLASS/*.JPEG`, `val/CLASS/*.JPEG`."""
    _folder(root / "train", 6, 0)
    _folder(root / "val", 3, 100)


def imagenet_plain(root: Path) -> None:
    """As `imagenet`, but every file is a baseline JPEG in RGB named `.jpg`, and there is a folder `test`."""
    for place, name in enumerate(("train", "val", "test")):
        _folder(root / name, 6 if name == "train" else 3, 100 * place, plain=True, ending=".jpg")


def flowers(root: Path) -> None:
    """As `imagenet`, with five classes."""
    imagenet(root)
    for part in ("train", "val"):
        shutil.rmtree(root / part / CLASSES[-1])


def one_folder(root: Path) -> None:
    """`CLASS/*.jpg`."""
    _folder(root, 6, 0, plain=True, ending=".jpg")


def flat(root: Path) -> None:
    """`*.jpg`."""
    for number in range(24):
        _write(root / f"{number:04d}.jpg", picture(number, plain=number % 8 != 5))


def flat_plain(root: Path) -> None:
    """`*.jpg`, RGB baseline JPEGs only."""
    for number in range(24):
        _write(root / f"{number:04d}.jpg", picture(number, plain=True))


def thousands(root: Path) -> None:
    """4,016 `*.jpg`: names of 24 files. A script keeps 4,000 for its validation."""
    flat_plain(root)
    for number in range(24, 4016):
        (root / f"{number:04d}.jpg").hardlink_to(root / f"{number % 24:04d}.jpg")


def flat_named(root: Path) -> None:
    """`CLASS_NUMBER.jpg`, as the Oxford pets."""
    for number in range(36):
        _write(root / f"{CLASSES[number % 3]}_{number}.jpg", picture(number, plain=True))


def _mask(number: int, scale: float = 1.0, classes: int = 2) -> Image.Image:
    width, height = (round(side * scale) for side in SIZES[number % len(SIZES)])
    y, x = np.mgrid[0:height, 0:width]
    values = ((x // 9 + y // 7 + number) % classes).astype(np.uint8)
    return Image.fromarray(values)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def carvana(root: Path) -> None:
    """`imgs/*.jpg`, `masks/*_mask.gif`."""
    for number in range(20):
        file = io.BytesIO()
        Image.fromarray(np.asarray(_mask(number)) * 255).save(file, "GIF")
        _write(root / "imgs" / f"car{number:02d}.jpg", picture(number, plain=True))
        _write(root / "masks" / f"car{number:02d}_mask.gif", file.getvalue())


VOC_CLASSES = ("aeroplane", "bicycle", "bird", "person")


def _annotation(name: str, number: int) -> str:
    width, height = SIZES[number % len(SIZES)]
    objects = "".join(
        f"<object><name>{VOC_CLASSES[(number + place) % 4]}</name><pose>Left</pose><truncated>0</truncated>"
        "<difficult>0</difficult>"
        f"<bndbox><xmin>{4 + 9 * place}</xmin><ymin>{5 + 3 * place}</ymin><xmax>{width // 2 + 5 * place}</xmax>"
        f"<ymax>{height // 2 + 4 * place}</ymax></bndbox></object>"
        for place in range(2)
    )
    return (
        f"<annotation><folder>VOC2012</folder><filename>{name}.jpg</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size><segmented>1</segmented>{objects}</annotation>"
    )


def voc(root: Path) -> None:
    """`VOCdevkit/VOC2007` and `VOC2012`: images, boxes, masks and lists of both."""
    for year in ("2007", "2012"):
        base, names = root / "VOCdevkit" / f"VOC{year}", []
        for number in range(20):
            names.append(f"{year}_{number:06d}")
            _write(base / "JPEGImages" / f"{names[-1]}.jpg", picture(number, plain=True))
            _write(base / "Annotations" / f"{names[-1]}.xml", _annotation(names[-1], number))
            mask = _mask(number, classes=5)
            mask.putpalette([value for shade in range(256) for value in (shade, 255 - shade, shade // 2)])
            for folder in ("SegmentationClass", "SegmentationClassAug"):
                _write(base / folder / f"{names[-1]}.png", _png(mask))
        for kind in ("Main", "Segmentation", "SegmentationAug"):
            for name, chosen in {"train": names[:14], "val": names[14:], "trainval": names, "test": names[14:]}.items():
                _write(base / "ImageSets" / kind / f"{name}.txt", "\n".join(chosen) + "\n")
            _write(base / "ImageSets" / kind / "train_aug.txt", "\n".join(names[:14]) + "\n")


def voc_many(root: Path) -> None:
    """72 images of `VOCdevkit/VOC2012` with boxes."""
    names = [f"2012_{number:06d}" for number in range(72)]
    for number, name in enumerate(names):
        _write(root / "VOCdevkit/VOC2012/JPEGImages" / f"{name}.jpg", picture(number, plain=number % 24 != 19))
        _write(root / "VOCdevkit/VOC2012/Annotations" / f"{name}.xml", _annotation(name, number))
    for chosen in ("train", "trainval", "val"):
        _write(root / "VOCdevkit/VOC2012/ImageSets/Main" / f"{chosen}.txt", "\n".join(names) + "\n")


def coco(root: Path) -> None:
    """`train2017`, `val2017`, `annotations/instances_*.json`, with the images of `.txt` lists and yolo labels too."""
    for part, numbers in {"train2017": range(16), "val2017": range(16, 24)}.items():
        images, boxes = [], []
        for number in numbers:
            width, height = SIZES[number % len(SIZES)]
            name = f"{number:012d}.jpg"
            _write(root / part / name, picture(number, plain=True))
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            for place in range(2):
                x, y, w, h = 3 + 5 * place, 4 + 6 * place, width // 2, height // 3
                boxes.append(
                    {
                        "id": number * 2 + place + 1,
                        "image_id": number,
                        "category_id": 1 + (number + place) % 3,
                        "bbox": [x, y, w, h],
                        "area": w * h,
                        "iscrowd": 0,
                        "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
                    }
                )
        categories = [{"id": place + 1, "name": name, "supercategory": "thing"} for place, name in enumerate(CLASSES[:3])]
        text = json.dumps({"info": {}, "images": images, "annotations": boxes, "categories": categories})
        _write(root / "annotations" / f"instances_{part}.json", text)


def coco_2017(root: Path) -> None:
    """`coco`, with the folders below `images`."""
    coco(root)
    for part in ("train2017", "val2017"):
        (root / "images").mkdir(exist_ok=True)
        (root / part).rename(root / "images" / part)


def u2net(root: Path) -> None:
    """`DUTS/DUTS-TR/DUTS-TR/im_aug/*.jpg` and `gt_aug/*.png`."""
    base = root / "DUTS/DUTS-TR/DUTS-TR"
    for number in range(30):
        _write(base / "im_aug" / f"{number:04d}.jpg", picture(number, plain=True))
        _write(base / "gt_aug" / f"{number:04d}.png", _png(Image.fromarray(np.asarray(_mask(number)) * 255)))


def yolo(root: Path) -> None:
    """`images/train/*.jpg`, `labels/train/*.txt` (boxes), the same with `val`; lists of them; `data.yaml`."""
    for part, numbers in {"train": range(16), "val": range(16, 24)}.items():
        for number in numbers:
            _write(root / "images" / part / f"{number:04d}.jpg", picture(number, plain=number % 8 != 5))
            lines = [f"{(number + k) % 3} {0.3 + 0.2 * k:.2f} {0.4 + 0.1 * k:.2f} 0.3 0.25" for k in range(2)]
            _write(root / "labels" / part / f"{number:04d}.txt", "\n".join(lines) + "\n")
        _write(root / f"{part}.txt", "".join(f"{root}/images/{part}/{number:04d}.jpg\n" for number in numbers))
    names = "names: [ant, bee, cat]\nnc: 3\n"
    _write(root / "data.yaml", f"path: {root}\ntrain: images/train\nval: images/val\n{names}")
    _write(root / "custom.data", f"train={root}/train.txt\nvalid={root}/val.txt\nnames={root}/names.txt\n")
    _write(root / "names.txt", "ant\nbee\ncat\n")


def yolo_segments(root: Path) -> None:
    """As `yolo`, with outlines as labels."""
    yolo(root)
    for label in root.glob("labels/*/*.txt"):
        number = int(label.stem)
        label.write_text(f"{number % 3} 0.2 0.2 0.7 0.25 0.6 0.8 0.25 0.6\n")


def ade20k(root: Path) -> None:
    """`images/{training,validation}/*.jpg` and `annotations/.../*.png`, with the lists of CSAILVision."""
    for part, numbers in {"training": range(12), "validation": range(12, 18)}.items():
        lines = []
        for number in numbers:
            width, height = SIZES[number % len(SIZES)]
            name = f"ADE_{part[:5]}_{number:08d}"
            _write(root / "images" / part / f"{name}.jpg", picture(number, plain=True))
            _write(root / "annotations" / part / f"{name}.png", _png(_mask(number, classes=5)))
            lines.append(
                json.dumps(
                    {
                        "fpath_img": f"images/{part}/{name}.jpg",
                        "fpath_segm": f"annotations/{part}/{name}.png",
                        "width": width,
                        "height": height,
                    }
                )
            )
        _write(root / f"{part}.odgt", "\n".join(lines) + "\n")


def captions(root: Path) -> None:
    """`images/*.jpg`, `captions.csv` (comma, `image,caption`), `pairs.csv` (tab, `filepath`, `title`)."""
    words = ("a red field", "two boats", "an old door", "waves")
    rows = [(f"{number:04d}.jpg", f"{words[number % 4]} number {number}") for number in range(20)]
    for number, (name, _) in enumerate(rows):
        _write(root / "images" / name, picture(number, plain=True))
    _write(root / "captions.csv", "image,caption,id\n" + "".join(f"{name},{text},{k}\n" for k, (name, text) in enumerate(rows)))
    _write(root / "pairs.csv", "filepath\ttitle\n" + "".join(f"{root}/images/{name}\t{text}\n" for name, text in rows))


def two_domains(root: Path) -> None:
    """`trainA`, `trainB`, `testA`, `testB`; `train/A`, `train/B`, …: images of one size; and pairs side by side in `train`."""
    for part, each in {"train": 8, "test": 4}.items():
        for place, domain in enumerate("AB"):
            for number in range(each):
                data = picture(8 * number + 100 * place, plain=True)
                for folder in (f"{part}{domain}", f"{part}/{domain}"):
                    _write(root / folder / f"{number:03d}.jpg", data)


def side_by_side(root: Path) -> None:
    """`train/*.jpg`, `val/*.jpg`, `test/*.jpg`: two images beside each other in one."""
    for part, each in {"train": 10, "val": 4, "test": 4}.items():
        for number in range(each):
            file = io.BytesIO()
            photograph(128, 64, seed=number).save(file, "JPEG", quality=90)
            _write(root / part / f"{number:03d}.jpg", file.getvalue())


def super_resolution(root: Path) -> None:
    """`hr/*.jpg` and a `list.txt` of them."""
    for number in range(16):
        _write(root / "hr" / f"{number:04d}.jpg", picture(number, plain=True, scale=2))
    _write(root / "list.txt", "".join(f"{number:04d}.jpg\n" for number in range(16)))


def celeba(root: Path) -> None:
    """2,016 `images/*.jpg`, names of 24 files, and `list_attr_celeba.txt`, forty attributes each. A script tests with 2,000."""
    names = [f"{number:06d}.jpg" for number in range(1, 2017)]
    for number, name in enumerate(names[:24]):
        _write(root / "images" / name, picture(number * 8 % 64, plain=True, scale=2))
    for number, name in enumerate(names[24:]):
        (root / "images" / name).hardlink_to(root / "images" / names[number % 24])
    attributes = ["Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young"] + [f"Attribute_{number}" for number in range(35)]
    rows = [f"{name} " + " ".join("1" if (k + place) % 3 else "-1" for k in range(40)) for place, name in enumerate(names)]
    _write(root / "list_attr_celeba.txt", f"{len(names)}\n{' '.join(attributes)}\n" + "\n".join(rows) + "\n")


def market(root: Path) -> None:
    """Market-1501: `bounding_box_train`, `bounding_box_test`, `query`; and `pytorch/{train,val,train_all,…}/ID/*.jpg`."""
    for place, part in enumerate(("bounding_box_train", "bounding_box_test", "query")):
        for person in range(1, 5):
            for camera in range(1, 3):
                for shot in range(1 if part == "query" else 2):
                    name = f"{person + 10 * (place > 0):04d}_c{camera}s1_{shot:06d}_00.jpg"
                    file = io.BytesIO()
                    photograph(64, 128, seed=person * 9 + camera * 3 + shot).save(file, "JPEG")
                    _write(root / "market1501" / "Market-1501-v15.09.15" / part / name, file.getvalue())
                    _write(root / "market1501" / part / name, file.getvalue())
                    for copy in {"bounding_box_train": ("train", "val", "train_all"), "query": ("query",)}.get(
                        part, ("gallery",)
                    ):
                        _write(root / "pytorch" / copy / name[:4] / name, file.getvalue())


def cifar(root: Path) -> None:
    """CIFAR-10, CIFAR-100 and MNIST as torchvision keeps them, a few images each."""
    rng = np.random.default_rng(0)

    def batch(count: int) -> np.ndarray:
        return rng.integers(0, 256, (count, 3072), dtype=np.uint8)

    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        entry = {"data": batch(60), "labels": [k % 10 for k in range(60)], "filenames": [f"{k}.png" for k in range(60)]}
        _write(root / "cifar-10-batches-py" / name, pickle.dumps(entry))
    _write(root / "cifar-10-batches-py" / "batches.meta", pickle.dumps({"label_names": [f"class{k}" for k in range(10)]}))
    for name, count in {"train": 60, "test": 20}.items():
        entry = {
            "data": batch(count),
            "fine_labels": [k % 100 for k in range(count)],
            "coarse_labels": [k % 20 for k in range(count)],
        }
        _write(root / "cifar-100-python" / name, pickle.dumps(entry))
    _write(root / "cifar-100-python" / "meta", pickle.dumps({"fine_label_names": [f"class{k}" for k in range(100)]}))
    for part, count in {"train": 60, "t10k": 20}.items():
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = bytes(k % 10 for k in range(count))
        _write(
            root / "MNIST" / "raw" / f"{part}-images-idx3-ubyte", struct.pack(">iiii", 2051, count, 28, 28) + images.tobytes()
        )
        _write(root / "MNIST" / "raw" / f"{part}-labels-idx1-ubyte", struct.pack(">ii", 2049, count) + labels)


def nothing(root: Path) -> None:
    """No files."""


LAYOUTS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        *(
            imagenet,
            imagenet_plain,
            flowers,
            one_folder,
            flat,
            flat_plain,
            thousands,
            flat_named,
            carvana,
            voc,
            voc_many,
            coco,
            coco_2017,
            u2net,
            yolo,
        ),
        *(yolo_segments, ade20k, captions, two_domains, side_by_side, super_resolution, celeba, market, cifar, nothing),
    )
}
