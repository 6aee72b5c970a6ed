// SPDX-License-Identifier: Apache-2.0
// What a model needs, part by part: bytes as this program allocates them, bytes and multiply-adds of one
// decoded token. From a Config alone, no weight is read. docs/plan.md#memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "model/config.h"

namespace rorqual::plan {

/// Rows of the memory table, in print order.
enum class PartKind : uint8_t {
  experts,         // routed experts
  engram_tables,   // n-gram rows, a few read per token
  shared_experts,  // one per layer
  attention,       // projections, compressors, indexers, norms
  mixing,          // routers, hyper-connections, Engram projections
  embedding,       // a row read per token
  head,
  drafts,        // DSpark stages, whole
  vision,        // not loaded by this version
  kv_cache,      // compressed entries and index keys, all sequences full
  windows,       // sliding windows, open rows and tables of all sequences
  prefix_cache,  // pages kept of past requests
  swap_space,    // images of preempted sequences: its limit, which they may fill
  work,          // activations and kernel scratch of one step
  logits,        // rows of logits of one step
  program,       // code, tokenizer, tensor list, threads, HTTP buffers
};
inline constexpr int kPartKinds = 16;

/// "routed experts", "KV cache", …
std::string_view part_name(PartKind kind);

enum class Tier : uint8_t { vram, ram, disk };
std::string_view tier_name(Tier tier);  // "VRAM", "RAM", "disk"

/// One kind in one number format on one tier. A kind may have several parts: attention has FP8 projections
/// and BF16 compressors; placement splits experts over tiers. Figures are of this part only, so sums over
/// parts are the whole.
struct Part {
  PartKind kind = PartKind::work;
  std::string format;  // "mxfp4", "fp8", "bf16", "f32": what KernelRate is asked with; "" = not weights
  Tier tier = Tier::ram;
  int64_t bytes = 0;           // allocated: padding of panels and pages included
  double bytes_per_token = 0;  // read for one decoded token alone in its step
  double madds_per_token = 0;  // multiply-adds with these weights per row
  int64_t random_reads = 0;  // separate rows gathered per token (Engram: two per table row, codes and scales)
  double share = 1;          // of all bytes of this kind and format
};

/// What is asked for. Zero and empty mean what `serve` would choose.
struct MemorySettings {
  kernels::Numerics numerics = kernels::Numerics::reference;
  int64_t max_model_len = 32768;
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 512;
  int64_t max_logit_rows = 256;
  int threads = 1;
  int64_t prefix_cache_bytes = 0;  // half for each kind of page
  int64_t kv_cache_bytes = 0;      // of running requests; 0 = enough for max_model_len tokens in each
  int64_t swap_bytes = 0;          // most memory of preempted requests
  bool with_drafts = false;
  bool engram_on_disk = false;
  bool is_embedded = false;  // the model inside the program: its file pages are resident too
  bool head_fp8 = false;     // the switch of docs/switches.md
};

struct MemoryPlan {
  model::Config config;
  MemorySettings settings;
  std::vector<Part> parts;  // in the order of PartKind
  double kv_bytes_per_token = 0;
  int64_t kv_tokens = 0;  // that the cache holds, all sequences together

  int64_t bytes(Tier tier) const;
  int64_t bytes(PartKind kind) const;
};

/// The need of one process on this version: everything in RAM, Engram tables in RAM or left on disk. Requires
/// a valid config. Fast: one walk over the layers, no list of tensors.
MemoryPlan plan_memory(const model::Config& config, const MemorySettings& settings);

}  // namespace rorqual::plan
