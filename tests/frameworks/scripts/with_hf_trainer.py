"""Hugging Face: datasets with an Image column, set_transform, a collator of the script, and Trainer with a small ViT."""

import sys
from pathlib import Path

import torch
from batch_digest import say, say_generators, seed_all
from datasets import Dataset, Image
from torchvision import transforms as T
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


def collate(examples):
    pixels = torch.stack([example["pixel_values"] for example in examples])
    return {"pixel_values": pixels, "labels": torch.tensor([example["label"] for example in examples])}


class Watching(Trainer):
    def compute_loss(self, model, inputs, *arguments, **options):
        say("train" if model.training else "evaluation", dict(inputs))
        return super().compute_loss(model, inputs, *arguments, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_all(5)
    files = sorted(Path(sys.argv[1]).rglob("*.jpg"))
    classes = sorted({file.parent.name for file in files})
    rows = {"image": [str(file) for file in files], "label": [classes.index(file.parent.name) for file in files]}
    data = Dataset.from_dict(rows).cast_column("image", Image())
    values = [T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)]
    augment = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *values])
    plain = T.Compose([T.Resize(32), T.CenterCrop(32), *values])

    def with_transform(transform):
        def apply(examples):
            examples["pixel_values"] = [transform(image.convert("RGB")) for image in examples["image"]]
            del examples["image"]
            return examples

        return apply

    parts = data.train_test_split(test_size=8, seed=1)
    parts["train"].set_transform(with_transform(augment))
    parts["test"].set_transform(with_transform(plain))
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[2],
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        num_train_epochs=2,
        dataloader_num_workers=int(sys.argv[3]),
        remove_unused_columns=False,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
    )
    trainer = Watching(
        model=ViTForImageClassification(config),
        args=arguments,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        data_collator=collate,
    )
    trainer.train()
    say("weights", [value.detach() for value in trainer.model.parameters()])
    say_generators()
