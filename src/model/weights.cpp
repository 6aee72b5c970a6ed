// SPDX-License-Identifier: Apache-2.0
// Two passes over one description of the model: the first measures, the second places every tensor in its
// section's buffer and lists the chunks to read. Then all chunks are read and packed in parallel.
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "model/manifest.h"
#include "num/quantise.h"

namespace rorqual::model {
namespace {

using kernels::Matrix;
using kernels::WeightFormat;

constexpr int64_t kChunk_bytes = int64_t{8} << 20;
constexpr int64_t kAlign_bytes = 64;
constexpr uint8_t kScaleNan = 255;

/// One piece of one tensor: read, check, and packed or converted by one thread.
struct Chunk {
  enum class Kind : uint8_t { matrix, bf16_to_f32, raw };
  Kind kind = Kind::raw;
  const format::TensorInfo* values = nullptr;
  const format::TensorInfo* scales = nullptr;
  int64_t values_offset = 0, values_bytes = 0;
  int64_t scales_offset = 0, scales_bytes = 0;
  // matrix
  WeightFormat source_format = WeightFormat::f32;  // in the file
  WeightFormat format = WeightFormat::f32;         // in memory: the same, or fp8 made from bf16
  int64_t rows = 0, cols = 0;                      // of this chunk, without the columns of other ranks
  int64_t row_bytes = 0, column_offset_bytes = 0;  // source rows, and where this rank's columns start in them
  int64_t scale_row_bytes = 0, scale_offset_bytes = 0;
  Matrix* matrix = nullptr;
  bool is_e4m3 = false;  // bytes are E4M3: NaN codes are refused
  bool is_e8m0 = false;  // bytes are E8M0: 255 is refused
  std::byte* dst = nullptr;
  uint8_t* dst_scales = nullptr;
};

/// Hands out aligned pieces of one buffer; in the measuring pass it only counts.
class Section {
 public:
  std::byte* take(int64_t size_bytes) {
    const int64_t at = used_;
    used_ += (size_bytes + kAlign_bytes - 1) / kAlign_bytes * kAlign_bytes;
    return base_ == nullptr ? nullptr : base_ + at;
  }

  int64_t used_bytes() const { return used_; }

  void place(std::byte* base) {
    base_ = base;
    used_ = 0;
  }

  bool is_measuring() const { return base_ == nullptr; }

 private:
  std::byte* base_ = nullptr;
  int64_t used_ = 0;
};

WeightFormat format_of(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::f32:
      return WeightFormat::f32;
    case tensor::DType::bf16:
      return WeightFormat::bf16;
    case tensor::DType::f8_e4m3:
      return WeightFormat::fp8_block32;
    case tensor::DType::i8:
      return WeightFormat::mxfp4;
    default:
      break;
  }
  RORQUAL_CHECK_NOTE(false, "dtype cannot be a matrix");
  return WeightFormat::f32;
}

class Binder {
 public:
  Binder(const format::TensorSource& source, const Config& config, const WeightOptions& options)
      : source_(source), config_(config), options_(options) {
    if (options.shard.world > 1) manifest_ = manifest(config);
  }

  /// Describes everything; called once per pass with sections in the same order.
  void bind(Weights& weights) {
    section_ = 0;
    bind_globals(weights);
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      next_section();
      bind_layer(weights.layers[static_cast<size_t>(l)], fmt::format("layers.{}.", l), l);
    }
    if (weights.draft) bind_draft(*weights.draft);
  }

  std::vector<Section>& sections() { return sections_; }

  const std::vector<Chunk>& chunks() const { return chunks_; }

  void start_placing() { section_ = 0; }

 private:
  Section& section() { return sections_[section_]; }

  void next_section() {
    ++section_;
    if (section_ == sections_.size()) sections_.emplace_back();
  }

  const format::TensorInfo& info(const std::string& name) const {
    const format::TensorInfo* found = source_.find(name);
    RORQUAL_CHECK_NOTE(found != nullptr, name.c_str());
    return *found;
  }

  /// The rows and columns of a tensor that this rank holds.
  Part part_of(const format::TensorInfo& tensor) const {
    if (options_.shard.world == 1) {
      Part whole;
      whole.rows.end = tensor.shape[0];
      whole.columns.end = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
      return whole;
    }
    const auto entry =
        std::lower_bound(manifest_.begin(), manifest_.end(), tensor.name,
                         [](const ManifestEntry& a, const std::string& name) { return a.name < name; });
    RORQUAL_CHECK_NOTE(entry != manifest_.end() && entry->name == tensor.name, tensor.name.c_str());
    return shard_part(*entry, options_.shard);
  }

  void bind_globals(Weights& weights) {
    if (sections_.empty()) sections_.emplace_back();
    weights.embed = reinterpret_cast<const uint16_t*>(raw("embed.weight"));
    weights.head = options_.head == HeadFormat::fp8
                       ? matrix(weights.head, "head.weight", WeightFormat::fp8_block32)
                       : matrix(weights.head, "head.weight");
    weights.norm = vector("norm.weight");
  }

  void bind_layer(LayerWeights& layer, const std::string& prefix, int64_t id) {
    layer.role = id < config_.num_hidden_layers ? config_.role(id) : LayerRole::window_only;
    layer.ratio = config_.ratio(id);
    bind_attention(layer, prefix + "attn.");
    layer.attn_norm = vector(prefix + "attn_norm.weight");
    layer.ffn_norm = vector(prefix + "ffn_norm.weight");
    bind_hyper(layer.hyper_attn, prefix + "hc_attn_");
    bind_hyper(layer.hyper_ffn, prefix + "hc_ffn_");
    bind_moe(layer, prefix + "ffn.", id);
    if (id < config_.num_hidden_layers && config_.engram_slot(id) >= 0) {
      if (!layer.engram) layer.engram.emplace();
      bind_engram(*layer.engram, prefix + "engram.");
    }
  }

  void bind_attention(LayerWeights& layer, const std::string& prefix) {
    kernels::AttentionWeights& w = layer.attention;
    w.wq_a = matrix(w.wq_a, prefix + "wq_a.weight");
    w.q_norm = vector(prefix + "q_norm.weight");
    w.wq_b = matrix(w.wq_b, prefix + "wq_b.weight");
    w.wkv = matrix(w.wkv, prefix + "wkv.weight");
    w.kv_norm = vector(prefix + "kv_norm.weight");
    w.wo_a = matrix(w.wo_a, prefix + "wo_a.weight");
    w.wo_b = matrix(w.wo_b, prefix + "wo_b.weight");
    w.attn_sink = vector(prefix + "attn_sink");
    if (layer.role == LayerRole::full) {
      if (!layer.compressor) layer.compressor.emplace();
      kernels::CompressorWeights& c = *layer.compressor;
      c.wkv = matrix(c.wkv, prefix + "compressor.wkv.weight");
      if (layer.ratio > 1) c.wgate = matrix(c.wgate, prefix + "compressor.wgate.weight");
      c.norm = vector(prefix + "compressor.norm.weight");
      c.index_wk = matrix(c.index_wk, prefix + "indexer.wk.weight");
      c.index_k_norm = vector(prefix + "indexer.k_norm.weight");
    }
    if (layer.role == LayerRole::full || layer.role == LayerRole::reindex) {
      if (!layer.indexer) layer.indexer.emplace();
      layer.indexer->wq_b = matrix(layer.indexer->wq_b, prefix + "indexer.wq_b.weight");
      layer.indexer->weights_proj =
          matrix(layer.indexer->weights_proj, prefix + "indexer.weights_proj.weight");
    }
  }

  void bind_hyper(kernels::HyperWeights& hyper, const std::string& prefix) {
    hyper.fn = matrix(hyper.fn, prefix + "fn");
    hyper.base = vector(prefix + "base");
    hyper.scale = vector(prefix + "scale");
  }

  void bind_expert(kernels::ExpertWeights& expert, const std::string& prefix) {
    expert.w1 = matrix(expert.w1, prefix + "w1.weight");
    expert.w3 = matrix(expert.w3, prefix + "w3.weight");
    expert.w2 = matrix(expert.w2, prefix + "w2.weight");
  }

  void bind_moe(LayerWeights& layer, const std::string& prefix, int64_t id) {
    layer.moe.gate = matrix(layer.moe.gate, prefix + "gate.weight");
    layer.moe.bias = vector(prefix + "gate.bias");
    layer.moe.bias_vl =
        source_.find(prefix + "gate.bias_vl") != nullptr ? vector(prefix + "gate.bias_vl") : nullptr;
    layer.experts.resize(static_cast<size_t>(config_.num_experts(id)));
    const Range mine = shard_range(config_.num_experts(id), 1, options_.shard);
    for (int64_t e = mine.begin; e < mine.end; ++e) {
      bind_expert(layer.experts[static_cast<size_t>(e)], fmt::format("{}experts.{}.", prefix, e));
    }
    bind_expert(layer.moe.shared, prefix + "shared_experts.");
    layer.moe.experts = layer.experts;
  }

  void bind_engram(EngramWeights& engram, const std::string& prefix) {
    EngramTable& table = engram.table;
    table.source = &source_;
    table.values_info = &info(prefix + "embed.weight");
    table.scales_info = &info(prefix + "embed.scale");
    const Range mine = part_of(*table.values_info).rows;
    table.row_begin = mine.begin;
    table.rows = mine.end - mine.begin;
    table.head_dim = table.values_info->shape[1];
    if (!options_.engram_on_disk) {
      table.values = reinterpret_cast<const uint8_t*>(raw(prefix + "embed.weight"));
      table.scales = reinterpret_cast<const uint8_t*>(raw(prefix + "embed.scale"));
    }
    engram.wkv = matrix(engram.wkv, prefix + "wkv.weight");
    engram.query_weight = vector(prefix + "q_weight");
    engram.key_weight = vector(prefix + "k_weight");
  }

  void bind_draft(DraftWeights& draft) {
    const auto last = static_cast<int64_t>(draft.stages.size()) - 1;
    for (int64_t m = 0; m <= last; ++m) {
      next_section();
      const std::string prefix = fmt::format("mtp.{}.", m);
      bind_layer(draft.stages[static_cast<size_t>(m)], prefix, config_.num_hidden_layers + m);
      if (m == 0) {
        draft.main_proj = matrix(draft.main_proj, prefix + "main_proj.weight");
        draft.main_norm = vector(prefix + "main_norm.weight");
      }
      if (m == last) {
        draft.norm = vector(prefix + "norm.weight");
        draft.markov_embed = reinterpret_cast<const uint16_t*>(raw(prefix + "markov_head.embed.weight"));
        draft.markov_head = matrix(draft.markov_head, prefix + "markov_head.head.weight");
        draft.confidence = matrix(draft.confidence, prefix + "confidence_head.proj.weight");
      }
    }
  }

  /// A 2-D tensor as panels. Returns the view; chunks fill it later and may set wide_scales through `slot`.
  Matrix matrix(Matrix& slot, const std::string& name) {
    return matrix(slot, name, format_of(info(name).dtype));
  }

  /// The same in another format than the file's: fp8 from bf16 only.
  Matrix matrix(Matrix& slot, const std::string& name, WeightFormat format) {
    const format::TensorInfo& values = info(name);
    const bool is_converted = format != format_of(values.dtype);
    RORQUAL_CHECK(!is_converted ||
                  (format == WeightFormat::fp8_block32 && values.dtype == tensor::DType::bf16));
    const Part part = part_of(values);
    RORQUAL_CHECK(!is_converted || part.rows.begin % 32 == 0);  // every rank cuts the same blocks
    Matrix view;
    view.format = format;
    view.rows = part.rows.end - part.rows.begin;
    view.cols = (part.columns.end - part.columns.begin) * (view.format == WeightFormat::mxfp4 ? 2 : 1);
    view.data = section().take(kernels::packed_data_bytes(view.format, view.rows, view.cols));
    const int64_t scale_bytes = kernels::packed_scale_bytes(view.format, view.rows, view.cols);
    if (scale_bytes > 0) view.scales = reinterpret_cast<const uint8_t*>(section().take(scale_bytes));
    if (!section().is_measuring()) {
      const bool has_scales = scale_bytes > 0 && !is_converted;
      list_matrix_chunks(values, has_scales ? scale_of(name) : nullptr, part, {&view, &slot});
    }
    return view;
  }

  const format::TensorInfo* scale_of(const std::string& weight_name) const {
    return &info(weight_name.substr(0, weight_name.size() - 6) + "scale");
  }

  struct Target {
    const Matrix* view;
    Matrix* slot;
  };

  void list_matrix_chunks(const format::TensorInfo& values, const format::TensorInfo* scales,
                          const Part& part, Target target) {
    const Matrix& view = *target.view;
    const int64_t source_cols = values.shape[1] * (view.format == WeightFormat::mxfp4 ? 2 : 1);
    const WeightFormat source_format = format_of(values.dtype);
    const int64_t row_bytes = kernels::source_row_bytes(source_format, source_cols);
    const int64_t scale_rows =
        view.format == WeightFormat::fp8_block32 ? 32 : 1;  // rows that share a scale row
    const int64_t step = std::max<int64_t>(1, kChunk_bytes / (row_bytes * 32)) * 32;
    for (int64_t row = 0; row < view.rows; row += step) {
      const int64_t source_row = part.rows.begin + row;
      Chunk chunk;
      chunk.kind = Chunk::Kind::matrix;
      chunk.values = &values;
      chunk.source_format = source_format;
      chunk.format = view.format;
      chunk.rows = std::min(step, view.rows - row);
      chunk.cols = view.cols;
      chunk.row_bytes = row_bytes;
      chunk.column_offset_bytes = part.columns.begin * tensor::dtype_bytes(values.dtype);
      chunk.values_offset = source_row * row_bytes;
      chunk.values_bytes = chunk.rows * row_bytes;
      chunk.is_e4m3 = source_format == WeightFormat::fp8_block32;
      chunk.matrix = target.slot;
      chunk.dst = const_cast<std::byte*>(view.data) + kernels::packed_data_bytes(view.format, row, view.cols);
      if (view.scales != nullptr) {
        chunk.dst_scales =
            const_cast<uint8_t*>(view.scales) + kernels::packed_scale_bytes(view.format, row, view.cols);
      }
      if (scales != nullptr) {
        chunk.scales = scales;
        chunk.scale_row_bytes = scales->shape[1];
        chunk.scale_offset_bytes = chunk.column_offset_bytes / (view.format == WeightFormat::mxfp4 ? 16 : 32);
        chunk.scales_offset = source_row / scale_rows * chunk.scale_row_bytes;
        chunk.scales_bytes = (chunk.rows + scale_rows - 1) / scale_rows * chunk.scale_row_bytes;
      }
      chunks_.push_back(chunk);
    }
  }

  /// A small tensor as F32 values.
  const float* vector(const std::string& name) {
    const format::TensorInfo& values = info(name);
    const Range mine = part_of(values).rows;
    const int64_t element = tensor::dtype_bytes(values.dtype);
    const int64_t width = values.size_bytes / element / values.shape[0];
    const int64_t count = (mine.end - mine.begin) * width;
    std::byte* dst = section().take(count * 4);
    if (dst != nullptr) {
      Chunk chunk;
      chunk.kind = values.dtype == tensor::DType::bf16 ? Chunk::Kind::bf16_to_f32 : Chunk::Kind::raw;
      chunk.values = &values;
      chunk.values_offset = mine.begin * width * element;
      chunk.values_bytes = count * element;
      chunk.dst = dst;
      chunks_.push_back(chunk);
    }
    return reinterpret_cast<const float*>(dst);
  }

  /// Rows of a tensor kept in the file's own layout.
  const std::byte* raw(const std::string& name) {
    const format::TensorInfo& values = info(name);
    const Range mine = part_of(values).rows;
    const int64_t row_bytes = values.size_bytes / values.shape[0];
    const int64_t begin = mine.begin * row_bytes, size = (mine.end - mine.begin) * row_bytes;
    std::byte* dst = section().take(size);
    if (dst == nullptr) return nullptr;
    for (int64_t at = 0; at < size; at += kChunk_bytes) {
      Chunk chunk;
      chunk.values = &values;
      chunk.values_offset = begin + at;
      chunk.values_bytes = std::min(kChunk_bytes, size - at);
      chunk.is_e4m3 = values.dtype == tensor::DType::f8_e4m3;
      chunk.is_e8m0 = values.dtype == tensor::DType::f8_e8m0;
      chunk.dst = dst + at;
      chunks_.push_back(chunk);
    }
    return dst;
  }

  const format::TensorSource& source_;
  const Config& config_;
  const WeightOptions& options_;
  std::vector<ManifestEntry> manifest_;  // only for sharded loading
  std::vector<Section> sections_;
  size_t section_ = 0;
  std::vector<Chunk> chunks_;
};

Error nan_error(const format::TensorInfo& tensor, const char* what, int64_t offset) {
  return Error(Code::corrupt_data,
               fmt::format("tensor '{}' in '{}': {} at byte {} of its data, expected a number", tensor.name,
                           tensor.file, what, offset),
               "the checkpoint is damaged; run `rorqual inspect --verify` to list such tensors");
}

Status check_e4m3(const Chunk& chunk, const std::byte* bytes) {
  for (int64_t i = 0; i < chunk.values_bytes; ++i) {
    if ((static_cast<uint8_t>(bytes[i]) & 0x7F) == 0x7F) {
      return nan_error(*chunk.values, "E4M3 NaN", chunk.values_offset + i);
    }
  }
  return Ok{};
}

Status check_e8m0(const format::TensorInfo& tensor, int64_t offset, const std::byte* bytes, int64_t count) {
  const void* found = std::memchr(bytes, kScaleNan, static_cast<size_t>(count));
  if (found == nullptr) return Ok{};
  return nan_error(tensor, "scale byte 255 (NaN)", offset + (static_cast<const std::byte*>(found) - bytes));
}

/// Reads chunks; one instance per thread keeps its staging memory.
class ChunkReader {
 public:
  ChunkReader(const format::TensorSource& source, std::mutex& mutex) : source_(source), mutex_(mutex) {}

  Status load(const Chunk& chunk) {
    if (chunk.kind == Chunk::Kind::raw) return load_raw(chunk);
    values_.resize(static_cast<size_t>(chunk.values_bytes));
    RORQUAL_TRY(source_.read(*chunk.values, chunk.values_offset, values_));
    if (chunk.kind == Chunk::Kind::bf16_to_f32) {
      widen(chunk);
      return Ok{};
    }
    return load_matrix(chunk);
  }

 private:
  Status load_raw(const Chunk& chunk) {
    RORQUAL_TRY(source_.read(*chunk.values, chunk.values_offset,
                             std::span(chunk.dst, static_cast<size_t>(chunk.values_bytes))));
    if (chunk.is_e4m3) RORQUAL_TRY(check_e4m3(chunk, chunk.dst));
    if (chunk.is_e8m0) {
      RORQUAL_TRY(check_e8m0(*chunk.values, chunk.values_offset, chunk.dst, chunk.values_bytes));
    }
    return Ok{};
  }

  /// Drops the columns of other ranks from rows of `row_bytes`, in place.
  static void keep_columns(std::vector<std::byte>& rows, int64_t row_bytes, int64_t offset, int64_t kept) {
    if (kept == row_bytes) return;
    const int64_t count = static_cast<int64_t>(rows.size()) / row_bytes;
    for (int64_t r = 0; r < count; ++r) {
      std::memmove(rows.data() + r * kept, rows.data() + r * row_bytes + offset, static_cast<size_t>(kept));
    }
  }

  void widen(const Chunk& chunk) {
    for (int64_t i = 0; i < chunk.values_bytes / 2; ++i) {
      uint16_t half;
      std::memcpy(&half, values_.data() + 2 * i, 2);
      const uint32_t wide = static_cast<uint32_t>(half) << 16;
      std::memcpy(chunk.dst + 4 * i, &wide, 4);
    }
  }

  Status load_matrix(const Chunk& chunk) {
    if (chunk.is_e4m3) RORQUAL_TRY(check_e4m3(chunk, values_.data()));
    const uint8_t* scales = nullptr;
    if (chunk.scales != nullptr) {
      scales_.resize(static_cast<size_t>(chunk.scales_bytes));
      RORQUAL_TRY(source_.read(*chunk.scales, chunk.scales_offset, scales_));
      RORQUAL_TRY(check_e8m0(*chunk.scales, chunk.scales_offset, scales_.data(), chunk.scales_bytes));
      keep_columns(scales_, chunk.scale_row_bytes, chunk.scale_offset_bytes, (chunk.cols + 31) / 32);
      scales = reinterpret_cast<const uint8_t*>(scales_.data());
    }
    keep_columns(values_, chunk.row_bytes, chunk.column_offset_bytes,
                 kernels::source_row_bytes(chunk.source_format, chunk.cols));
    if (chunk.format != chunk.source_format) {
      RORQUAL_TRY(quantise_fp8(chunk));
      scales = scales_u8_.data();
    }
    const Matrix packed = kernels::pack_matrix(chunk.format, chunk.rows, chunk.cols, values_.data(), scales,
                                               chunk.dst, chunk.dst_scales);
    if (packed.wide_scales) {
      std::lock_guard lock(mutex_);
      chunk.matrix->wide_scales = true;
    }
    return Ok{};
  }

  /// BF16 rows in values_ -> E4M3 codes in values_ and E8M0 scales in scales_u8_, 32 rows at a time: chunks
  /// begin at multiples of 32 rows, so blocks are those of the whole matrix. In place: codes are shorter.
  Status quantise_fp8(const Chunk& chunk) {
    const int64_t cols = chunk.cols, scale_cols = (cols + 31) / 32;
    scales_u8_.resize(static_cast<size_t>((chunk.rows + 31) / 32 * scale_cols));
    wide_.resize(static_cast<size_t>(32 * cols));
    codes_.resize(static_cast<size_t>(32 * cols));
    for (int64_t row = 0; row < chunk.rows; row += 32) {
      const int64_t rows = std::min<int64_t>(32, chunk.rows - row);
      for (int64_t i = 0; i < rows * cols; ++i) {
        uint16_t half = 0;
        std::memcpy(&half, values_.data() + 2 * (row * cols + i), 2);
        if ((half & 0x7F80u) == 0x7F80u) {
          return nan_error(*chunk.values, "infinity or NaN", chunk.values_offset + 2 * (row * cols + i));
        }
        wide_[static_cast<size_t>(i)] = num::bf16_decode(half);
      }
      num::fp8_block_quantise(wide_.data(), rows, cols, codes_.data(),
                              scales_u8_.data() + row / 32 * scale_cols);
      std::memcpy(values_.data() + row * cols, codes_.data(), static_cast<size_t>(rows * cols));
    }
    return Ok{};
  }

  const format::TensorSource& source_;
  std::mutex& mutex_;
  std::vector<std::byte> values_, scales_;
  // of matrices that are converted
  std::vector<float> wide_;
  std::vector<uint8_t> codes_, scales_u8_;
};

Status load_chunks(const format::TensorSource& source, const std::vector<Chunk>& chunks, ThreadPool& pool,
                   const LoadProgress& progress) {
  int64_t total = 0;
  for (const Chunk& chunk : chunks) total += chunk.values_bytes + chunk.scales_bytes;
  std::mutex mutex;
  std::optional<Error> failure;
  std::atomic<bool> stop{false};
  int64_t done = 0;
  std::vector<ChunkReader> readers(static_cast<size_t>(pool.num_threads()), ChunkReader(source, mutex));
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t index, int thread) {
    if (stop.load(std::memory_order_relaxed)) return;
    const Chunk& chunk = chunks[static_cast<size_t>(index)];
    Status status = readers[static_cast<size_t>(thread)].load(chunk);
    std::lock_guard lock(mutex);
    if (!status.ok()) {
      if (!failure) failure = std::move(status).error();
      stop.store(true, std::memory_order_relaxed);
      return;
    }
    done += chunk.values_bytes + chunk.scales_bytes;
    if (progress) progress(done, total);
  });
  if (failure) return *std::move(failure);
  return Ok{};
}

}  // namespace

int64_t Weights::host_bytes() const {
  int64_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size_bytes();
  return total;
}

Result<Weights> load_weights(const format::TensorSource& source, const Config& config,
                             const WeightOptions& options, ThreadPool& pool, const LoadProgress& progress) {
  Weights weights;
  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  if (options.with_drafts && config.num_stages() > 0) {
    weights.draft.emplace();
    weights.draft->stages.resize(static_cast<size_t>(config.num_stages()));
  }
  Binder binder(source, config, options);
  binder.bind(weights);
  for (Section& section : binder.sections()) {
    RORQUAL_TRY_ASSIGN(tensor::Buffer buffer, tensor::Buffer::allocate(section.used_bytes()));
    section.place(buffer.data());
    weights.buffers.push_back(std::move(buffer));
  }
  binder.bind(weights);
  RORQUAL_TRY(load_chunks(source, binder.chunks(), pool, progress));
  return weights;
}

}  // namespace rorqual::model
