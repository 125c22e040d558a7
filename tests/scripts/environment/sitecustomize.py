"""Python runs this file in each process of a public script: it waits for imports, and then puts the stand-ins in place.

The folder is on PYTHONPATH, in front of nothing that the script imports. The script itself is never changed.
"""

import importlib.abc
import os
import sys

import stand_ins


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, and calls a function once a module that waits for it is complete."""

    def __init__(self):
        self.asking = set()

    def find_spec(self, name, path=None, target=None):
        function = stand_ins.AFTER_IMPORT.get(name)
        if function is None or name in self.asking:
            return None
        self.asking.add(name)
        try:
            others = (finder for finder in sys.meta_path if finder is not self)
            spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        finally:
            self.asking.discard(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then(module):
                execute(module)
                function(module)

            spec.loader.exec_module = then
        return spec


if os.environ.get("SOAK_LOG"):
    stand_ins.before_imports()
    sys.meta_path.insert(0, _Finder())
