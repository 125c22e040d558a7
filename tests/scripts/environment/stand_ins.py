# ruff: noqa: PTH113, PTH118, PTH119 -- runs in every Python of a script; pathlib would cost each some milliseconds
"""Stand-ins for what a public script needs and this machine lacks: a GPU, downloads, old names, time for convolutions.

- `SOAK_CUDA=1`: the script sees one GPU, and computes on the CPU.
- `SOAK_STEPS=N`: the script ends at the `backward()` after N.
- `SOAK_OLD_TORCH=1`: results of comparisons are contiguous.
- `SOAK_ANY_WEIGHTS=1`: files of weights that are not there can be loaded, and change nothing.
- `SOAK_TIMM=VERSION`: the version of timm that a script asserts.
- `SOAK_MODULES=A,B`: modules that do nothing, in place of those that a script only logs with.
- `SOAK_LAZY_PAYS=1`: `headrace run` makes all batches of a loader that it takes over in part with lazy images.

What each call of a model gets and each `backward()` starts from goes to a file of the process in the folder `SOAK_LOG`.
Generators are seeded here, so plain runs of a script agree in it.
"""

import collections
import functools
import hashlib
import inspect
import multiprocessing
import os
import random
import sys
import types

# What stands here for functions of torch counts as torch's own: else loaders would be left to the script.
__name__ = f"torch.{__name__}"

CHANNELS = 4
"""Convolutions and large matrix products read so many channels, and a mean of the others."""

_written = {"depth": 0, "lines": 0, "steps": 0}
MOST_LINES = 20_000


def write(line):
    """Append a line to the log of this process."""
    _written["lines"] += 1
    if _written["lines"] > MOST_LINES:
        return
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "-"
    name = f"{program}.{multiprocessing.current_process().name}.{os.environ.get('RANK', '')}".replace("/", "_")
    with open(os.path.join(os.environ["SOAK_LOG"], name), "a") as log:
        log.write(line + "\n")


class _Anything(types.ModuleType):
    """A module whose functions and classes do nothing."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing:
    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __call__(self, *args, **kwargs):
        return _Nothing()


def before_imports():
    """Seed Python's generator, and put back names that the standard library has dropped."""
    random.seed(0)
    # tensorboard would import it: its LLVM and that of PyTorch's compiler exclude each other.
    sys.modules.setdefault("tensorflow", None)
    for name in ("Iterable", "Mapping", "MutableMapping", "Sequence", "Callable", "OrderedDict"):
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    for name in filter(None, os.environ.get("SOAK_MODULES", "").split(",")):
        sys.modules[name] = _Anything(name)
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = lambda function: inspect.getfullargspec(function)[:4]


def with_old_numpy(numpy):
    numpy.random.seed(0)
    for name, value in {"float": float, "int": int, "bool": bool, "object": object, "str": str, "complex": complex}.items():
        if name not in numpy.__dict__:
            setattr(numpy, name, value)
    for name, value in {"float_": numpy.float64, "Inf": numpy.inf, "NaN": numpy.nan, "product": numpy.prod}.items():
        if name not in numpy.__dict__:
            setattr(numpy, name, value)
    kinds = {"int": "bhiq", "uint": "BHIQ", "float": "efdg", "complex": "FDG", "others": "?OSUV"}
    if "sctypes" not in numpy.__dict__:
        numpy.sctypes = {name: [numpy.dtype(letter).type for letter in letters] for name, letters in kinds.items()}


def with_old_pillow(image):
    for name, value in {"ANTIALIAS": image.Resampling.LANCZOS, "LINEAR": image.Resampling.BILINEAR}.items():
        if not hasattr(image, name):
            setattr(image, name, value)


class Weights(dict):
    """Stands for downloaded weights: loading them leaves the model as it is. Scripts may take any entry out of it."""

    def __missing__(self, name):
        return Weights()

    def __delitem__(self, name):
        self.pop(name, None)


def with_torch(torch):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    _without_downloads(torch)
    _with_cheap_layers(torch)
    _with_a_log(torch)
    six = types.ModuleType("torch._six")
    six.string_classes, six.int_classes, six.container_abcs, six.inf = (str, bytes), int, collections.abc, float("inf")
    sys.modules.setdefault("torch._six", six)
    if os.environ.get("SOAK_CUDA"):
        import on_the_cpu

        on_the_cpu.install(torch)


def _without_downloads(torch):
    load = torch.nn.Module.load_state_dict

    def load_state_dict(self, state_dict, *args, **kwargs):
        if isinstance(state_dict, Weights):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(self, state_dict, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict
    if os.environ.get("SOAK_ANY_WEIGHTS"):  # files of weights that the user would have downloaded
        read = torch.load
        exists = os.path.exists

        def load_file(file, *args, **kwargs):
            missing = isinstance(file, (str, os.PathLike)) and not exists(file)
            return Weights() if missing else read(file, *args, **kwargs)

        torch.load = load_file
        os.path.exists = lambda path: exists(path) or str(path).endswith((".pth", ".pt", ".pth.tar"))
    torch.hub.load_state_dict_from_url = lambda *args, **kwargs: Weights()
    torch.hub.list = lambda *args, **kwargs: []


def _narrow(torch, x, axis, rest):
    """Return the first CHANNELS of an axis, the last of them with a mean of all channels added."""
    if x.shape[axis] <= CHANNELS:
        return x
    first = x.narrow(axis, 0, CHANNELS)
    return first + x.mean(axis, keepdim=True) if rest else first


def _with_cheap_layers(torch):
    functional = torch.nn.functional
    convolve, linear = functional.conv2d, functional.linear

    def pair(value):
        return (value, value) if isinstance(value, int) else tuple(value)

    def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if input.dim() != 4 or groups != 1 or weight.shape[1] * weight.shape[2] * weight.shape[3] <= 3:
            return convolve(input, weight, bias, stride, padding, dilation, groups)
        kernel, stride, dilation = weight.shape[2:], pair(stride), pair(dilation)
        if isinstance(padding, str):
            size = tuple(input.shape[2:]) if padding == "same" else None
            padding = (0, 0)
        else:
            padding, size = pair(padding), None
        if size is None:
            size = tuple(
                (n + 2 * p - d * (k - 1) - 1) // s + 1
                for n, p, d, k, s in zip(input.shape[2:], padding, dilation, kernel, stride, strict=True)
            )
        x = _narrow(torch, input, 1, rest=True)
        if size != tuple(input.shape[2:]):
            x = functional.adaptive_avg_pool2d(x, size)
        weight = weight[:, : x.shape[1]].mean((2, 3), keepdim=True)
        return convolve(x, weight, bias)

    def cheap_linear(input, weight, bias=None):
        if input.shape[-1] * weight.shape[0] < 100_000:
            return linear(input, weight, bias)
        return linear(_narrow(torch, input, -1, rest=True), weight[:, :CHANNELS], bias)

    functional.conv2d = conv2d
    functional.linear = cheap_linear


def _digest(torch, value):
    """Name the tensors of a nested value by shape, dtype and bytes."""
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            value = value.float()
        data = value.detach().cpu().contiguous().numpy().tobytes()
        return f"{tuple(value.shape)} {str(value.dtype)[6:]} {hashlib.sha1(data).hexdigest()[:16]}"
    if isinstance(value, dict):
        return [_digest(torch, entry) for entry in value.values()]
    if isinstance(value, (list, tuple)):
        return [_digest(torch, entry) for entry in value]
    return repr(value)[:40] if isinstance(value, (int, float, bool, str, type(None))) else type(value).__name__


def _is_a_model(torch, module):
    """Transforms are modules too: they have no parameters, and workers call them."""
    return torch.utils.data.get_worker_info() is None and next(module.parameters(), None) is not None


def _with_a_log(torch):
    def before(module, args):
        _written["depth"] += 1
        if _written["depth"] == 1 and _is_a_model(torch, module):
            with torch.no_grad():
                write(f"{type(module).__name__} {_digest(torch, args)}")

    def after():
        _written["depth"] = max(0, _written["depth"] - 1)

    call = torch.nn.Module.__call__

    @functools.wraps(call)
    def logged(module, *args, **kwargs):  # a hook of all modules would leave loaders to the script
        before(module, args)
        try:
            return call(module, *args, **kwargs)
        finally:
            after()

    torch.nn.Module.__call__ = logged
    backward = torch.Tensor.backward

    def logged(self, *args, **kwargs):
        _written["steps"] += 1
        if 0 < int(os.environ.get("SOAK_STEPS", "0")) < _written["steps"]:
            write("the end of the soak's steps")
            raise SystemExit(0)
        write(f"backward {_digest(torch, self)} {self.detach().float().mean().item()!r}")
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = logged
    if os.environ.get("SOAK_OLD_TORCH"):
        equal = torch.Tensor.eq
        torch.Tensor.eq = lambda self, other: equal(self, other).contiguous()


def without_dataset_downloads(module):
    """torchvision.datasets.utils: a file that is there is right, and nothing is downloaded."""
    module.check_integrity = lambda path, md5=None: os.path.isfile(path)
    for name in ("download_url", "download_and_extract_archive", "download_file_from_google_drive", "extract_archive"):
        setattr(module, name, lambda *args, **kwargs: None)


def with_lazy_images_always(trial):
    """headrace.accelerate.lazy.trial: every batch is made with lazy images, whatever it costs."""
    if os.environ.get("SOAK_LAZY_PAYS"):
        trial.Trial.ordinary_items = lambda self, items: 0
        trial.Trial.next_is_lazy = lambda self: True
        trial.Trial._decision = lambda self: trial.TrialState.MEASURING


def with_old_timm(timm):
    timm.__version__ = os.environ.get("SOAK_TIMM", timm.__version__)


def with_old_layers(layers):
    import timm.layers.helpers

    sys.modules["timm.models.layers.helpers"] = timm.layers.helpers


def with_old_interpolation(transforms):
    if not hasattr(transforms, "_pil_interp"):
        transforms._pil_interp = transforms.str_to_pil_interp


def with_old_schedulers(module):
    start = module.CosineLRScheduler.__init__

    def with_old_names(self, *args, t_mul=None, decay_rate=None, **kwargs):
        start(self, *args, **kwargs)

    module.CosineLRScheduler.__init__ = with_old_names


def with_old_models(models):
    import timm.layers

    for name in ("convert_splitbn_model", "convert_sync_batchnorm"):
        setattr(models, name, getattr(timm.layers, name))


def without_timm_downloads(builder):
    builder.load_pretrained = lambda *args, **kwargs: None


def with_seeded_compositions(composition):
    """albumentations draws from generators of its own, which begin anywhere unless the script gives a seed."""
    seed = composition.BaseCompose.set_random_seed
    composition.BaseCompose.set_random_seed = lambda self, value: seed(self, 0 if value is None else value)


def with_old_optimizers(factory):
    if not hasattr(factory, "add_weight_decay"):
        factory.add_weight_decay = factory.param_groups_weight_decay


def with_old_blocks(transformer):
    start = transformer.Block.__init__

    def without_scale(self, *args, qk_scale=None, **kwargs):
        start(self, *args, **kwargs)

    transformer.Block.__init__ = without_scale
    build = transformer.VisionTransformer.__init__

    def without_configuration(self, *args, pretrained_cfg=None, pretrained_cfg_overlay=None, cache_dir=None, **kwargs):
        build(self, *args, **kwargs)

    transformer.VisionTransformer.__init__ = without_configuration


AFTER_IMPORT = {
    "albumentations.core.composition": with_seeded_compositions,
    "timm": with_old_timm,
    "timm.data.transforms": with_old_interpolation,
    "timm.models.layers": with_old_layers,
    "timm.models": with_old_models,
    "timm.scheduler.cosine_lr": with_old_schedulers,
    "timm.models._builder": without_timm_downloads,
    "timm.models.vision_transformer": with_old_blocks,
    "timm.optim._optim_factory": with_old_optimizers,
    "timm.optim.optim_factory": with_old_optimizers,
    "headrace.accelerate.lazy.trial": with_lazy_images_always,
    "numpy": with_old_numpy,
    "PIL.Image": with_old_pillow,
    "torch": with_torch,
    "torchvision.datasets.utils": without_dataset_downloads,
}
