"""timm: the loaders of create_loader as its train.py makes them: evaluation, RandAugment, AugMix splits, mixup."""

import sys

import torch
from batch_digest import say, say_generators, seed_all
from timm.data import AugMixDataset, FastCollateMixup, Mixup, create_dataset, create_loader, resolve_data_config
from timm.models import create_model

if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_all(2)
    model = create_model("test_vit", num_classes=3, img_size=48)
    config = resolve_data_config({"input_size": (3, 48, 48)}, model=model)

    def data(training):
        return create_dataset("", root=sys.argv[1], split="train", is_training=training)

    def loader(dataset, training, **options):
        common = {"batch_size": 6, "is_training": training, "device": torch.device("cpu"), "persistent_workers": False}
        chosen = {name: config[name] for name in ("input_size", "mean", "std", "interpolation", "crop_pct")}
        if training:
            del chosen["crop_pct"]
        return create_loader(dataset, **common, **chosen, **options)

    for batch in loader(data(False), False, num_workers=2):
        say("evaluation", batch)
    for batch in loader(data(False), False, num_workers=1, use_prefetcher=False):
        say("evaluation without prefetcher", batch)
    seed_all(2)
    rand_augment = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}
    for batch in loader(data(True), True, num_workers=2, **rand_augment):
        say("RandAugment", batch)
    seed_all(2)
    splits = AugMixDataset(data(True), num_splits=2)
    for batch in loader(splits, True, num_workers=1, auto_augment="augmix-m3-w2", num_aug_splits=2, color_jitter=None):
        say("AugMix", batch)
    say_generators()
    seed_all(2)
    mixup = FastCollateMixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=3)
    for images, targets in loader(data(True), True, num_workers=1, collate_fn=mixup, color_jitter=None):
        print("mixup", images.dtype, tuple(images.shape), targets.dtype, tuple(targets.shape))
    mixed = Mixup(mixup_alpha=0.2, num_classes=3)
    for images, targets in loader(data(True), True, num_workers=1, color_jitter=0.4):
        images, targets = mixed(images, targets)
        print("colour", images.dtype, tuple(images.shape), tuple(targets.shape), bool(torch.isfinite(model(images)).all()))
