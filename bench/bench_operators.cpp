// SPDX-License-Identifier: Apache-2.0
// Times the linear stage of every kernel tier on a matrix of the release's width, for each weight format and
// several numbers of rows and the head stage at the release's vocabulary: best of several runs. Prints CSV.
// Arguments: [head] [THREADS]; "head" = only the head stage (needs 4 GB); default: what this process may use.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/matrix.h"
#include "kernels/scratch.h"
#include "tensor/buffer.h"

namespace rorqual {
namespace {

constexpr int64_t kMatrixRows = 2304, kMatrixCols = 5120;
constexpr int kMatrices = 16;  // in turn, so that one row reads from memory and not from a cache
constexpr double kSecondsPerCase = 0.5;

struct Format {
  kernels::WeightFormat format;
  std::string_view name;
};

constexpr Format kFormats[] = {{kernels::WeightFormat::bf16, "bf16"},
                               {kernels::WeightFormat::fp8_block32, "fp8"},
                               {kernels::WeightFormat::mxfp4, "mxfp4"}};

/// Packed matrices whose codes are all small finite values.
struct Weights {
  std::vector<tensor::Buffer> buffers;
  std::vector<kernels::Matrix> matrices;
};

Weights make_weights(kernels::WeightFormat format) {
  Weights weights;
  const auto row_bytes = kernels::source_row_bytes(format, kMatrixCols);
  std::vector<std::byte> source(static_cast<size_t>(kMatrixRows * row_bytes));
  for (size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::byte>((i * 2654435761U >> 11) & 0x3B);
  const std::vector<uint8_t> scales(static_cast<size_t>(kMatrixRows * kMatrixCols / kernels::kBlockCols),
                                    120);
  for (int i = 0; i < kMatrices; ++i) {
    auto data = tensor::Buffer::allocate(kernels::packed_data_bytes(format, kMatrixRows, kMatrixCols));
    auto packed = tensor::Buffer::allocate(
        std::max<int64_t>(kernels::packed_scale_bytes(format, kMatrixRows, kMatrixCols), 1));
    if (!data.ok() || !packed.ok()) return {};
    weights.matrices.push_back(kernels::pack_matrix(format, kMatrixRows, kMatrixCols, source.data(),
                                                    scales.data(), data->data(),
                                                    reinterpret_cast<uint8_t*>(packed->data())));
    weights.buffers.push_back(*std::move(data));
    weights.buffers.push_back(*std::move(packed));
  }
  return weights;
}

double seconds_per_product(const kernels::KernelTable& table, const Weights& weights, int64_t rows,
                           ThreadPool& pool) {
  const std::vector<float> x(static_cast<size_t>(rows * kMatrixCols), 0.25F);
  std::vector<float> y(static_cast<size_t>(rows * kMatrixRows));
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, kernels::Numerics::reference};
  double best = 1e30, total = 0;
  for (size_t run = 0; run < 3 || total < kSecondsPerCase; ++run) {
    kernels::LinearArgs args;
    args.num_rows = rows;
    args.weight = weights.matrices[run % weights.matrices.size()];
    args.x = x.data();
    args.y = y.data();
    const auto start = std::chrono::steady_clock::now();
    table.linear(ctx, args);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

/// The release's output head: norm and logits of `rows` rows.
struct Head {
  tensor::Buffer data, scales;
  kernels::Matrix matrix;
};

constexpr int64_t kVocabulary = 129'280, kWidth = 5120;

bool make_head(kernels::WeightFormat format, Head& head) {
  const auto row_bytes = kernels::source_row_bytes(format, kWidth);
  auto data = tensor::Buffer::allocate(kernels::packed_data_bytes(format, kVocabulary, kWidth));
  auto packed = tensor::Buffer::allocate(
      std::max<int64_t>(kernels::packed_scale_bytes(format, kVocabulary, kWidth), 1));
  if (!data.ok() || !packed.ok()) return false;
  head.data = *std::move(data);
  head.scales = *std::move(packed);
  std::vector<std::byte> source(static_cast<size_t>(kVocabulary * row_bytes));
  for (size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::byte>((i * 2654435761U >> 11) & 0x3B);
  const std::vector<uint8_t> scales(
      static_cast<size_t>(kVocabulary / kernels::kBlockCols * kWidth / kernels::kBlockCols), 120);
  head.matrix = kernels::pack_matrix(format, kVocabulary, kWidth, source.data(), scales.data(),
                                     head.data.data(), reinterpret_cast<uint8_t*>(head.scales.data()));
  return true;
}

/// Best of nine runs; the head is larger than every cache.
double seconds_per_head(const kernels::KernelTable& table, const kernels::Matrix& matrix, int64_t rows,
                        ThreadPool& pool) {
  const std::vector<float> hidden(static_cast<size_t>(rows * kWidth), 0.25F), norm(kWidth, 1.0F);
  std::vector<float> logits(static_cast<size_t>(rows * kVocabulary));
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, kernels::Numerics::reference};
  kernels::HeadArgs args;
  args.num_rows = rows;
  args.d_model = kWidth;
  args.norm_eps = 1e-6F;
  args.hidden = hidden.data();
  args.norm_weight = norm.data();
  args.head = matrix;
  args.logits = logits.data();
  double best = 1e30;
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    table.head(ctx, args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

bool run_heads(ThreadPool& pool, int threads) {
  for (const auto format : {kernels::WeightFormat::bf16, kernels::WeightFormat::fp8_block32}) {
    Head head;
    if (!make_head(format, head)) return false;
    const auto bytes = kernels::packed_data_bytes(format, kVocabulary, kWidth) +
                       kernels::packed_scale_bytes(format, kVocabulary, kWidth);
    const auto* table = kernels::select_kernels();
    for (const int64_t rows : {1, 8}) {
      const double seconds = seconds_per_head(*table, head.matrix, rows, pool);
      fmt::print("head,{},{},{},{},{},{},{:.0f},{:.2f},{:.2f}\n", table->name,
                 format == kernels::WeightFormat::bf16 ? "bf16" : "fp8", kVocabulary, kWidth, rows, threads,
                 seconds * 1e6, static_cast<double>(bytes) / seconds / 1e9,
                 2e-9 * static_cast<double>(rows * kVocabulary * kWidth) / seconds);
    }
  }
  return true;
}

int run(int threads, bool heads_only) {
  ThreadPool pool(threads);
  const ScopedFlushToZero flush;
  fmt::print("operator,tier,weights,out,in,rows,threads,us,weight_gb_per_s,gflop_per_s\n");
  if (!run_heads(pool, threads)) return 6;
  if (heads_only) return 0;
  for (const auto& [format, name] : kFormats) {
    const auto weights = make_weights(format);
    if (weights.matrices.empty()) return 6;
    const auto bytes = kernels::packed_data_bytes(format, kMatrixRows, kMatrixCols) +
                       kernels::packed_scale_bytes(format, kMatrixRows, kMatrixCols);
    for (const auto* table : kernels::available_kernels()) {
      for (const int64_t rows : {1, 4, 32}) {
        const double seconds = seconds_per_product(*table, weights, rows, pool);
        fmt::print("linear,{},{},{},{},{},{},{:.0f},{:.2f},{:.2f}\n", table->name, name, kMatrixRows,
                   kMatrixCols, rows, threads, seconds * 1e6, static_cast<double>(bytes) / seconds / 1e9,
                   2e-9 * static_cast<double>(rows * kMatrixRows * kMatrixCols) / seconds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace rorqual

int main(int argc, char** argv) {
  const bool heads_only = argc > 1 && std::string_view(argv[1]) == "head";
  const int at = heads_only ? 2 : 1;
  const int threads = argc > at ? std::atoi(argv[at]) : 0;
  return rorqual::run(threads > 0 ? threads : rorqual::default_compute_threads(rorqual::cpu_info()),
                      heads_only);
}
