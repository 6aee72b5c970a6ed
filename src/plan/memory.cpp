// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "kernels/matrix.h"
#include "model/cache.h"
#include "model/manifest.h"
#include "plan/memory_step.h"
#include "plan/release.h"

namespace rorqual::plan {
namespace {

using kernels::WeightFormat;
using model::ManifestEntry;
using model::TensorGroup;
using tensor::DType;

constexpr int64_t kAlign_bytes = 64;  // pieces of a section (model/weights.cpp)
constexpr int64_t kSmallPage_bytes = 4096, kHugePage_bytes = int64_t{2} << 20;  // tensor/buffer.cpp

// Memory beside weights, caches and step buffers, measured with `scripts/plan_accuracy.py` on small models.
constexpr int64_t kProgram_bytes = int64_t{11} << 20;  // code, allocator, HTTP threads
constexpr int64_t kThread_bytes = int64_t{1} << 20;    // stack, staging remains, per compute thread
constexpr int64_t kTokenizerToken_bytes = 220;         // per entry of the vocabulary, with merges
constexpr int64_t kTensorInfo_bytes = 420;             // per tensor of the list, names and index included
constexpr int64_t kSamplerToken_bytes = 24;            // sorted copies of one row of logits

int64_t align_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t aligned(int64_t bytes) {
  return align_up(bytes, kAlign_bytes);
}

int64_t pages(int64_t bytes) {
  return align_up(bytes, bytes >= kHugePage_bytes ? kHugePage_bytes : kSmallPage_bytes);
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::fp8_block32:
      return "fp8";
    case WeightFormat::mxfp4:
      return "mxfp4";
  }
  return "";
}

PartKind kind_of(TensorGroup group) {
  switch (group) {
    case TensorGroup::embedding:
      return PartKind::embedding;
    case TensorGroup::head:
      return PartKind::head;
    case TensorGroup::norms:
    case TensorGroup::attention:
    case TensorGroup::compressor:
    case TensorGroup::indexer:
      return PartKind::attention;
    case TensorGroup::router:
    case TensorGroup::hyper_connections:
    case TensorGroup::engram_mix:
      return PartKind::mixing;
    case TensorGroup::routed_experts:
      return PartKind::experts;
    case TensorGroup::shared_experts:
      return PartKind::shared_experts;
    case TensorGroup::engram_tables:
      return PartKind::engram_tables;
    case TensorGroup::draft:
      return PartKind::drafts;
    case TensorGroup::vision:
      return PartKind::vision;
  }
  return PartKind::work;
}

bool ends_with(const std::string& name, std::string_view end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/// How model/weights.cpp holds a tensor.
enum class Holding : uint8_t { matrix, scale, vector, raw };

Holding holding_of(const ManifestEntry& entry) {
  if (entry.group == TensorGroup::engram_tables || entry.group == TensorGroup::embedding ||
      ends_with(entry.name, "markov_head.embed.weight")) {
    return Holding::raw;
  }
  if (ends_with(entry.name, ".scale")) return Holding::scale;
  if (entry.shape.size() < 2 || ends_with(entry.name, "q_weight") || ends_with(entry.name, "k_weight")) {
    return Holding::vector;
  }
  return Holding::matrix;
}

WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return WeightFormat::bf16;
    case DType::f8_e4m3:
      return WeightFormat::fp8_block32;
    case DType::i8:
      return WeightFormat::mxfp4;
    default:
      return WeightFormat::f32;
  }
}

/// Adds tensors up into parts.
class Weigher {
 public:
  Weigher(const model::Config& config, const MemorySettings& settings)
      : config_(config), settings_(settings) {
    sections_.resize(static_cast<size_t>(config.num_hidden_layers + config.num_stages() + 1));
  }

  void add(const ReleaseTensor& tensor);
  std::vector<Part> finish();

 private:
  Part& part(PartKind kind, const char* format) {
    for (Part& known : parts_) {
      if (known.kind == kind && known.format == format) return known;
    }
    Part fresh;
    fresh.kind = kind;
    fresh.format = format;
    parts_.push_back(fresh);
    return parts_.back();
  }

  /// Share of `tensor` that one decoded token reads.
  double use_of(const ReleaseTensor& tensor) const {
    if (tensor.entry.group == TensorGroup::draft) return 0;  // a draft pass is not part of a decoded token
    if (tensor.entry.group != TensorGroup::routed_experts) return 1;
    return static_cast<double>(config_.num_active_experts(tensor.layer)) /
           static_cast<double>(config_.num_experts(tensor.layer));
  }

  void add_matrix(const ReleaseTensor& tensor);
  void add_raw(const ReleaseTensor& tensor);

  const model::Config& config_;
  const MemorySettings& settings_;
  std::vector<Part> parts_;
  std::vector<int64_t> sections_;  // bytes of each buffer of model/weights.cpp
};

void Weigher::add_matrix(const ReleaseTensor& tensor) {
  const ManifestEntry& entry = tensor.entry;
  WeightFormat format = format_of(entry.dtype);
  if (entry.group == TensorGroup::head && settings_.head_fp8) format = WeightFormat::fp8_block32;
  const int64_t rows = entry.shape[0], cols = entry.shape[1] * (entry.dtype == DType::i8 ? 2 : 1);
  const int64_t bytes = tensor.count * (aligned(kernels::packed_data_bytes(format, rows, cols)) +
                                        aligned(kernels::packed_scale_bytes(format, rows, cols)));
  Part& to = part(kind_of(entry.group), format_name(format));
  to.bytes += bytes;
  to.bytes_per_token += use_of(tensor) * static_cast<double>(bytes);
  to.madds_per_token += use_of(tensor) * static_cast<double>(tensor.count * rows * cols);
  sections_[static_cast<size_t>(tensor.section)] += bytes;
}

void Weigher::add_raw(const ReleaseTensor& tensor) {
  const ManifestEntry& entry = tensor.entry;
  const int64_t bytes = entry.size_bytes(), row_bytes = bytes / entry.shape[0];
  const bool is_table = entry.group == TensorGroup::engram_tables;
  Part& to = part(kind_of(entry.group), is_table ? "" : "bf16");
  to.bytes += aligned(bytes);
  if (is_table) {
    to.bytes_per_token += static_cast<double>(config_.engram_columns() * row_bytes);
    to.random_reads += config_.engram_columns();
    if (settings_.engram_on_disk) {
      to.tier = Tier::disk;
      return;
    }
  } else if (entry.group == TensorGroup::embedding) {
    to.bytes_per_token += static_cast<double>(row_bytes);
  }
  sections_[static_cast<size_t>(tensor.section)] += aligned(bytes);
}

void Weigher::add(const ReleaseTensor& tensor) {
  const ManifestEntry& entry = tensor.entry;
  if (entry.group == TensorGroup::vision) return;  // this version is text only
  if (entry.group == TensorGroup::draft && !settings_.with_drafts) return;
  switch (holding_of(entry)) {
    case Holding::scale:
      return;  // counted with its matrix
    case Holding::matrix:
      return add_matrix(tensor);
    case Holding::raw:
      return add_raw(tensor);
    case Holding::vector: {
      int64_t count = tensor.count;
      for (const int64_t size : entry.shape) count *= size;
      Part& to = part(kind_of(entry.group), "f32");
      to.bytes += aligned(count * 4);
      if (use_of(tensor) > 0) to.bytes_per_token += static_cast<double>(count * 4);
      sections_[static_cast<size_t>(tensor.section)] += aligned(count * 4);
      return;
    }
  }
}

std::vector<Part> Weigher::finish() {
  Part rounding;  // the last page of every section
  rounding.kind = PartKind::program;
  for (const int64_t bytes : sections_) rounding.bytes += pages(bytes) - bytes;
  parts_.push_back(rounding);
  return std::move(parts_);
}

Part plain(PartKind kind, int64_t bytes) {
  Part part;
  part.kind = kind;
  part.bytes = bytes;
  return part;
}

/// As model::Model sizes its pools: pages of running sequences, then those of the prefix cache.
void add_caches(MemoryPlan& plan) {
  const MemorySettings& settings = plan.settings;
  const model::CacheLayout layout =
      model::make_cache_layout(plan.config, settings.numerics, settings.with_drafts);
  const int64_t blocks =
      layout.running_blocks(settings.kv_cache_bytes, settings.max_model_len, settings.max_num_seqs);
  const int64_t windows = layout.promised_windows(settings.max_num_seqs, settings.max_num_batched_tokens);
  plan.kv_bytes_per_token = static_cast<double>(layout.block_bytes) / model::kPageTokens;
  plan.kv_tokens = blocks * model::kPageTokens;
  plan.parts.push_back(plain(PartKind::kv_cache, pages(layout.block_bytes * blocks)));
  // Tables of a sequence: per block the addresses in each source, the page's number, the window page's number
  // and address.
  const int64_t pointers = 2 * 8 * static_cast<int64_t>(layout.sources.size()) + 4 + 12;
  const int64_t history = plan.config.engram_layer_ids.empty() ? 0 : 4 * settings.max_model_len;
  const int64_t sequence = pages(layout.pending_floats * 4) + history + 8 * settings.max_model_len;
  plan.parts.push_back(plain(PartKind::windows, pages(windows * layout.window_page_bytes()) +
                                                    settings.max_num_seqs * sequence + blocks * pointers));
  if (layout.block_bytes == 0) plan.settings.prefix_cache_bytes = 0;  // windows alone: nothing to keep
  if (settings.prefix_cache_bytes == 0) return;
  const model::PrefixPages kept = model::prefix_pages(layout, settings.prefix_cache_bytes);
  const auto more = [](int64_t running, int64_t extra, int64_t page_bytes) {
    return pages((running + extra) * page_bytes) - pages(running * page_bytes);
  };
  plan.parts.push_back(
      plain(PartKind::prefix_cache, more(blocks, kept.blocks, layout.block_bytes) +
                                        more(windows, kept.windows, layout.window_page_bytes())));
}

void add_work(MemoryPlan& plan) {
  const MemorySettings& s = plan.settings;
  plan.parts.push_back(plain(PartKind::work, step_scratch_bytes(plan.config, s)));
  const int64_t rows = std::max(s.max_logit_rows, s.max_num_seqs);
  plan.parts.push_back(plain(PartKind::logits, pages(rows * plan.config.vocab_size * 4) +
                                                   kSamplerToken_bytes * plan.config.vocab_size));
}

/// `loaded_bytes` of the checkpoint are read by this version.
void add_program(MemoryPlan& plan, int64_t num_tensors, int64_t loaded_bytes) {
  const int64_t embedded = plan.settings.is_embedded ? loaded_bytes : 0;
  const int64_t map = plan.config.engram_layer_ids.empty() ? 0 : 4 * plan.config.vocab_size;
  plan.parts.push_back(plain(PartKind::program, kProgram_bytes + kThread_bytes * plan.settings.threads +
                                                    kTokenizerToken_bytes * plan.config.vocab_size +
                                                    kTensorInfo_bytes * num_tensors + map + embedded));
}

}  // namespace

std::string_view part_name(PartKind kind) {
  constexpr std::array<std::string_view, kPartKinds> kNames = {
      "routed experts", "Engram tables", "shared experts", "attention",    "routers and mixing",
      "embedding",      "head",          "draft stages",   "vision",       "KV cache",
      "windows",        "prefix cache",  "swap space",     "work buffers", "logits",
      "program"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view tier_name(Tier tier) {
  return tier == Tier::vram ? "VRAM" : tier == Tier::ram ? "RAM" : "disk";
}

int64_t MemoryPlan::bytes(Tier tier) const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.tier == tier ? part.bytes : 0;
  return total;
}

int64_t MemoryPlan::bytes(PartKind kind) const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.kind == kind ? part.bytes : 0;
  return total;
}

MemoryPlan plan_memory(const model::Config& config, const MemorySettings& settings) {
  RORQUAL_CHECK(settings.threads >= 1 && settings.max_num_seqs >= 1 && settings.max_model_len >= 1);
  MemoryPlan plan;
  plan.config = config;
  plan.settings = settings;
  int64_t num_tensors = 0, loaded_bytes = 0;
  Weigher weigher(plan.config, plan.settings);
  for (const ReleaseTensor& tensor : tensor_kinds(config)) {
    weigher.add(tensor);
    num_tensors += tensor.count;
    const model::TensorGroup group = tensor.entry.group;
    const bool is_loaded =
        group != TensorGroup::vision && (group != TensorGroup::draft || settings.with_drafts);
    if (is_loaded) loaded_bytes += tensor.count * tensor.entry.size_bytes();
  }
  plan.parts = weigher.finish();
  add_caches(plan);
  if (settings.swap_bytes > 0) plan.parts.push_back(plain(PartKind::swap_space, settings.swap_bytes));
  add_work(plan);
  add_program(plan, num_tensors, loaded_bytes);
  std::stable_sort(plan.parts.begin(), plan.parts.end(),
                   [](const Part& a, const Part& b) { return a.kind < b.kind; });
  return plan;
}

}  // namespace rorqual::plan
