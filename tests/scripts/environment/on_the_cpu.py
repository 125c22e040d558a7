"""A GPU that is the CPU: what scripts call on `torch.cuda` and give as a device computes on the CPU."""

import contextlib
import functools

# What stands here for functions of torch counts as torch's own: else loaders would be left to the script.
__name__ = f"torch.{__name__}"


def _is_gpu(torch, value):
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


def _here(torch, value):
    return torch.device("cpu") if _is_gpu(torch, value) else value


def _on_cpu(torch, function, gpu_numbers=False):
    """Wrap a function: devices among its arguments become the CPU."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if gpu_numbers and len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
            args = (args[0], "cpu", *args[2:])
        args = tuple(_here(torch, value) for value in args)
        for name in ("device", "map_location"):
            if name in kwargs:
                value = kwargs[name]
                kwargs[name] = "cpu" if isinstance(value, int) and not isinstance(value, bool) else _here(torch, value)
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return wrapped


FACTORIES = (
    *(
        "tensor",
        "as_tensor",
        "zeros",
        "ones",
        "rand",
        "randn",
        "empty",
        "full",
        "arange",
        "linspace",
        "eye",
        "randperm",
        "randint",
    ),
    *("zeros_like", "ones_like", "rand_like", "randn_like", "empty_like", "full_like", "load", "scalar_tensor", "normal"),
)


def install(torch):
    _functions(torch)
    _cuda(torch)
    _several(torch)


def _functions(torch):
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(torch, getattr(torch, name)))
    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = _on_cpu(torch, owner.to, gpu_numbers=True)
        owner.cuda = lambda self, *args, **kwargs: self
    torch.Tensor.new_tensor = _on_cpu(torch, torch.Tensor.new_tensor)
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    as_type = torch.Tensor.type

    def type_of(self, dtype=None, *args, **kwargs):
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return as_type(self, dtype, *args, **kwargs) if dtype is not None else as_type(self)

    torch.Tensor.type = type_of


class _Moment:
    """An event or a stream."""

    def __init__(self, *args, **kwargs):
        pass

    def elapsed_time(self, other):
        return 1.0

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def _cuda(torch):
    def always(value):
        return lambda *args, **kwargs: value  # a function for each name: torch's compiler keeps rules by function

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = always(0)
    cuda.get_device_name = lambda *args: "one"
    cuda.get_device_capability = lambda *args: (7, 0)
    cuda.is_bf16_supported = lambda *args, **kwargs: False
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "init", "ipc_collect", "manual_seed"):
        setattr(cuda, name, always(None))
    for name in ("max_memory_allocated", "memory_allocated", "memory_reserved", "max_memory_reserved", "max_memory_cached"):
        setattr(cuda, name, always(0))
    cuda.manual_seed_all = always(None)
    cuda.reset_max_memory_allocated = always(None)
    cuda.mem_get_info = lambda *args: (1 << 30, 1 << 30)
    cuda.get_rng_state = lambda *args: torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    cuda.Event = cuda.Stream = _Moment
    cuda.current_stream = cuda.default_stream = lambda *args: _Moment()
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.device = lambda device: contextlib.nullcontext()
    accelerator = torch.accelerator
    accelerator.is_available = always(True)
    accelerator.device_count = always(1)
    accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cuda")
    accelerator.current_device_index = always(0)
    accelerator.set_device_index = always(None)
    accelerator.synchronize = always(None)
    accelerator.current_stream = lambda *args: _Moment()
    for kind in ("Float", "Half", "Long", "Int", "Byte", "Double"):
        setattr(cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _several(torch):
    """One GPU of many: DataParallel is its module, processes talk by gloo."""

    class DataParallel(torch.nn.Module):
        def __init__(self, module, *args, **kwargs):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    torch.nn.DataParallel = torch.nn.parallel.DataParallel = DataParallel
    torch.nn.parallel.data_parallel.DataParallel = DataParallel
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = classmethod(lambda cls, module, process_group=None: module)
    torch.nn.parallel.DistributedDataParallel = torch.nn.parallel.distributed.DistributedDataParallel = DataParallel
    distributed = torch.distributed
    begin = distributed.init_process_group

    def init_process_group(backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        begin("gloo" if backend in (None, "nccl") else backend, *args, **kwargs)

    distributed.init_process_group = init_process_group
    barrier = distributed.barrier
    distributed.barrier = lambda *args, **kwargs: barrier()
