"""Presets (`--recipe NAME`): options that belong together, with their source. Options on the command line come on top."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.training.settings.optimization import OptimizationOptions

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Optimization options with the epochs and the image size they were made for. `pretrained`: start from trained weights."""

    source: str
    epochs: int
    image_size: int
    optimization: OptimizationOptions
    pretrained: bool = False


PRESETS: dict[str, Preset] = {
    "classic": Preset(
        source="Goyal et al. 2017, 'Accurate, Large Minibatch SGD' (ResNet-50, ImageNet: 76.3 % top-1 after 90 epochs)",
        epochs=90,
        image_size=224,
        optimization=OptimizationOptions(
            learning_rate=0.1,
            momentum=0.9,
            weight_decay=1e-4,
            schedule="step",
            warmup_epochs=5,
            label_smoothing=0.0,
        ),
    ),
    "fast": Preset(
        source=(
            "FFCV's rn50_16_epochs (rate 1.7 for 8 × 512, linear, 160 to 192 pixels, tested at 256 with mirror images, "
            "BlurPool, label smoothing: 73.8 % in 15 minutes on 8 A100) and the weight averaging of Composer's mild "
            "ResNet-50 recipe (half-life 100 batches)"
        ),
        epochs=16,
        image_size=192,
        optimization=OptimizationOptions(
            learning_rate=1.7 * 256 / 4096,
            momentum=0.9,
            nesterov=False,
            weight_decay=1e-4,
            schedule="linear",
            warmup_epochs=2,
            label_smoothing=0.1,
            average=0.993,
            blurpool=True,
            start_scale=160 / 192,
            test_scale=256 / 192,
            flip_test=True,
        ),
    ),
    "finetune": Preset(
        source=(
            "Kornblith et al. 2019, 'Do Better ImageNet Models Transfer Better?' (Nesterov, momentum 0.9, cosine, batch 256, "
            "rates around 0.01); the last layer ten times as fast as the rest, as in Caffe's finetune_flickr_style"
        ),
        epochs=10,
        image_size=224,
        optimization=OptimizationOptions(
            learning_rate=0.01,
            momentum=0.9,
            weight_decay=1e-4,
            schedule="cosine",
            warmup_epochs=0.5,
            label_smoothing=0.0,
            body_rate=0.1,
        ),
        pretrained=True,
    ),
}
