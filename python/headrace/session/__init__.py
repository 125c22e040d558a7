"""Sessions: what a run recorded, as data. `model` defines and stores them, `kineto` reads them from profiler traces."""
