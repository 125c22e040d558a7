// Runs the CUDA decoder's kernels on the host over a plan in a file, in allocations of exactly the stated sizes, so that the address
// sanitizer sees each access beyond them. Prints the number of images whose data is damaged.
//
// The file, 64-bit words: slots, height, width, groups; for each group first, images, blocks, middle, table and five numbers of CUDA
// blocks; bytes of the plan; the plan.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../../../python/headrace/gpu/decoder/decode.cuh"

namespace {

using headrace::u64;

u64 word(FILE* file) {
  u64 value = 0;
  if (std::fread(&value, sizeof value, 1, file) != 1) std::exit(3);
  return value;
}

std::unique_ptr<unsigned char[]> memory(u64 bytes, int content) {
  std::unique_ptr<unsigned char[]> made(new unsigned char[bytes]);
  std::memset(made.get(), content, bytes);
  return made;
}

u64 address(const std::unique_ptr<unsigned char[]>& block) { return reinterpret_cast<u64>(block.get()); }

}  // namespace

int main(int, char** arguments) {
  FILE* file = std::fopen(arguments[1], "rb");
  if (!file) return 3;
  const bool backwards = std::strcmp(arguments[2], "backwards") == 0;
  const u64 slots = word(file), height = word(file), width = word(file), count = word(file);
  std::unique_ptr<u64[]> groups(new u64[count * 10]);
  for (u64 i = 0; i < count * 10; ++i) groups[i] = word(file);
  const u64 size = word(file);
  const auto plan = memory(size, 0);
  if (std::fread(plan.get(), 1, size, file) != size) return 3;
  std::fclose(file);
  const auto out = memory(slots * height * width * 3, 0), statuses = memory(slots * 4, 0);
  for (u64 i = 0; i < count; ++i) {
    const u64* group = &groups[i * 10];
    const auto coefficients = memory(group[2] * 128, 0), samples = memory(group[2] * 64, 0xA5);
    const auto middle = memory(group[3], 0xA5), table = memory(group[4] * 4, 0xA5);
    const headrace::Batch batch = {address(plan), address(coefficients), address(samples), address(table), address(middle), address(out), 0,
                                   address(statuses), group[0], group[1], 1, 1};
    void (*const kernels[])(const headrace::Batch*, unsigned int, int) = {headrace_entropy, headrace_idct, headrace_weights,
                                                                          headrace_first_pass, headrace_second_pass};
    for (int kernel = 0; kernel < 5; ++kernel) kernels[kernel](&batch, static_cast<unsigned int>(group[5 + kernel]), backwards);
  }
  u64 damaged = 0;
  for (u64 slot = 0; slot < slots; ++slot) {
    headrace::i32 status;
    std::memcpy(&status, statuses.get() + slot * 4, sizeof status);
    damaged += status != 0;
  }
  std::printf("%llu\n", damaged);
  return 0;
}
