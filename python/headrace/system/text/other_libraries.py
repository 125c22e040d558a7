"""Names and arguments of PyTorch, torchvision, timm, FFCV, DALI, WebDataset and tf.data: what to use for them here."""

from __future__ import annotations

__all__ = ["OF_DATASET", "OF_HEADRACE", "OF_LOADER", "OF_LOADER_OBJECT", "OF_OPEN", "OF_SPLIT"]

_LOADER = "use headrace.Loader(data, batch_size, transform)"
_OPEN = "use headrace.open(path)"
_FOLDER = "use headrace.open(path): it has classes, class_to_idx, targets, samples and data[i]"
_THREADS = "did you mean threads? A Loader decodes in native threads: threads=4, or leave it out for all cores"
_SAMPLER = "use torch's: headrace.Loader(data, 256, transform, sampler=sampler)"
_MODEL = "build models with torchvision or timm, or headrace train --model on the command line"
_TRAIN = "headrace train on the command line, or headrace.Loader in your own loop"
_TO_LOADER = "give the transform to the Loader: headrace.Loader(data, 256, transform); transform(image) calls it on one image"

OF_HEADRACE = {
    "CIFAR10": "headrace downloads no data: headrace.open(folder) reads images in folders, archives and lists",
    "ConcatDataset": "use headrace.open([first, second])",
    "DataLoader": _LOADER,
    "DatasetFolder": _FOLDER,
    "DistributedSampler": "leave it out: a Loader takes rank and world size of torch.distributed",
    "FashionMNIST": "headrace downloads no data: headrace.open(folder) reads images in folders, archives and lists",
    "ImageFolder": _FOLDER,
    "ImageNet": 'use headrace.open(path, split="train")',
    "MNIST": "headrace downloads no data: headrace.open(folder) reads images in folders, archives and lists",
    "Pipeline": _LOADER,
    "RandomSampler": _SAMPLER,
    "SequentialSampler": "use headrace.Loader(data, 256, transform, shuffle=False)",
    "Subset": "use data.subset(indices)",
    "SubsetRandomSampler": "use data.subset(indices): a Loader shuffles it",
    "Trainer": _TRAIN,
    "WebDataset": "use headrace.open('shards-*.tar')",
    "WebLoader": _LOADER,
    "WeightedRandomSampler": "use headrace.Loader(data, 256, transform, weights=weights), one weight a class or an image",
    "collate": "leave it out: a Loader makes batches in place",
    "cost": "headrace cost on the command line",
    "create_dataset": _OPEN,
    "create_loader": f"{_LOADER}, and headrace.eval_loader to evaluate",
    "create_model": _MODEL,
    "datasets": _OPEN,
    "default_collate": "leave it out: a Loader makes batches in place",
    "diagnose": "use headrace.watch around a loop, or headrace diagnose -- python train.py on the command line",
    "doctor": "headrace doctor on the command line",
    "evaluate": "headrace evaluate on the command line, or headrace.eval_loader in your own loop",
    "export": "headrace export on the command line",
    "fit": _TRAIN,
    "image_dataset_from_directory": f"{_OPEN} and headrace.Loader",
    "inspect": "headrace inspect on the command line; in a notebook the last line `data` of a cell shows its facts",
    "io": "use headrace.decode_into, or data[i]",
    "launch": "headrace launch on the command line, or from headrace.launch import under",
    "list_files": _OPEN,
    "load": _OPEN,
    "load_dataset": _OPEN,
    "load_from_disk": _OPEN,
    "load_model": "headrace evaluate and headrace predict read a trained run; headrace export writes its model",
    "make_dataset": _OPEN,
    "manual_seed": "give the seed to the Loader: headrace.Loader(data, 256, transform, seed=0)",
    "pipeline_def": _LOADER,
    "predict": "headrace predict on the command line",
    "profile": "use headrace.watch, or headrace diagnose on the command line",
    "random_split": "use data.split(0.9, seed=0)",
    "read_image": "use headrace.decode_into, or data[i]",
    "run": "headrace run -- python train.py on the command line",
    "seed": "give the seed to the Loader: headrace.Loader(data, 256, transform, seed=0)",
    "train": _TRAIN,
    "tune": "headrace tune on the command line",
    "wds": "use headrace.open('shards-*.tar')",
}
"""Names that the package does not have."""

OF_OPEN = {
    "allow_empty": "leave it out: an empty class is an error, except in the val and test of split=",
    "class_names": "did you mean classes?",
    "classes_file": "open a list of paths and labels (.csv, .lst, .parquet)",
    "download": "leave it out: headrace downloads no data",
    "image_size": "give the transform to the Loader: headrace.Loader(data, 256, headrace.transforms.imagenet_train(224))",
    "is_valid_file": "leave it out: all images are taken; headrace inspect lists what is not read",
    "labels": "open a list of paths and labels (.csv, .lst, .parquet)",
    "loader": "leave it out: images are decoded natively; data.read(i) gives the bytes of one",
    "shuffle": "give it to the Loader: headrace.Loader(data, 256, transform, shuffle=True)",
    "subset": 'did you mean split? split="train"',
    "target_transform": "labels are numbers of data.classes: change them in your loop, or open a list of paths and labels",
    "train": 'did you mean split? split="train", split="val"',
    "transform": _TO_LOADER,
    "transforms": _TO_LOADER,
}
"""Arguments of datasets that `headrace.open` does not take."""

_THREE = "split once more for a third part: train, rest = data.split(0.8); val, test = rest.split(0.5)"

OF_SPLIT = {
    "*": _THREE,
    "generator": "use seed, a whole number",
    "lengths": _THREE,
    "random_state": "use seed",
    "ratios": _THREE,
    "stratify": "use stratified=True",
    "test_size": "give the share of the first part: train, test = data.split(0.8)",
    "train_size": "give it as ratio, a share between 0 and 1; data[:100] takes a number",
}
"""Arguments of functions that split data that `Dataset.split` does not take."""

OF_DATASET = {
    "batch": _LOADER,
    "classes_to_idx": "use class_to_idx",
    "class_names": "use classes",
    "collate_fn": "leave it out: a Loader makes batches in place",
    "column_names": "use classes, targets and table.keys",
    "features": "use classes, targets and table.keys",
    "filter": "use data.subset(indices)",
    "filenames": "use table.keys, or samples",
    "find_classes": "use classes and class_to_idx",
    "idx_to_class": "use classes: classes[label] is a name",
    "img_labels": "use targets",
    "labels": "use targets, or table.label as an array",
    "loader": "use data.read(i), which gives the bytes, or data[i]",
    "map": _TO_LOADER,
    "num_classes": "use len(data.classes)",
    "paths": "use samples, or table.keys",
    "prefetch": _LOADER,
    "select": "use data.subset(indices)",
    "set_transform": _TO_LOADER,
    "shard": "leave it out: a Loader takes rank and world size of torch.distributed",
    "shuffle": "a Loader shuffles: headrace.Loader(data, 256, transform)",
    "take": "use data.subset(range(100))",
    "target_transform": "labels are numbers of data.classes: change them in your loop",
    "train_test_split": "use data.split(0.9, seed=0)",
    "transform": _TO_LOADER,
    "transforms": _TO_LOADER,
    "with_format": "a Loader gives tensors, or arrays with output='numpy'",
}
"""Attributes of other libraries' datasets that a Dataset does not have."""

OF_LOADER = {
    "num_workers": _THREADS,
    "workers": _THREADS,
    "num_threads": _THREADS,
    "num_parallel_calls": _THREADS,
    "prefetch_factor": "did you mean prefetch? It counts batches: prefetch=3",
    "prefetch_queue_depth": "did you mean prefetch? It counts batches: prefetch=3",
    "batches_ahead": "did you mean prefetch? It counts batches: prefetch=3",
    "pin_memory": "leave it out: with device='cuda' batches come from pinned memory, by asynchronous copies",
    "pin_memory_device": "leave it out: with device='cuda' batches come from pinned memory, by asynchronous copies",
    "persistent_workers": "leave it out: the threads live as long as the Loader",
    "multiprocessing_context": "leave it out: a Loader has no worker processes",
    "worker_init_fn": "leave it out: a Loader has no worker processes; seed=0 decides all random draws",
    "timeout": "leave it out: a Loader has no worker processes",
    "in_order": "leave it out: batches always come in order",
    "generator": "did you mean seed? It decides order and random draws: seed=0",
    "batch_sampler": "did you mean sampler? It takes lists of indices, too, of at most batch_size: sampler=batches",
    "collate_fn": "leave it out: batches are made in place; change them in your loop",
    "train": "to evaluate, use headrace.eval_loader; headrace.open(path, split='train') opens a split",
    "is_training": "to evaluate, use headrace.eval_loader",
    "drop_remainder": "did you mean drop_last?",
    "order": "did you mean shuffle? shuffle=True or shuffle=False",
    "pipelines": "did you mean transform? headrace.transforms.imagenet_train(224) is one",
    "distributed": "leave it out: a Loader takes rank and world size of torch.distributed",
    "num_shards": "did you mean world_size? Give rank too",
    "shard_id": "did you mean rank? Give world_size too",
    "num_replicas": "did you mean world_size? Give rank too",
    "os_cache": "leave it out: the operating system keeps files; cache='ram:8GiB' is for slow storage",
    "input_size": "leave it out: the transform decides, such as headrace.transforms.imagenet_train(224)",
    "image_size": "leave it out: the transform decides, such as headrace.transforms.imagenet_train(224)",
    "img_size": "leave it out: the transform decides, such as headrace.transforms.imagenet_train(224)",
    "size": "leave it out: the transform decides, such as headrace.transforms.imagenet_train(224)",
    "mean": "leave it out: headrace.transforms.imagenet_train(224, normalize=True), or Normalize(mean, std)",
    "std": "leave it out: headrace.transforms.imagenet_train(224, normalize=True), or Normalize(mean, std)",
    "target_transform": "labels are numbers of the dataset's classes: change them in your loop",
    "transforms": "did you mean transform?",
    "return_index": "did you mean with_index?",
    "return_path": "did you mean with_key?",
    "return_paths": "did you mean with_key?",
}
"""Arguments of other libraries' loaders that a Loader does not take."""

OF_LOADER_OBJECT = {
    "batch": "a Loader gives batches: for images, labels in loader",
    "batch_sampler": "use batch_records(epoch, step): the records of a batch",
    "build": "leave it out: a Loader is ready",
    "class_to_idx": "use loader.dataset.class_to_idx",
    "collate_fn": "leave it out: batches are made in place",
    "num_batches": "use len(loader)",
    "num_samples": "use len(loader.dataset)",
    "num_workers": "use loader.options.threads",
    "pin_memory": "leave it out: with device='cuda' batches come from pinned memory",
    "reset": "leave it out: the next pass is the next epoch; set_epoch(0) begins anew",
    "run": "a Loader gives batches: for images, labels in loader",
    "targets": "use loader.dataset.targets",
}
"""Attributes of other libraries' loaders that a Loader does not have."""
