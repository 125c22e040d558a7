// The CUDA decoder of JPEGs with restart markers: entropy decoding, inverse DCT, chroma upsampling, colour, crop, antialiased resize,
// flip and normalisation. Each step gives the same bits as headrace's CPU kernel (crates/headrace-core/src: jpeg/entropy.rs,
// jpeg/idct/mod.rs, jpeg/upsample/mod.rs, resample/scalar.rs and resample/coefficients.rs).
//
// The same source compiles for the host. A kernel is a struct with phases: a CUDA block runs phase 0 with all its threads, waits,
// runs phase 1, and so on; on the host, loops over blocks and threads do. What outlives a phase is in `Shared`.
//
// The records of the plan are written by crates/headrace-core/src/cuda_plan. Formats: ITU-T T.81.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HEADRACE_DEVICE 1
#define HD __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#else
#define HD inline
#define UNROLL
#endif

namespace headrace {

typedef unsigned char u8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

// Threads of a CUDA block, and the work that it takes.
constexpr u32 SEGMENTS = 128;  // restart segments, one per thread
constexpr u32 BLOCKS = 16;     // 8×8 blocks, eight threads each
constexpr u32 WEIGHTS = 128;   // outputs of a filter axis, one per thread
constexpr u32 PIXELS = 256;    // pixels, one per thread

// CUDA blocks that a multiprocessor's registers must have room for: 1,536 threads, or 768 of Turing, which holds 1,024 at most.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr u32 RESIDENT = 768;
#else
constexpr u32 RESIDENT = 1536;
#endif

constexpr u32 UNIT = 16;  // bytes of a unit of offsets into the plan

// Bits of a look-up of an AC and of a DC code; longer codes are searched. The tables of a block take 10 KiB of shared memory.
constexpr u32 AC_WINDOW = 11;
constexpr u32 DC_WINDOW = 9;

constexpr u32 WEIGHT_BITS = 22;

enum Colour { GRAY = 0, YCC = 1, RGB = 2 };

// Numbers of headrace-core's Status.
constexpr i32 CORRUPT_DATA = 6;

struct Component {
  u32 blocks;        // the first block of coefficients, and of samples
  u32 h, v;          // blocks per MCU
  u32 across, down;  // blocks in the window
  u32 expand_x, expand_y;
  u32 width, height;  // in samples
  u32 left, top;      // first sample column and row in the window
  u32 tables;         // pair of Huffman tables, 0 or 1
  u16 quant[64];
};

struct Axis {
  u32 source, grid, first, count;
  u32 origin;  // first source position that the axis reads, in the box
  u32 corner;  // the same in image pixels
  u32 taps;    // room for weights per output
  u32 table;   // word at which starts, counts and weights begin
};

struct Image {
  u32 entropy_chunk, idct_chunk, weights_chunk, first_chunk, second_chunk;  // first CUDA block of each kernel
  u32 codes, segments, segment_count, bytes;                                // in units of the plan
  u32 components, colour;
  u32 mcus_across, column, columns, row, rows;  // the window in MCUs
  u32 blocks;
  u32 width, height;  // of the needed region
  u32 vertical_first, flip;
  u32 slot;    // in the batch
  u32 middle;  // byte at which the pixels between the passes begin
  Axis axes[2];
  Component component[3];
};

struct Codes {
  u32 limit[16];
  i32 base[16];
  u8 symbols[256];
};

struct Segment {
  u32 bytes, length;  // offset from the image's bytes, a multiple of 4, and number of bytes
  u32 mcu, end;       // first MCU, and the one after the last needed
};

// What a launch works on. 64-bit words only, so that every compiler lays it out alike.
struct Batch {
  u64 plan;          // device addresses …
  u64 coefficients;  // i16, zero at the start
  u64 samples;       // u8
  u64 table;         // i32
  u64 middle;        // u8
  u64 out;           // N × H × W × 3 values
  u64 values;        // 3 × 256 values of `value_bytes`, or 0 for unchanged uint8
  u64 statuses;      // i32 for each slot
  u64 first, images;  // records of the group
  u64 value_bytes;    // 1, 2 or 4
  u64 single_row_saturates;  // as the CPU kernel of x86-64 treats blocks of a single row
};

template <class T>
HD T* at(u64 address, u64 index) {
  return reinterpret_cast<T*>(address) + index;
}

HD const Image& record(const Batch& batch, u32 number) { return at<const Image>(batch.plan, batch.first)[number]; }

// Return the image that CUDA block `block` of a kernel works for: the last one whose first block is not beyond it.
template <u32 Image::*CHUNK>
HD const Image& image_of(const Batch& batch, u32 block) {
  u32 low = 0, high = static_cast<u32>(batch.images);
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (record(batch, middle).*CHUNK <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return record(batch, low);
}

HD i32 clamp(i32 value, i32 low, i32 high) { return value < low ? low : (value > high ? high : value); }

HD u32 least(u32 a, u32 b) { return a < b ? a : b; }

// ---------------------------------------------------------------------------------------------------------------- entropy decoding

// Position in the block (row × 8 + column) of the k-th coefficient in file order (T.81 figure A.6).
#ifdef HEADRACE_DEVICE
__constant__
#endif
    const u8 ZIGZAG[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                           41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                           30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// Return code length (low byte) and symbol of the code that begins with `peek`, 16 bits; 0 if there is none.
HD u32 find_code(const Codes& codes, u32 peek) {
  for (u32 length = 1; length <= 16; ++length) {
    if (peek < codes.limit[length - 1]) {
      const i32 index = codes.base[length - 1] + static_cast<i32>(peek >> (16 - length));
      return length | static_cast<u32>(codes.symbols[index & 255]) << 8;
    }
  }
  return 0;
}

// A reader of bits, most significant first, from aligned words. FF 00 stands for FF; FF and any other byte end the data, and so does
// its length. Zeros follow, and `padded` counts them.
struct Bits {
  const u32* words;
  u32 left;  // bytes of the segment that are not loaded yet
  u64 window;
  u32 count, padded;
  bool pending;  // the last loaded byte was an FF, whose second byte comes

  HD void push(u32 byte) {
    window |= static_cast<u64>(byte) << (56 - count);
    count += 8;
  }

  HD void end() {
    left = 0;
    pending = false;
  }

  HD void load_slowly(u32 word, u32 bytes) {
    for (u32 i = 0; i < bytes; ++i) {
      const u32 byte = word >> (24 - 8 * i) & 255;
      if (pending) {
        if (byte != 0) return end();
        push(255);
        pending = false;
      } else if (byte == 255) {
        pending = true;
      } else {
        push(byte);
      }
    }
  }

  // Make at least 32 bits valid: the longest symbol, code and magnitude, takes 31.
  HD void refill() {
    while (count < 32) {
      if (left == 0) {
        padded += 32;  // the bits below `count` are zero
        count += 32;
        return;
      }
      const u32 raw = *words++;
#ifdef HEADRACE_DEVICE
      const u32 word = __byte_perm(raw, 0, 0x0123);
#else
      const u32 word = __builtin_bswap32(raw);
#endif
      const bool has_ff = ((~word - 0x01010101u) & word & 0x80808080u) != 0;
      if (has_ff || pending || left < 4) {
        const u32 bytes = least(left, 4);
        left -= bytes;
        load_slowly(word, bytes);
      } else {
        left -= 4;
        window |= static_cast<u64>(word) << (32 - count);
        count += 32;
      }
    }
  }

  HD u32 peek(u32 bits) const { return static_cast<u32>(window >> (64 - bits)); }

  HD void skip(u32 bits) {
    window <<= bits;
    count -= bits;
  }

  // Return `size` bits as a signed value (T.81 F.2.2.1, EXTEND); 0 for no bits.
  HD i32 receive(u32 size) {
    if (size == 0) return 0;
    const u32 bits = peek(size);
    skip(size);
    return static_cast<i32>(bits) - (bits >> (size - 1) ? 0 : static_cast<i32>((1u << size) - 1));
  }
};

// Return the symbol of the next code, or a number above 255 if there is none.
template <u32 WINDOW>
HD u32 next_symbol(Bits& bits, const u16* table, const Codes& codes) {
  u32 entry = table[bits.peek(WINDOW)];
  if (entry == 0) {
    entry = find_code(codes, bits.peek(16));
    if (entry == 0) return 256;
  }
  bits.skip(entry & 255);
  return entry >> 8;
}

// Decode a block; return false if the data is damaged. `block` is null for a block that is not stored.
HD bool decode_block(Bits& bits, const u16* dc, const u16* ac, const Codes* codes, const u8* zigzag, u32& predictor, i16* block) {
  bits.refill();
  const u32 size = next_symbol<DC_WINDOW>(bits, dc, codes[0]);
  if (size > 15) return false;
  predictor += static_cast<u32>(bits.receive(size));
  if (block) block[0] = static_cast<i16>(predictor);
  for (u32 k = 0; k < 63;) {
    bits.refill();
    const u32 symbol = next_symbol<AC_WINDOW>(bits, ac, codes[1]);
    if (symbol > 255) return false;
    const u32 run = symbol >> 4, bits_of_value = symbol & 15;
    if (bits_of_value == 0) {
      if (run != 15) return true;  // end of block
      k += 16;
      if (k > 63) return false;
      continue;
    }
    k += run + 1;
    if (k > 63) return false;
    const i32 value = bits.receive(bits_of_value);
    if (block) block[zigzag[k]] = static_cast<i16>(value);
  }
  return true;
}

// One thread per restart segment.
struct Entropy {
  static constexpr u32 threads = SEGMENTS;
  static constexpr u32 resident = RESIDENT / threads;
  static constexpr u32 phases = 2;

  struct Shared {
    u16 dc[2][1 << DC_WINDOW];  // code length and symbol for each window; 0 if the code is longer
    u16 ac[2][1 << AC_WINDOW];
    u8 zigzag[64];  // a copy: threads read different entries, which constant memory would serialise
  };

  template <u32 WINDOW>
  static HD void build(const Codes& codes, u16* table, u32 thread) {
    for (u32 i = thread; i < 1u << WINDOW; i += threads) {
      const u32 found = find_code(codes, i << (16 - WINDOW));
      table[i] = static_cast<u16>((found & 255) <= WINDOW ? found : 0);
    }
  }

  static HD bool decode(const Batch& batch, const Image& image, const Segment& segment, const Shared& shared) {
    Bits bits = {at<const u32>(batch.plan + static_cast<u64>(image.bytes) * UNIT, segment.bytes / 4), segment.length, 0, 0, 0, false};
    const Codes* codes = at<const Codes>(batch.plan + static_cast<u64>(image.codes) * UNIT, 0);
    u32 predictors[3] = {0, 0, 0};
    u32 row = segment.mcu / image.mcus_across - image.row;  // wraps above the window
    u32 column = segment.mcu % image.mcus_across - image.column;
    for (u32 mcu = segment.mcu; mcu < segment.end; ++mcu) {
      const bool stored = row < image.rows && column < image.columns;
      UNROLL
      for (u32 number = 0; number < 3; ++number) {
        if (number >= image.components) break;
        const Component& component = image.component[number];
        const u32 pair = component.tables;
        for (u32 y = 0; y < component.v; ++y) {
          for (u32 x = 0; x < component.h; ++x) {
            const u32 place = (row * component.v + y) * component.across + column * component.h + x;
            i16* block = stored ? at<i16>(batch.coefficients, (static_cast<u64>(component.blocks) + place) * 64) : nullptr;
            if (!decode_block(bits, shared.dc[pair], shared.ac[pair], codes + 2 * pair, shared.zigzag, predictors[number], block)) {
              return false;
            }
          }
        }
      }
      if (++column + image.column == image.mcus_across) {
        column = 0u - image.column;
        ++row;
      }
    }
    return bits.padded <= bits.count;  // no padding was used
  }

  template <u32 PHASE>
  static HD void run(const Batch& batch, u32 block, u32 thread, Shared& shared) {
    const Image& image = image_of<&Image::entropy_chunk>(batch, block);
    if (PHASE == 0) {
      const Codes* codes = at<const Codes>(batch.plan + static_cast<u64>(image.codes) * UNIT, 0);
      if (thread < 64) shared.zigzag[thread] = ZIGZAG[thread];
      u32 pairs = 0;
      for (u32 i = 0; i < image.components; ++i) {
        if (image.component[i].tables + 1 > pairs) pairs = image.component[i].tables + 1;
      }
      for (u32 pair = 0; pair < pairs; ++pair) {
        build<DC_WINDOW>(codes[2 * pair], shared.dc[pair], thread);
        build<AC_WINDOW>(codes[2 * pair + 1], shared.ac[pair], thread);
      }
      return;
    }
    const u32 number = (block - image.entropy_chunk) * SEGMENTS + thread;
    if (number >= image.segment_count) return;
    const Segment& segment = at<const Segment>(batch.plan + static_cast<u64>(image.segments) * UNIT, 0)[number];
    if (!decode(batch, image, segment, shared)) *at<i32>(batch.statuses, image.slot) = CORRUPT_DATA;
  }
};

// -------------------------------------------------------------------------------------------------------------------- inverse DCT

// The one-dimensional transform of libjpeg-turbo's "islow": 13-bit constants, 16-bit inputs, 32-bit sums that wrap. Source of the
// algorithm: Loeffler, Ligtenberg, Moschytz 1989.
template <u32 SHIFT>
HD void transform(const i16* in, i16* out) {
  const auto rotate = [](i32 a, i32 fa, i32 b, i32 fb) { return static_cast<u32>(a * fa) + static_cast<u32>(b * fb); };
  const auto sum = [](i32 a, i32 b) { return static_cast<i32>(static_cast<i16>(a + b)); };
  constexpr i32 F0_298 = 2446, F0_390 = 3196, F0_541 = 4433, F0_765 = 6270, F0_899 = 7373, F1_175 = 9633, F1_501 = 12299,
                F1_847 = 15137, F1_961 = 16069, F2_053 = 16819, F2_562 = 20995, F3_072 = 25172;
  const u32 tmp2 = rotate(in[2], F0_541, in[6], F0_541 - F1_847);
  const u32 tmp3 = rotate(in[2], F0_541 + F0_765, in[6], F0_541);
  const u32 tmp0 = static_cast<u32>(sum(in[0], in[4])) << 13;
  const u32 tmp1 = static_cast<u32>(sum(in[0], -in[4])) << 13;
  const u32 even[4] = {tmp0 + tmp3, tmp1 + tmp2, tmp1 - tmp2, tmp0 - tmp3};
  const i32 z3 = sum(in[7], in[3]), z4 = sum(in[5], in[1]);
  const u32 z3_rotated = rotate(z3, F1_175 - F1_961, z4, F1_175);
  const u32 z4_rotated = rotate(z3, F1_175, z4, F1_175 - F0_390);
  const u32 odd[4] = {
      rotate(in[7], -F0_899, in[1], F1_501 - F0_899) + z4_rotated,
      rotate(in[5], -F2_562, in[3], F3_072 - F2_562) + z3_rotated,
      rotate(in[5], F2_053 - F2_562, in[3], -F2_562) + z4_rotated,
      rotate(in[7], F0_298 - F0_899, in[1], -F0_899) + z3_rotated,
  };
  const auto descale = [](u32 x) {
    return static_cast<i16>(clamp(static_cast<i32>(x + (1u << (SHIFT - 1))) >> SHIFT, -32768, 32767));
  };
  UNROLL
  for (u32 i = 0; i < 4; ++i) {
    out[i] = descale(even[i] + odd[i]);
    out[7 - i] = descale(even[i] - odd[i]);
  }
}

// Eight threads per block: a thread per column, then a thread per row.
struct Idct {
  static constexpr u32 threads = BLOCKS * 8;
  static constexpr u32 resident = RESIDENT / threads;
  static constexpr u32 phases = 3;
  static constexpr u32 STRIDE = 66;  // values of a block in shared memory: columns of neighbouring blocks fall into different banks

  struct Shared {
    i16 column[BLOCKS][STRIDE];  // dequantised, then transformed; value (row, column) at column × 8 + row
    u8 below[BLOCKS][8];         // whether a column has a coefficient below its first
  };

  static HD const Component& component_of(const Image& image, u32 block) {
    u32 number = 0;
    while (number + 1 < image.components && block >= image.component[number + 1].blocks - image.component[0].blocks) ++number;
    return image.component[number];
  }

  template <u32 PHASE>
  static HD void run(const Batch& batch, u32 block, u32 thread, Shared& shared) {
    const Image& image = image_of<&Image::idct_chunk>(batch, block);
    const u32 lane = thread / 8, index = thread % 8;
    const u32 number = (block - image.idct_chunk) * BLOCKS + lane;
    if (number >= image.blocks) return;
    const Component& component = component_of(image, number);
    const u64 place = static_cast<u64>(image.component[0].blocks) + number;
    i16* const values = shared.column[lane] + index * 8;
    if (PHASE == 0) {
      const i16* coefficients = at<const i16>(batch.coefficients, place * 64);
      u8 below = 0;
      UNROLL
      for (u32 row = 0; row < 8; ++row) {
        const i16 coefficient = coefficients[row * 8 + index];
        below |= row > 0 && coefficient != 0;
        values[row] = static_cast<i16>(static_cast<i32>(coefficient) * static_cast<i16>(component.quant[row * 8 + index]));
      }
      shared.below[lane][index] = below;
    } else if (PHASE == 1) {
      u32 below = 0;
      for (u32 column = 0; column < 8; ++column) below |= shared.below[lane][column];
      i16 in[8];
      UNROLL
      for (u32 row = 0; row < 8; ++row) in[row] = values[row];
      // Of a block with a single row, libjpeg-turbo's code for x86-64 multiplies that row by 4 in 16 bits.
      if (!below && batch.single_row_saturates) in[0] = static_cast<i16>(static_cast<i16>(static_cast<u16>(in[0]) << 2) >> 2);
      transform<11>(in, values);
    } else {
      i16 in[8], out[8];
      UNROLL
      for (u32 column = 0; column < 8; ++column) in[column] = shared.column[lane][column * 8 + index];
      transform<18>(in, out);
      const u32 within = number - (component.blocks - image.component[0].blocks);
      const u32 x = within % component.across, y = within / component.across;
      u8* to = at<u8>(batch.samples, static_cast<u64>(component.blocks) * 64 +
                                         (static_cast<u64>(y) * 8 + index) * component.across * 8 + x * 8);
      u32 words[2] = {0, 0};
      UNROLL
      for (u32 column = 0; column < 8; ++column) {
        words[column / 4] |= static_cast<u32>(clamp(out[column], -128, 127) + 128) << (column % 4 * 8);
      }
      reinterpret_cast<u32*>(to)[0] = words[0];
      reinterpret_cast<u32*>(to)[1] = words[1];
    }
  }
};

// ------------------------------------------------------------------------------------------------------- filter weights of a resize

// Pillow's bilinear weights (Resample.c, precompute_coeffs and normalize_coeffs_8bpc), in double precision and in its order of
// operations: compile without contraction of multiplications and additions (--fmad=false).
struct Weights {
  static constexpr u32 threads = WEIGHTS;
  static constexpr u32 resident = 768 / threads;  // few threads with many registers for double precision
  static constexpr u32 phases = 1;
  struct Shared {
    u32 unused;
  };

  static HD double triangle(double x) {
    const double value = 1.0 - (x < 0.0 ? -x : x);
    return value > 0.0 ? value : 0.0;
  }

  template <u32 PHASE>
  static HD void run(const Batch& batch, u32 block, u32 thread, Shared&) {
    const Image& image = image_of<&Image::weights_chunk>(batch, block);
    u32 output = (block - image.weights_chunk) * WEIGHTS + thread;
    u32 number = 0;
    if (output >= image.axes[0].count) {
      output -= image.axes[0].count;
      number = 1;
    }
    const Axis& axis = image.axes[number];
    if (output >= axis.count) return;
    i32* const starts = at<i32>(batch.table, axis.table);
    i32* const counts = starts + axis.count;
    i32* const weights = counts + axis.count + static_cast<u64>(output) * axis.taps;
    if (axis.source == axis.grid) {
      starts[output] = static_cast<i32>(axis.first + output - axis.origin);
      counts[output] = 1;
      weights[0] = 1 << WEIGHT_BITS;
      return;
    }
    const double scale = static_cast<double>(axis.source) / static_cast<double>(axis.grid);
    const double stretch = scale > 1.0 ? scale : 1.0;  // the filter's support at scale 1 is 1
    const double inverse = 1.0 / stretch;
    const double center = (static_cast<double>(axis.first + output) + 0.5) * scale;
    i32 start = static_cast<i32>(center - stretch + 0.5);
    start = start < 0 ? 0 : start;
    i32 end = static_cast<i32>(center + stretch + 0.5);
    end = end > static_cast<i32>(axis.source) ? static_cast<i32>(axis.source) : end;
    const i32 count = clamp(end - start, 0, static_cast<i32>(axis.taps));
    double total = 0.0;
    for (i32 tap = 0; tap < count; ++tap) {
      total += triangle((static_cast<double>(start) + static_cast<double>(tap) - center + 0.5) * inverse);
    }
    const double divisor = total == 0.0 ? 1.0 : total;
    for (i32 tap = 0; tap < count; ++tap) {
      const double exact = triangle((static_cast<double>(start) + static_cast<double>(tap) - center + 0.5) * inverse);
      weights[tap] = static_cast<i32>(exact / divisor * static_cast<double>(1 << WEIGHT_BITS) + 0.5);
    }
    starts[output] = start - static_cast<i32>(axis.origin);
    counts[output] = count;
  }
};

// ----------------------------------------------------------------------------------------------- upsampling, colour and both passes

struct Pixel {
  i32 c[3];
};

// The sample of a component at a pixel of the image, with libjpeg's "fancy" upsampling (jdsample.c).
HD i32 sample(const Batch& batch, const Component& component, u32 x, u32 y) {
  const u32 stride = component.across * 8;
  const u8* samples = at<const u8>(batch.samples, static_cast<u64>(component.blocks) * 64);
  const auto value = [&](u32 column, u32 row) {
    return static_cast<i32>(samples[static_cast<u64>(row - component.top) * stride + (column - component.left)]);
  };
  if (component.expand_x == 1 && component.expand_y == 1) return value(x, y);
  const u32 bottom = component.height - 1, right = component.width - 1;
  const u32 near = least(y / component.expand_y, bottom);
  u32 far = near;
  if (component.expand_y == 2) far = (y & 1) ? least(near + 1, bottom) : (near ? near - 1 : 0);
  if (component.expand_x == 1) return (3 * value(x, near) + value(x, far) + ((y & 1) ? 2 : 1)) >> 2;
  const u32 here = least(x / 2, right);
  if (component.width <= 2) return value(here, near);  // repeated: too narrow for the filter
  const u32 beside = (x & 1) ? least(here + 1, right) : (here ? here - 1 : 0);
  if (component.expand_y == 1) return (3 * value(here, near) + value(beside, near) + ((x & 1) ? 2 : 1)) >> 2;
  const i32 sum = 3 * value(here, near) + value(here, far), other = 3 * value(beside, near) + value(beside, far);
  return (3 * sum + other + ((x & 1) ? 7 : 8)) >> 4;
}

// The RGB pixel at (x, y) of the image, by libjpeg's 16-bit fixed-point conversion (jdcolor.c).
HD Pixel pixel_at(const Batch& batch, const Image& image, u32 x, u32 y) {
  const i32 first = sample(batch, image.component[0], x, y);
  if (image.colour == GRAY) return Pixel{{first, first, first}};
  const i32 second = sample(batch, image.component[1], x, y), third = sample(batch, image.component[2], x, y);
  if (image.colour == RGB) return Pixel{{first, second, third}};
  const i32 cb = second - 128, cr = third - 128, half = 1 << 15;
  return Pixel{{clamp(first + ((91881 * cr + half) >> 16), 0, 255),
                clamp(first + ((-22554 * cb - 46802 * cr + half) >> 16), 0, 255),
                clamp(first + ((116130 * cb + half) >> 16), 0, 255)}};
}

// The weighted sum of one output: `source(tap)` returns the pixels in turn. Sums wrap like Pillow's.
template <class Source>
HD Pixel weighted(const Batch& batch, const Axis& axis, u32 output, Source source) {
  const i32* const starts = at<const i32>(batch.table, axis.table);
  const i32* const weights = starts + 2 * axis.count + static_cast<u64>(output) * axis.taps;
  const u32 start = static_cast<u32>(starts[output]), count = static_cast<u32>(starts[axis.count + output]);
  u32 sums[3] = {1u << (WEIGHT_BITS - 1), 1u << (WEIGHT_BITS - 1), 1u << (WEIGHT_BITS - 1)};
  for (u32 tap = 0; tap < count; ++tap) {
    const Pixel pixel = source(start + tap);
    const u32 weight = static_cast<u32>(weights[tap]);
    for (u32 c = 0; c < 3; ++c) sums[c] += static_cast<u32>(pixel.c[c]) * weight;
  }
  Pixel result;
  for (u32 c = 0; c < 3; ++c) result.c[c] = clamp(static_cast<i32>(sums[c]) >> WEIGHT_BITS, 0, 255);
  return result;
}

// A pass of the resize: its threads share nothing.
struct OneThreadAPixel {
  static constexpr u32 threads = PIXELS;
  static constexpr u32 resident = RESIDENT / threads;
  static constexpr u32 phases = 1;
  struct Shared {
    u32 unused;
  };
};

// The first pass of the resize, from samples: one thread per pixel between the passes.
struct FirstPass : OneThreadAPixel {
  template <u32 PHASE>
  static HD void run(const Batch& batch, u32 block, u32 thread, Shared&) {
    const Image& image = image_of<&Image::first_chunk>(batch, block);
    const u32 number = (block - image.first_chunk) * PIXELS + thread;
    const Axis &across = image.axes[0], &down = image.axes[1];
    const u32 width = image.vertical_first ? image.width : across.count;
    const u32 height = image.vertical_first ? down.count : image.height;
    const u32 x = number % width, y = number / width;
    if (y >= height) return;
    const Pixel pixel = image.vertical_first ? weighted(batch, down, y,
                                                        [&](u32 row) { return pixel_at(batch, image, across.corner + x, down.corner + row); })
                                             : weighted(batch, across, x, [&](u32 column) {
                                                 return pixel_at(batch, image, across.corner + column, down.corner + y);
                                               });
    u8* const to = at<u8>(batch.middle, image.middle + static_cast<u64>(number) * 3);
    for (u32 c = 0; c < 3; ++c) to[c] = static_cast<u8>(pixel.c[c]);
  }
};

// The second pass, the flip, and the store: one thread per pixel of the batch.
struct SecondPass : OneThreadAPixel {
  template <u32 PHASE>
  static HD void run(const Batch& batch, u32 block, u32 thread, Shared&) {
    const Image& image = image_of<&Image::second_chunk>(batch, block);
    const u32 number = (block - image.second_chunk) * PIXELS + thread;
    const Axis &across = image.axes[0], &down = image.axes[1];
    const u32 x = number % across.count, y = number / across.count;
    if (y >= down.count) return;
    const u32 stride = image.vertical_first ? image.width : across.count;
    const auto middle = [&](u32 column, u32 row) {
      const u8* from = at<const u8>(batch.middle, image.middle + (static_cast<u64>(row) * stride + column) * 3);
      return Pixel{{from[0], from[1], from[2]}};
    };
    const Pixel pixel = image.vertical_first ? weighted(batch, across, x, [&](u32 column) { return middle(column, y); })
                                             : weighted(batch, down, y, [&](u32 row) { return middle(x, row); });
    const u32 mirrored = image.flip ? across.count - 1 - x : x;
    const u64 place = ((static_cast<u64>(image.slot) * down.count + y) * across.count + mirrored) * 3;
    for (u32 c = 0; c < 3; ++c) {
      const u32 entry = c * 256 + static_cast<u32>(pixel.c[c]);
      if (batch.value_bytes == 1) {
        *at<u8>(batch.out, place + c) = batch.values ? *at<const u8>(batch.values, entry) : static_cast<u8>(pixel.c[c]);
      } else if (batch.value_bytes == 2) {
        *at<u16>(batch.out, place + c) = *at<const u16>(batch.values, entry);
      } else {
        *at<u32>(batch.out, place + c) = *at<const u32>(batch.values, entry);
      }
    }
  }
};

// ------------------------------------------------------------------------------------------------------------------- entry points

template <class Kernel, u32 PHASE = 0>
struct Phases {
#ifdef HEADRACE_DEVICE
  static HD void on_device(const Batch& batch, typename Kernel::Shared& shared) {
    Kernel::template run<PHASE>(batch, blockIdx.x, threadIdx.x, shared);
    if constexpr (PHASE + 1 < Kernel::phases) {
      __syncthreads();
      Phases<Kernel, PHASE + 1>::on_device(batch, shared);
    }
  }
#else
  static void on_host(const Batch& batch, u32 block, bool backwards, typename Kernel::Shared& shared) {
    for (u32 i = 0; i < Kernel::threads; ++i) {
      Kernel::template run<PHASE>(batch, block, backwards ? Kernel::threads - 1 - i : i, shared);
    }
    if constexpr (PHASE + 1 < Kernel::phases) Phases<Kernel, PHASE + 1>::on_host(batch, block, backwards, shared);
  }
#endif
};

#ifndef HEADRACE_DEVICE
// Run a kernel on the host. `backwards` reverses the order of blocks and threads: the result must not depend on it.
template <class Kernel>
void launch(const Batch& batch, u32 blocks, bool backwards) {
  for (u32 i = 0; i < blocks; ++i) {
    typename Kernel::Shared shared;
    for (u32 byte = 0; byte < sizeof shared; ++byte) reinterpret_cast<u8*>(&shared)[byte] = 0xA5;  // as undefined as on the device
    Phases<Kernel>::on_host(batch, backwards ? blocks - 1 - i : i, backwards, shared);
  }
}
#endif

}  // namespace headrace

#ifdef HEADRACE_DEVICE
#define HEADRACE_KERNEL(NAME, KERNEL)                                                                       \
  extern "C" __global__ void __launch_bounds__(headrace::KERNEL::threads, headrace::KERNEL::resident) NAME( \
      const __grid_constant__ headrace::Batch batch) {                                                      \
    __shared__ headrace::KERNEL::Shared shared;                                                             \
    headrace::Phases<headrace::KERNEL>::on_device(batch, shared);                                           \
  }
#else
#define HEADRACE_KERNEL(NAME, KERNEL)                                                                       \
  extern "C" void NAME(const headrace::Batch* batch, unsigned int blocks, int backwards) {                  \
    headrace::launch<headrace::KERNEL>(*batch, blocks, backwards != 0);                                     \
  }
extern "C" void headrace_sizes(unsigned int* sizes) {
  const unsigned int own[] = {headrace::SEGMENTS,      headrace::BLOCKS,        headrace::WEIGHTS,         headrace::PIXELS,
                              sizeof(headrace::Image), sizeof(headrace::Codes), sizeof(headrace::Segment), sizeof(headrace::Batch)};
  for (unsigned int i = 0; i < 8; ++i) sizes[i] = own[i];
}
#endif

HEADRACE_KERNEL(headrace_entropy, Entropy)
HEADRACE_KERNEL(headrace_idct, Idct)
HEADRACE_KERNEL(headrace_weights, Weights)
HEADRACE_KERNEL(headrace_first_pass, FirstPass)
HEADRACE_KERNEL(headrace_second_pass, SecondPass)
