"""The CUDA decoder of JPEGs with restart markers: bytes and boxes → a batch on the device, bit-identical to the CPU
kernel's."""

from headrace.gpu.decoder.batch_decoder import CudaBatch, CudaJpegDecoder, available

__all__ = ["CudaBatch", "CudaJpegDecoder", "available"]
