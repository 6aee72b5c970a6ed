// SPDX-License-Identifier: Apache-2.0
// The model's weights in the form that kernels read: tensors of a TensorSource bound to fields, repacked into
// panels. One copy exists: a tensor is read in chunks, packed, and its file bytes are dropped.
// docs/model.md#tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "format/tensor_source.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/switches.h"
#include "tensor/buffer.h"
#include "tensor/collective.h"

namespace rorqual::model {

/// An Engram table, in host memory or left on disk and read row by row.
struct EngramTable {
  int64_t row_begin = 0, rows = 0, head_dim = 0;  // rows [row_begin, row_begin + rows) of the whole table
  const uint8_t* values = nullptr;                // E4M3 [rows, head_dim], null when on disk
  const uint8_t* scales = nullptr;                // E8M0 [rows, head_dim/32], null when on disk
  const format::TensorSource* source = nullptr;
  const format::TensorInfo* values_info = nullptr;
  const format::TensorInfo* scales_info = nullptr;

  int64_t scale_bytes() const { return head_dim / 32; }

  tensor::MemoryKind memory() const {
    return values != nullptr ? tensor::MemoryKind::host : tensor::MemoryKind::disk;
  }
};

struct EngramWeights {
  EngramTable table;
  kernels::Matrix wkv;
  const float* query_weight = nullptr;
  const float* key_weight = nullptr;
};

/// One backbone layer or draft stage.
struct LayerWeights {
  LayerRole role = LayerRole::window_only;
  int64_t ratio = 0;
  kernels::AttentionWeights attention;
  std::optional<kernels::CompressorWeights> compressor;
  std::optional<kernels::IndexWeights> indexer;
  std::optional<EngramWeights> engram;
  const float* attn_norm = nullptr;
  const float* ffn_norm = nullptr;
  kernels::HyperWeights hyper_attn, hyper_ffn;
  kernels::MoeWeights moe;
  std::vector<kernels::ExpertWeights> experts;
};

struct DraftWeights {
  std::vector<LayerWeights> stages;
  kernels::Matrix main_proj;
  const float* main_norm = nullptr;
  const float* norm = nullptr;
  const uint16_t* markov_embed = nullptr;  // bf16 [V, rank]
  kernels::Matrix markov_head;             // bf16 [V, rank]
  kernels::Matrix confidence;              // bf16 [1, D + rank]
};

struct Weights {
  const uint16_t* embed = nullptr;  // bf16 [V, D]
  kernels::Matrix head;             // bf16, or fp8 with --lm-head fp8, [V, D]
  const float* norm = nullptr;
  std::vector<LayerWeights> layers;
  std::optional<DraftWeights> draft;
  std::vector<tensor::Buffer> buffers;  // own the bytes of everything above

  int64_t host_bytes() const;
};

struct WeightOptions {
  bool engram_on_disk = false;
  bool with_drafts = true;
  HeadFormat head = HeadFormat::bf16;
  tensor::Shard shard;  // this rank reads its own part only (manifest.h: shard_part)
};

/// Called with (bytes done, bytes in all) from any thread, not more than one at a time.
using LoadProgress = std::function<void(int64_t, int64_t)>;

/// Reads and packs all text-model weights. `source` must have passed check_manifest(); it must outlive the
/// result when tables stay on disk. Errors: io, corrupt_data (E8M0 byte 255, E4M3 NaN), infinity or NaN in a
/// head that becomes FP8), out_of_memory, unsupported. Peak memory: the packed weights plus one chunk of 8
/// MiB per thread.
Result<Weights> load_weights(const format::TensorSource& source, const Config& config,
                             const WeightOptions& options, ThreadPool& pool, const LoadProgress& progress);

}  // namespace rorqual::model
