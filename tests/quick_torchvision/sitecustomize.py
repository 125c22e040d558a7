"""Leave PyTorch's compiler out of `import torchvision` in the processes that tests start.

`torchvision.ops.roi_align` imports `torch._dynamo` (2.4 s of CPU time, as long as `import torch` itself) for one question,
which is asked only where its operator runs. Tests start a thousand processes. `tests/conftest.py` puts this folder on
PYTHONPATH. HEADRACE_TEST_IMPORTS=all leaves the import as it is.
"""

import importlib.machinery
import sys
from types import ModuleType

NEEDS_COMPILER = "torchvision.ops.roi_align"


def _is_compile_supported(device: str) -> bool:
    """Stand for the function of this name: import the compiler, and ask it."""
    from torch._dynamo.utils import is_compile_supported

    return bool(is_compile_supported(device))


class _WithoutCompiler:
    """A finder of one module, which is executed while stand-ins for `torch._dynamo` and its `utils` are in `sys.modules`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != NEEDS_COMPILER or "torch._dynamo" in sys.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                utils = ModuleType("torch._dynamo.utils")
                utils.is_compile_supported = _is_compile_supported
                stand_ins = {"torch._dynamo": ModuleType("torch._dynamo"), utils.__name__: utils}
                sys.modules.update(stand_ins)
                try:
                    execute(module)
                finally:
                    for stand_in in stand_ins:
                        del sys.modules[stand_in]

            spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, _WithoutCompiler())
