// SPDX-License-Identifier: Apache-2.0
#include "model/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace rorqual::model {
namespace {

using tensor::DType;

constexpr int64_t kBlock = 32;  // side of an FP8 scale block, length of an FP4 scale group

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Appends entries whose names share a prefix.
class Builder {
 public:
  explicit Builder(const Config& config) : config_(config) {}

  std::vector<ManifestEntry> build();

 private:
  struct Place {
    TensorGroup group;
    ShardRule shard = ShardRule::replicated;
    int64_t multiple = kBlock;
    int64_t expert = -1;
  };

  void add(std::string name, DType dtype, std::vector<int64_t> shape, Place place) {
    entries_.push_back({prefix_ + std::move(name), dtype, std::move(shape), place.group, place.shard,
                        place.multiple, place.expert});
  }

  /// Weight and scale of a dense FP8 matrix.
  void add_fp8(const std::string& name, int64_t rows, int64_t columns, Place place) {
    add(name + ".weight", DType::f8_e4m3, {rows, columns}, place);
    add(name + ".scale", DType::f8_e8m0, {ceil_div(rows, kBlock), ceil_div(columns, kBlock)}, place);
  }

  /// Weight and scale of an expert's FP4 matrix: two values per byte, one scale per row and 32 columns.
  void add_fp4(const std::string& name, int64_t rows, int64_t columns, Place place) {
    add(name + ".weight", DType::i8, {rows, columns / 2}, place);
    add(name + ".scale", DType::f8_e8m0, {rows, ceil_div(columns, kBlock)}, place);
  }

  /// Draft stages count as one group, whatever the tensor is.
  TensorGroup group(TensorGroup wanted) const { return is_draft_ ? TensorGroup::draft : wanted; }

  void add_globals();
  void add_block(int64_t layer);
  void add_attention(int64_t layer);
  void add_sources(int64_t layer);
  void add_moe(int64_t layer);
  void add_hyper_connections();
  void add_engram(int64_t layer);
  void add_stage(int64_t stage);
  void add_vision();

  const Config& config_;
  std::vector<ManifestEntry> entries_;
  std::string prefix_;
  bool is_draft_ = false;
};

void Builder::add_globals() {
  const int64_t width = config_.hidden_size;
  add("embed.weight", DType::bf16, {config_.vocab_size, width}, {TensorGroup::embedding, ShardRule::rows});
  add("head.weight", DType::bf16, {config_.vocab_size, width}, {TensorGroup::head, ShardRule::rows});
  add("norm.weight", DType::bf16, {width}, {TensorGroup::norms});
}

void Builder::add_attention(int64_t layer) {
  const int64_t width = config_.hidden_size;
  const int64_t attended = config_.num_attention_heads * config_.head_dim;
  const Place whole = {group(TensorGroup::attention)};
  // A rank holds whole output groups: their heads' queries, sinks and both halves of the output projection.
  const int64_t group_heads = config_.num_attention_heads / config_.o_groups;
  const auto by_group = [&](ShardRule rule, int64_t rows_per_group) {
    return Place{group(TensorGroup::attention), rule, rows_per_group};
  };
  add_fp8("attn.wq_a", config_.q_lora_rank, width, whole);
  add("attn.q_norm.weight", DType::bf16, {config_.q_lora_rank}, {group(TensorGroup::norms)});
  add_fp8("attn.wq_b", attended, config_.q_lora_rank,
          by_group(ShardRule::rows, group_heads * config_.head_dim));
  add_fp8("attn.wkv", config_.head_dim, width, whole);
  add("attn.kv_norm.weight", DType::bf16, {config_.head_dim}, {group(TensorGroup::norms)});
  add_fp8("attn.wo_a", config_.o_groups * config_.o_lora_rank, attended / config_.o_groups,
          by_group(ShardRule::rows, config_.o_lora_rank));
  add_fp8("attn.wo_b", width, config_.o_groups * config_.o_lora_rank,
          by_group(ShardRule::columns, config_.o_lora_rank));
  add("attn.attn_sink", DType::f32, {config_.num_attention_heads}, by_group(ShardRule::rows, group_heads));
  if (!is_draft_) add_sources(layer);
}

void Builder::add_sources(int64_t layer) {
  const LayerRole role = config_.role(layer);
  const int64_t width = config_.hidden_size;
  if (role == LayerRole::full) {
    const Place place = {TensorGroup::compressor};
    add("attn.compressor.wkv.weight", DType::bf16, {config_.head_dim, width}, place);
    if (config_.ratio(layer) == 2)
      add("attn.compressor.wgate.weight", DType::bf16, {config_.head_dim, width}, place);
    add("attn.compressor.norm.weight", DType::bf16, {config_.head_dim}, place);
    add("attn.indexer.wk.weight", DType::bf16, {config_.index_head_dim, config_.head_dim},
        {TensorGroup::indexer});
    add("attn.indexer.k_norm.weight", DType::bf16, {config_.index_head_dim}, {TensorGroup::indexer});
  }
  if (role == LayerRole::full || role == LayerRole::reindex) {
    // Selection needs the scores of all index heads in one place, so every rank holds the whole indexer.
    add_fp8("attn.indexer.wq_b", config_.index_n_heads * config_.index_head_dim, config_.q_lora_rank,
            {TensorGroup::indexer});
    add("attn.indexer.weights_proj.weight", DType::bf16, {config_.index_n_heads, width},
        {TensorGroup::indexer});
  }
}

void Builder::add_moe(int64_t layer) {
  const int64_t width = config_.hidden_size;
  const int64_t inner = config_.moe_intermediate_size;
  const int64_t num_experts = config_.num_experts(layer);
  const Place router = {group(TensorGroup::router)};
  add("ffn.gate.weight", DType::bf16, {num_experts, width}, router);
  add("ffn.gate.bias", DType::f32, {num_experts}, router);
  if (config_.vision.num_hidden_layers > 0) add("ffn.gate.bias_vl", DType::f32, {num_experts}, router);
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const Place place = {group(TensorGroup::routed_experts), ShardRule::by_expert, 1, expert};
    const std::string name = fmt::format("ffn.experts.{}.", expert);
    add_fp4(name + "w1", inner, width, place);
    add_fp4(name + "w2", width, inner, place);
    add_fp4(name + "w3", inner, width, place);
  }
  const TensorGroup shared = group(TensorGroup::shared_experts);
  add_fp8("ffn.shared_experts.w1", inner, width, {shared, ShardRule::rows});
  add_fp8("ffn.shared_experts.w2", width, inner, {shared, ShardRule::columns});
  add_fp8("ffn.shared_experts.w3", inner, width, {shared, ShardRule::rows});
}

void Builder::add_hyper_connections() {
  const int64_t streams = config_.hc_mult;
  const int64_t mixes = (2 + streams) * streams;  // pre, post and the stream-to-stream matrix
  const Place place = {group(TensorGroup::hyper_connections)};
  for (const char* sublayer : {"attn", "ffn"}) {
    add(fmt::format("hc_{}_fn", sublayer), DType::f32, {mixes, streams * config_.hidden_size}, place);
    add(fmt::format("hc_{}_base", sublayer), DType::f32, {mixes}, place);
    add(fmt::format("hc_{}_scale", sublayer), DType::f32, {3}, place);
  }
}

void Builder::add_engram(int64_t layer) {
  const int64_t slot = config_.engram_slot(layer);
  if (slot < 0) return;
  const int64_t rows = config_.engram_num_embeddings[static_cast<size_t>(slot)];
  const int64_t width = config_.hidden_size;
  const Place table = {TensorGroup::engram_tables, ShardRule::rows};
  const Place mix = {TensorGroup::engram_mix};
  add("engram.embed.weight", DType::f8_e4m3, {rows, config_.engram_head_dim}, table);
  add("engram.embed.scale", DType::f8_e8m0, {rows, config_.engram_head_dim / kBlock}, table);
  add_fp8("engram.wkv", (config_.hc_mult + 1) * width, config_.engram_columns() * config_.engram_head_dim,
          mix);
  add("engram.q_weight", DType::bf16, {config_.hc_mult, width}, mix);
  add("engram.k_weight", DType::bf16, {config_.hc_mult, width}, mix);
}

void Builder::add_block(int64_t layer) {
  const int64_t width = config_.hidden_size;
  add_attention(layer);
  add("attn_norm.weight", DType::bf16, {width}, {group(TensorGroup::norms)});
  add("ffn_norm.weight", DType::bf16, {width}, {group(TensorGroup::norms)});
  add_hyper_connections();
  add_moe(layer);
}

void Builder::add_stage(int64_t stage) {
  const int64_t width = config_.hidden_size;
  const Place place = {TensorGroup::draft};
  add_block(config_.num_hidden_layers + stage);
  if (stage == 0) {
    add_fp8("main_proj", width, static_cast<int64_t>(config_.dspark_target_layer_ids.size()) * width, place);
    add("main_norm.weight", DType::bf16, {width}, place);
  }
  if (stage + 1 == config_.num_stages()) {
    const int64_t rank = config_.dspark_markov_rank;
    add("norm.weight", DType::bf16, {width}, place);
    add("markov_head.embed.weight", DType::bf16, {config_.vocab_size, rank},
        {TensorGroup::draft, ShardRule::rows});
    add("markov_head.head.weight", DType::bf16, {config_.vocab_size, rank},
        {TensorGroup::draft, ShardRule::rows});
    add("confidence_head.proj.weight", DType::bf16, {1, width + rank}, place);
  }
}

void Builder::add_vision() {
  const Config::Vision& vision = config_.vision;
  const Place place = {TensorGroup::vision};
  const int64_t text = config_.hidden_size;
  const int64_t width = vision.hidden_size;
  const auto add_bf16 = [&](std::string name, std::vector<int64_t> shape) {
    add(std::move(name), DType::bf16, std::move(shape), place);
  };
  for (const char* name : {"image_start", "image_end", "image_newline"}) add_bf16(name, {text});
  add_bf16("vision.patch_embed.proj.weight", {width, 3 * vision.patch_size * vision.patch_size});
  add_bf16("vision.patch_embed.proj.bias", {width});
  for (int64_t block = 0; block < vision.num_hidden_layers; ++block) {
    const std::string name = fmt::format("vision.blocks.{}.", block);
    add_bf16(name + "attn.wqkv.weight", {3 * width, width});
    add_bf16(name + "attn.wqkv.bias", {3 * width});
    add_bf16(name + "attn.wo.weight", {width, width});
    add_bf16(name + "attn.wo.bias", {width});
    add_bf16(name + "mlp.w1.weight", {2 * vision.intermediate_size, width});
    add_bf16(name + "mlp.w2.weight", {width, vision.intermediate_size});
    add_bf16(name + "norm1.weight", {width});
    add_bf16(name + "norm2.weight", {width});
  }
  add_bf16("vision.norm.weight", {width});
  add_bf16("aligner.w1.weight", {text, width * vision.downsample_ratio * vision.downsample_ratio});
  add_bf16("aligner.w1.bias", {text});
  add_bf16("aligner.w2.weight", {text, text});
  add_bf16("aligner.w2.bias", {text});
}

std::vector<ManifestEntry> Builder::build() {
  add_globals();
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    prefix_ = fmt::format("layers.{}.", layer);
    add_block(layer);
    add_engram(layer);
  }
  is_draft_ = true;
  for (int64_t stage = 0; stage < config_.num_stages(); ++stage) {
    prefix_ = fmt::format("mtp.{}.", stage);
    add_stage(stage);
  }
  is_draft_ = false;
  prefix_.clear();
  if (config_.vision.num_hidden_layers > 0) add_vision();
  std::sort(entries_.begin(), entries_.end(),
            [](const ManifestEntry& a, const ManifestEntry& b) { return a.name < b.name; });
  return std::move(entries_);
}

std::string described(DType dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", tensor::dtype_name(dtype), fmt::join(shape, ", "));
}

/// Differences between two lists sorted by name, as sentences; counting goes on after the first few.
class Differences {
 public:
  void add(std::string text) {
    constexpr size_t kMaxShown = 10;
    if (shown_.size() < kMaxShown) shown_.push_back(std::move(text));
    ++count_;
  }

  bool empty() const { return count_ == 0; }

  std::string text() const {
    std::string all = fmt::format("{}", fmt::join(shown_, "; "));
    if (count_ > shown_.size()) all += fmt::format("; and {} more", count_ - shown_.size());
    return all;
  }

 private:
  std::vector<std::string> shown_;
  size_t count_ = 0;
};

}  // namespace

const char* group_name(TensorGroup group) {
  switch (group) {
    case TensorGroup::embedding:
      return "embedding";
    case TensorGroup::head:
      return "head";
    case TensorGroup::norms:
      return "norms";
    case TensorGroup::attention:
      return "attention";
    case TensorGroup::compressor:
      return "compressor";
    case TensorGroup::indexer:
      return "indexer";
    case TensorGroup::router:
      return "router";
    case TensorGroup::routed_experts:
      return "routed experts";
    case TensorGroup::shared_experts:
      return "shared experts";
    case TensorGroup::hyper_connections:
      return "hyper-connections";
    case TensorGroup::engram_tables:
      return "engram tables";
    case TensorGroup::engram_mix:
      return "engram mix";
    case TensorGroup::draft:
      return "draft";
    case TensorGroup::vision:
      return "vision";
  }
  return "";
}

int64_t ManifestEntry::size_bytes() const {
  int64_t bytes = tensor::dtype_bytes(dtype);
  for (const int64_t extent : shape) bytes *= extent;  // bounded by the ranges of check_config
  return bytes;
}

std::vector<ManifestEntry> manifest(const Config& config) {
  return Builder(config).build();
}

Range shard_range(int64_t count, int64_t multiple, tensor::Shard shard) {
  RORQUAL_CHECK(count >= 0 && multiple >= 1 && shard.world >= 1 && shard.rank >= 0 &&
                shard.rank < shard.world);
  const int64_t units = ceil_div(count, multiple);  // the last one may be smaller
  const int64_t share = units / shard.world;
  const int64_t extra = units % shard.world;
  const int64_t begin = shard.rank * share + std::min<int64_t>(shard.rank, extra);
  const int64_t end = begin + share + (shard.rank < extra ? 1 : 0);
  return {std::min(count, begin * multiple), std::min(count, end * multiple)};
}

Part shard_part(const ManifestEntry& entry, tensor::Shard shard) {
  Part part;
  part.rows.end = entry.shape.empty() ? 1 : entry.shape[0];
  part.columns.end = entry.shape.size() < 2 ? 1 : entry.shape[1];
  // Scales of dense matrices are cut like their weights, one scale for 32 rows and columns.
  const bool is_scale = entry.dtype == DType::f8_e8m0 && entry.group != TensorGroup::engram_tables;
  const int64_t multiple =
      std::max<int64_t>(1, is_scale ? entry.shard_multiple / kBlock : entry.shard_multiple);
  if (entry.shard == ShardRule::rows) part.rows = shard_range(part.rows.end, multiple, shard);
  if (entry.shard == ShardRule::columns) part.columns = shard_range(part.columns.end, multiple, shard);
  return part;
}

Status check_manifest(const format::TensorSource& source, const std::vector<ManifestEntry>& expected) {
  Differences differences;
  auto found = source.tensors().begin();
  const auto end = source.tensors().end();
  for (const ManifestEntry& wanted : expected) {
    for (; found != end && found->name < wanted.name; ++found) {
      differences.add(
          fmt::format("tensor '{}' ({}) is not part of this architecture", found->name, found->file));
    }
    if (found == end || found->name != wanted.name) {
      differences.add(fmt::format("tensor '{}' is missing, expected {}", wanted.name,
                                  described(wanted.dtype, wanted.shape)));
      continue;
    }
    if (found->dtype != wanted.dtype || found->shape != wanted.shape) {
      differences.add(fmt::format("tensor '{}' ({}) is {}, config.json implies {}", found->name, found->file,
                                  described(found->dtype, found->shape),
                                  described(wanted.dtype, wanted.shape)));
    }
    ++found;
  }
  for (; found != end; ++found) {
    differences.add(
        fmt::format("tensor '{}' ({}) is not part of this architecture", found->name, found->file));
  }
  if (differences.empty()) return Ok{};
  return Error(
      Code::corrupt_data,
      fmt::format("model '{}' does not match its config.json: {}", source.name(), differences.text()),
      "checkpoint and config.json are from different revisions, or the checkpoint is not in the official "
      "format");
}

}  // namespace rorqual::model
