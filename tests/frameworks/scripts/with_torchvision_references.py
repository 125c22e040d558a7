"""The input of torchvision's classification reference: training and evaluation transforms, written anew, and its collate."""

import sys

import torch
from batch_digest import say, say_generators, seed_all
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICIES = {
    "ra": lambda module, filter: module.RandAugment(magnitude=9, interpolation=filter),
    "ta_wide": lambda module, filter: module.TrivialAugmentWide(interpolation=filter),
    "augmix": lambda module, filter: module.AugMix(interpolation=filter, severity=3),
    "imagenet": lambda module, filter: module.AutoAugment(module.AutoAugmentPolicy("imagenet"), filter),
}


class Training:
    """backend: "pil", or "tensor", which converts before it augments. module: torchvision's transforms, v1 or v2."""

    def __init__(self, module, size, policy=None, erase=0.0, backend="pil"):
        filter = InterpolationMode.BILINEAR
        steps = [module.PILToTensor()] if backend == "tensor" else []
        steps += [module.RandomResizedCrop(size, interpolation=filter, antialias=True), module.RandomHorizontalFlip(0.5)]
        if policy is not None:
            steps.append(POLICIES[policy](module, filter))
        if backend == "pil":
            steps.append(module.PILToTensor())
        steps.append(v2.ToDtype(torch.float, scale=True) if module is v2 else v1.ConvertImageDtype(torch.float))
        steps.append(module.Normalize(mean=MEAN, std=STD))
        if erase:
            steps.append(module.RandomErasing(p=erase))
        if module is v2:
            steps.append(v2.ToPureTensor())
        self.transforms = module.Compose(steps)

    def __call__(self, image):
        return self.transforms(image)


class Evaluation:
    def __init__(self, module, size, backend="pil"):
        steps = [module.PILToTensor()] if backend == "tensor" else []
        steps += [module.Resize(size + 8, antialias=True), module.CenterCrop(size)]
        steps += [] if backend == "tensor" else [module.PILToTensor()]
        steps.append(v2.ToDtype(torch.float, scale=True) if module is v2 else v1.ConvertImageDtype(torch.float))
        self.transforms = module.Compose([*steps, module.Normalize(mean=MEAN, std=STD)])

    def __call__(self, image):
        return self.transforms(image)


def loader(transform, sampler, workers=1, **options):
    data = ImageFolder(sys.argv[1], transform)
    return DataLoader(data, 5, sampler=sampler(data), num_workers=workers, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_all(8)
    for module in (v1, v2):
        for backend in ("pil", "tensor"):
            for batch in loader(Evaluation(module, 40, backend), SequentialSampler):
                say(f"evaluation {module.__name__} {backend}", batch)
    for policy in ("augmix",):
        for module in (v1, v2):
            for batch in loader(Training(module, 40, policy, 0.1), RandomSampler, workers=2):
                say(f"training {module.__name__} {policy}", batch)
    for batch in loader(Training(v2, 40, "ta_wide", 0.1, "tensor"), RandomSampler):
        say("training on tensors", batch)
    say_generators()
    mix = v2.RandomChoice([v2.MixUp(num_classes=3, alpha=0.2), v2.CutMix(num_classes=3, alpha=1.0)])
    for module in (v1, v2):
        for policy in (None, "ra", "ta_wide", "imagenet"):
            collate = (lambda items: mix(*default_collate(items))) if policy is None else None
            for images, targets in loader(Training(module, 40, policy, 0.1), RandomSampler, collate_fn=collate):
                print("ours", module.__name__, policy, images.dtype, tuple(images.shape), tuple(targets.shape))
