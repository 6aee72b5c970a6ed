// SPDX-License-Identifier: Apache-2.0
// Cache records by numerics: packed in reference numerics, plain F32 in exact numerics. One accessor for
// writers and readers, so that both agree on the layout (docs/formats.md#caches).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/operators.h"

namespace rorqual::kernels::cpu {

struct RecordCodec {
  const OperatorTable& ops;
  CacheFormat format;

  bool packed() const { return format.numerics == Numerics::reference; }

  void encode_window(const float* x, std::byte* record) const {
    if (packed()) return ops.encode_fp8(x, format.head_dim, record);
    std::memcpy(record, x, static_cast<size_t>(format.window_bytes()));
  }

  void decode_window(const std::byte* record, float* y) const {
    if (packed()) return ops.decode_fp8(record, format.head_dim, y);
    std::memcpy(y, record, static_cast<size_t>(format.window_bytes()));
  }

  void encode_compressed(const float* x, std::byte* record) const {
    if (packed()) return ops.encode_fp4_e4m3(x, format.head_dim, record);
    std::memcpy(record, x, static_cast<size_t>(format.compressed_bytes()));
  }

  void decode_compressed(const std::byte* record, float* y) const {
    if (packed()) return ops.decode_fp4_e4m3(record, format.head_dim, y);
    std::memcpy(y, record, static_cast<size_t>(format.compressed_bytes()));
  }

  void encode_index(const float* x, std::byte* record) const {
    if (packed()) return ops.encode_fp4_e8m0(x, format.index_dim, record);
    std::memcpy(record, x, static_cast<size_t>(format.index_bytes()));
  }

  void decode_index(const std::byte* record, float* y) const {
    if (packed()) return ops.decode_fp4_e8m0(record, format.index_dim, y);
    std::memcpy(y, record, static_cast<size_t>(format.index_bytes()));
  }

  /// Records of entry `entry` (docs/formats.md#caches); the page exists.
  std::byte* compressed_record(const CompressedCache& cache, int64_t entry) const {
    return cache.kv_pages[entry / cache.page_entries] +
           entry % cache.page_entries * format.compressed_bytes();
  }

  std::byte* index_record(const CompressedCache& cache, int64_t entry) const {
    return cache.index_pages[entry / cache.page_entries] + entry % cache.page_entries * format.index_bytes();
  }

  std::byte* window_record(const WindowCache& cache, int64_t position) const {
    return cache.pages[position / kWindowPageTokens - cache.first_page] + cache.offset +
           position % kWindowPageTokens * format.window_bytes();
  }
};

}  // namespace rorqual::kernels::cpu
