"""Segmentation: masks follow the geometry of their images.

    python examples/segmentation.py --data /data/photos --masks /data/masks --classes 21

`--masks` is a folder with KEY.png for each image KEY.jpg: class numbers, gray or palette. In a tar or a packed dataset it is
the ending of the masks beside the images, such as `mask.png`.
"""

from __future__ import annotations

import argparse

import headrace as hr
import torch
import torchvision

IGNORE = 255  # the class of pixels outside the image, as in PASCAL VOC


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--masks", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--picture", help="draw a batch with its masks into this file (needs matplotlib)")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    T = hr.transforms
    transform = T.Compose(
        [
            T.RandomResizedCrop(args.image_size, scale=(0.25, 1.0)),
            T.RandomHorizontalFlip(),
            T.RandomRotation(10),
            T.ColorJitter(0.3, 0.3, 0.3),  # changes the image only
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ]
    )
    loader = hr.Loader(
        args.data, args.batch_size, transform, mask=args.masks, mask_fill=IGNORE, device=device, dtype="float32", seed=0
    )
    if args.picture:
        hr.show_batch(loader, count=8).savefig(args.picture)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(num_classes=args.classes, weights_backbone=None)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        right = counted = 0
        for images, _, masks in loader:  # masks: uint8 [N, H, W]
            masks = masks.long()
            scores = model(images)["out"]
            loss = torch.nn.functional.cross_entropy(scores, masks, ignore_index=IGNORE)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            inside = masks != IGNORE
            right += int((scores.argmax(1) == masks)[inside].sum())
            counted += int(inside.sum())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {100 * right / counted:.1f} % of the pixels right")


if __name__ == "__main__":
    main()
