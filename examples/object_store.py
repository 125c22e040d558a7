"""Train from an S3-compatible store: pack a folder into a bucket once, then stream it.

    pip install '.[aws]'
    export AWS_ENDPOINT_URL=https://minio.example:9000 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=us-east-1
    python examples/object_store.py --folder /data/photos --url s3://bucket/photos --cache /mnt/nvme/headrace

For AWS's own S3 leave out AWS_ENDPOINT_URL. Without `--folder` the dataset at `--url` is used as it is.
"""

from __future__ import annotations

import argparse
import os

import headrace as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="pack this image folder to --url first")
    parser.add_argument("--url", required=True)
    parser.add_argument("--cache", help="folder on a local disk that keeps what was fetched (default: ~/.cache/headrace)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()

    if args.cache:
        os.environ["HEADRACE_CACHE"] = args.cache
    if args.folder:
        packed = hr.pack(args.folder, args.url)
        print(f"packed {packed.records} records into {packed.shards} shards at {args.url}")
    data = hr.open(args.url)  # reads the index; images are fetched when batches need them
    loader = hr.Loader(
        data,
        args.batch_size,
        hr.transforms.imagenet_train(args.image_size),
        shuffle="block",  # whole shards in random order: few, large requests
        seed=0,
    )
    for epoch in range(args.epochs):
        images = sum(len(labels) for _, labels in loader)  # your training step stands here
        print(f"epoch {epoch}: {images} images of {len(data)}")
    print(loader.stats())
    print(loader.explain())


if __name__ == "__main__":
    main()
