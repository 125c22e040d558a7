"""The CUDA decoder of JPEGs with restart markers: bytes and boxes → a batch on the device, bit-identical to the CPU kernel's.

- `arguments`: What a launch works on, as C structures, and the kernels' names.
- `batch_decoder`: CudaJpegDecoder, and the batches that it returns.
- `driver`: The CUDA driver's part: compiled kernels are loaded, and launched on torch's stream.
- `nvrtc`: Compilation of decode.cuh for a GPU; the result is kept in the cache folder.
- `self_check`: A first decode on each GPU, compared with the CPU kernel.
"""

from headrace.gpu.decoder.batch_decoder import CudaBatch, CudaJpegDecoder, available

__all__ = ["CudaBatch", "CudaJpegDecoder", "available"]
