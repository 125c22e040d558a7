"""The GPU side of the input: decoding, resampling and the last steps of a batch on the device, and who decodes what.

- `affine`: Affine sampling on any device: rotations, shears and shifts.
- `augment`: Augmentation on any device: the passes that the CPU kernel makes after crop and resize, image by image its own.
- `augment_check`: A first augmentation on each GPU, compared with torch on the CPU.
- `augment_kernels`: The Triton kernels of augmentation: blur, hue and bilinear affine sampling.
- `choice`: The choice among the GPU decoders of a machine.
- `colour_operations`: Colour operations on any device, bit for bit as the CPU kernel.
- `cropping`: The part of a pipeline that the CPU does where the GPU augments what the CPU decoded.
- `decoder`: Our CUDA decoder of JPEGs with restart markers: kernels compiled at run time, and what they are told.
- `decoders`: The seam of GPU decoding: what a decoder is given, and what it returns.
- `kernels`: The Triton kernel of resampling. Imported only where Triton is; its torch twin gives the same result.
- `neighbour_operations`: Blur, sharpness, dilation, erosion and flips on any device.
- `nvimagecodec`: Decoding by nvImageCodec, where it is installed: the regions of the crops of any baseline JPEG.
- `nvjpeg`: Decoding by nvJPEG through torchvision: any baseline JPEG, whole images, then crop and resize on the GPU.
- `placement`: Placement: which images the GPU decodes, and which it augments only, by measured rates.
- `prepare`: The last steps of a batch on its device, in one pass: flip, values, RandomErasing, and MixUp or CutMix.
- `prepare_kernel`: The Triton kernel of `headrace.gpu.prepare`: one read of the bytes, one write of the batch.
- `resample`: Crop, antialiased resize and flip of uint8 images on any device, bit for bit as Pillow and the CPU kernel do them.
- `torchcodec_jpeg`: Decoding by nvJPEG through torchcodec, where it is installed, as through torchvision.
- `triton_present`: Whether the Triton kernels run on a device.
"""
