// SPDX-License-Identifier: Apache-2.0
#include "tools/kernel_self_test.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/matrix.h"
#include "kernels/scratch.h"
#include "tensor/buffer.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kRows = 80, kCols = 192, kTokens = 5;

/// 64-bit mix of a counter: the same bytes on every machine.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// A value in [-1, 1) on the BF16 grid.
float small_value(uint64_t counter) {
  const auto value =
      static_cast<float>(static_cast<int64_t>(mix(counter) >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000U);
}

struct Case {
  kernels::WeightFormat format;
  std::string_view name;
};

constexpr Case kCases[] = {{kernels::WeightFormat::f32, "f32"},
                           {kernels::WeightFormat::bf16, "bf16"},
                           {kernels::WeightFormat::fp8_block32, "fp8"},
                           {kernels::WeightFormat::mxfp4, "mxfp4"}};

/// Checkpoint bytes of a random matrix: finite values of moderate size in each format.
std::vector<std::byte> source_bytes(kernels::WeightFormat format) {
  const auto count = static_cast<size_t>(kRows * kernels::source_row_bytes(format, kCols));
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    if (format == kernels::WeightFormat::f32) {
      const auto bits = std::bit_cast<uint32_t>(small_value(i / 4));
      bytes[i] = static_cast<std::byte>(bits >> (8 * (i % 4)));
    } else if (format == kernels::WeightFormat::bf16) {
      const auto bits = std::bit_cast<uint32_t>(small_value(i / 2)) >> 16;
      bytes[i] = static_cast<std::byte>(bits >> (8 * (i % 2)));
    } else {
      const auto byte = static_cast<uint8_t>(mix(i));
      const bool is_nan = format == kernels::WeightFormat::fp8_block32 && (byte & 0x7F) == 0x7F;
      bytes[i] = static_cast<std::byte>(is_nan ? 0 : byte);
    }
  }
  return bytes;
}

std::vector<float> product(const kernels::KernelTable& table, const kernels::Matrix& weight,
                           ThreadPool& pool) {
  std::vector<float> x(static_cast<size_t>(kTokens * kCols)), y(static_cast<size_t>(kTokens * kRows));
  for (size_t i = 0; i < x.size(); ++i) x[i] = small_value(i + 1'000'000);
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, kernels::Numerics::reference};
  kernels::LinearArgs args;
  args.num_rows = kTokens;
  args.weight = weight;
  args.x = x.data();
  args.y = y.data();
  table.linear(ctx, args);
  return y;
}

std::string first_difference(const std::vector<float>& expected, const std::vector<float>& got) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto a = std::bit_cast<uint32_t>(expected[i]), b = std::bit_cast<uint32_t>(got[i]);
    if (a != b)
      return fmt::format("element {}: got {} ({:08x}), expected {} ({:08x})", i, got[i], b, expected[i], a);
  }
  return {};
}

}  // namespace

std::vector<SelfTestRow> run_kernel_self_test() {
  std::vector<SelfTestRow> rows;
  ThreadPool pool(1);
  const ScopedFlushToZero flush;
  const auto tables = kernels::available_kernels();
  for (const auto& [format, name] : kCases) {
    const auto source = source_bytes(format);
    const std::vector<uint8_t> source_scales(static_cast<size_t>(kRows * kCols / kernels::kBlockCols), 120);
    auto data = tensor::Buffer::allocate(kernels::packed_data_bytes(format, kRows, kCols));
    std::vector<uint8_t> scales(static_cast<size_t>(kernels::packed_scale_bytes(format, kRows, kCols)));
    if (!data.ok()) return rows;
    const auto weight = kernels::pack_matrix(format, kRows, kCols, source.data(), source_scales.data(),
                                             data->data(), scales.data());
    const auto expected = product(*tables.front(), weight, pool);
    for (const auto* table : tables.subspan(1)) {
      const auto difference = first_difference(expected, product(*table, weight, pool));
      rows.push_back({std::string(table->name), std::string(name), difference.empty(), difference});
    }
  }
  return rows;
}

}  // namespace rorqual::tools
