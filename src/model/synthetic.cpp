// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "model/manifest.h"
#include "model/synthetic_spec.h"
#include "model/weight_stream.h"

namespace rorqual::model {
namespace {

using tensor::DType;

constexpr int64_t kMaxSideFileBytes = 64 * 1024 * 1024;
constexpr int64_t kLargestRunBytes = 4 * kRunElements;  // F32

/// What one tensor's elements look like: mean + deviation * z, or for matrices gain / sqrt(fan-in) * z.
struct Recipe {
  std::string_view ending;  // of the tensor's name
  double mean = 0.0;
  double deviation = 0.0;
  double gain = 0.0;  // > 0: deviation = gain / sqrt(columns)
};

// First match wins. Figures: statistics of the release's weights where they are known (spec:
// docs/synthetic.md), else values that keep activations near those of the release.
constexpr std::array<Recipe, 45> kRecipes = {{
    {"engram.embed.weight", 0, 0.12, 0},
    {"markov_head.embed.weight", 0, 1.0, 0},
    {"embed.weight", 0, 0.12, 0},
    {"image_start", 0, 0.12, 0},
    {"image_end", 0, 0.12, 0},
    {"image_newline", 0, 0.12, 0},
    {"markov_head.head.weight", 0, 0, 1.0},
    {"head.proj.weight", 0, 0, 1.0},  // confidence_head
    {"head.weight", 0, 0, 3.0},
    // norms
    {"attn_norm.weight", 0.025, 0.004, 0},
    {"ffn_norm.weight", 0.2, 0.03, 0},
    {"q_norm.weight", 0.97, 0.1, 0},
    {"kv_norm.weight", 0.4, 0.05, 0},
    {"compressor.norm.weight", 0.6, 0.08, 0},
    {"k_norm.weight", 0.5, 0.07, 0},
    {"main_norm.weight", 1.0, 0.15, 0},
    {"norm1.weight", 1.0, 0.15, 0},
    {"norm2.weight", 1.0, 0.15, 0},
    {"norm.weight", 1.0, 0.15, 0},
    {"engram.q_weight", 1.0, 0.15, 0},
    {"engram.k_weight", 1.0, 0.15, 0},
    // attention
    {"attn.attn_sink", 0, 1.0, 0},
    {"attn.wq_a.weight", 0, 0, 1.6},
    {"attn.wq_b.weight", 0, 0, 0.95},
    {"attn.wkv.weight", 0, 0, 1.8},
    {"attn.wo_a.weight", 0, 0, 1.6},
    {"attn.wo_b.weight", 0, 0, 1.9},
    {"compressor.wkv.weight", 0, 0, 1.0},
    {"compressor.wgate.weight", 0, 0, 1.0},
    {"indexer.wk.weight", 0, 0, 1.0},
    {"indexer.wq_b.weight", 0, 0, 1.0},
    {"indexer.weights_proj.weight", 0, 0, 1.0},
    {"engram.wkv.weight", 0, 0, 1.0},
    {"main_proj.weight", 0, 0, 1.0},
    // experts; the selection bias is small beside the spread of the scores, so that every expert is chosen
    {"ffn.gate.weight", 0, 0, 2.9},
    {"ffn.gate.bias", 0, 0.02, 0},
    {"ffn.gate.bias_vl", 0, 0.02, 0},
    {"w1.weight", 0, 0, 1.5},
    {"w3.weight", 0, 0, 1.5},
    {"w2.weight", 0, 0, 1.05},
    // hyper-connections; base and scale have their own means (NormalLaw::Pattern)
    {"_fn", 0, 0, 1.0},
    {"_base", 0, 0.3, 0},
    {"_scale", 0, 0.1, 0},
    // vision tower
    {".bias", 0, 0.02, 0},
    {".weight", 0, 0, 1.0},
}};

const Recipe& recipe_of(std::string_view name) {
  const auto found = std::find_if(kRecipes.begin(), kRecipes.end(),
                                  [&](const Recipe& recipe) { return name.ends_with(recipe.ending); });
  RORQUAL_CHECK_NOTE(found != kRecipes.end(), "a tensor of the manifest has no recipe");
  return *found;
}

/// "layers.4.attn…" of a slice under the name that the release gives it: "layers.20.attn…".
std::string release_name(const Config& config, const std::string& name) {
  constexpr std::string_view kPrefix = "layers.";
  if (config.layer_origin.empty() || !name.starts_with(kPrefix)) return name;
  int64_t layer = -1;
  const char* begin = name.data() + kPrefix.size();
  const char* end = std::from_chars(begin, name.data() + name.size(), layer).ptr;
  RORQUAL_CHECK(layer >= 0 && layer < static_cast<int64_t>(config.layer_origin.size()));
  return fmt::format("{}{}{}", kPrefix, config.layer_origin[static_cast<size_t>(layer)], end);
}

/// How the bytes of one tensor are made. Exactly one law is set.
struct Stream {
  const NormalLaw* normal = nullptr;
  const QuantisedLaw* quantised = nullptr;
  uint64_t key = 0;
  uint64_t scale_key = 0;    // codes: the stream of their scales
  int64_t runs_per_row = 0;  // see QuantisedLaw::CodeRequest
  int64_t run_bytes = 0;
  bool is_scale = false;
  bool is_f32 = false;

  void fill(int64_t first_run, int64_t num_runs, std::byte* dst) const {
    if (normal != nullptr && is_f32) return normal->fill_f32(key, first_run, num_runs, dst);
    if (normal != nullptr) return normal->fill_bf16(key, first_run, num_runs, dst);
    if (is_scale) return quantised->fill_scales(key, first_run, num_runs, dst);
    quantised->fill_codes({.key = key,
                           .scale_key = scale_key,
                           .first_run = first_run,
                           .num_runs = num_runs,
                           .runs_per_row = runs_per_row},
                          dst);
  }
};

class SyntheticSource final : public format::TensorSource {
 public:
  SyntheticSource(const Config& config, SyntheticOptions options)
      : config_(config), options_(std::move(options)) {
    const std::vector<ManifestEntry> entries = manifest(config);
    tensors_.reserve(entries.size());
    streams_.reserve(entries.size());
    for (const ManifestEntry& entry : entries) {
      tensors_.push_back({entry.name, entry.dtype, entry.shape, entry.size_bytes(), "", 0});
    }
    for (const format::TensorInfo& info : tensors_) streams_.push_back(make_stream(info));
  }

  const std::vector<format::TensorInfo>& tensors() const override { return tensors_; }

  Status read(const format::TensorInfo& info, int64_t offset, std::span<std::byte> dst) const override;

  Result<std::string> read_text(std::string_view file_name) const override {
    if (file_name == "config.json") return config_to_json(config_);
    if (options_.tokenizer_folder.empty()) {
      return Error(Code::not_found, fmt::format("{} has no {}", name(), file_name),
                   "add tokenizer=FOLDER, a folder with tokenizer.json");
    }
    return read_text_file(fmt::format("{}/{}", options_.tokenizer_folder, file_name), kMaxSideFileBytes);
  }

  std::string name() const override { return options_.name; }

 private:
  Stream make_stream(const format::TensorInfo& info);
  Stream make_quantised(const format::TensorInfo& weight, bool is_scale);
  const NormalLaw* normal_law(const Recipe& recipe, double deviation, NormalLaw::Pattern pattern);
  const QuantisedLaw* quantised_law(QuantisedLaw::Format format, int64_t group_elements, double deviation);
  double deviation_of(const Recipe& recipe, const format::TensorInfo& info) const;

  uint64_t key_of(const std::string& name) const {
    return stream_key(options_.seed, release_name(config_, name));
  }

  Config config_;
  SyntheticOptions options_;
  std::vector<format::TensorInfo> tensors_;
  std::vector<Stream> streams_;  // same order
  // Tensors of equal width share a law.
  std::map<std::tuple<double, double, NormalLaw::Pattern>, NormalLaw> normal_laws_;
  std::map<std::tuple<QuantisedLaw::Format, int64_t, double>, QuantisedLaw> quantised_laws_;
};

double SyntheticSource::deviation_of(const Recipe& recipe, const format::TensorInfo& info) const {
  if (recipe.gain == 0) return recipe.deviation;
  const int64_t stored = info.shape.back();
  const int64_t columns = info.dtype == DType::i8 ? 2 * stored : stored;
  return recipe.gain / std::sqrt(static_cast<double>(columns));
}

const NormalLaw* SyntheticSource::normal_law(const Recipe& recipe, double deviation,
                                             NormalLaw::Pattern pattern) {
  const auto [place, is_new] = normal_laws_.try_emplace({recipe.mean, deviation, pattern}, recipe.mean,
                                                        deviation, pattern, config_.hc_mult);
  return &place->second;
}

const QuantisedLaw* SyntheticSource::quantised_law(QuantisedLaw::Format format, int64_t group_elements,
                                                   double deviation) {
  const auto [place, is_new] =
      quantised_laws_.try_emplace({format, group_elements, deviation}, format, group_elements, deviation);
  return &place->second;
}

Stream SyntheticSource::make_quantised(const format::TensorInfo& weight, bool is_scale) {
  const bool is_fp4 = weight.dtype == DType::i8;
  const bool is_table = weight.name.ends_with("engram.embed.weight");
  const double deviation = deviation_of(recipe_of(weight.name), weight);
  const int64_t columns = is_fp4 ? 2 * weight.shape.back() : weight.shape.back();
  RORQUAL_CHECK_NOTE(columns % kRunElements == 0, "widths of quantised tensors are multiples of 32");
  Stream stream;
  stream.quantised =
      quantised_law(is_fp4 ? QuantisedLaw::Format::mxfp4 : QuantisedLaw::Format::fp8,
                    is_fp4 || is_table ? kRunElements : kRunElements * kRunElements, deviation);
  stream.is_scale = is_scale;
  stream.scale_key = key_of(weight.name.substr(0, weight.name.size() - 6) + "scale");
  stream.key = is_scale ? stream.scale_key : key_of(weight.name);
  stream.run_bytes = is_scale ? kRunElements : stream.quantised->run_bytes();
  if (!is_fp4 && !is_table) stream.runs_per_row = columns / kRunElements;
  return stream;
}

Stream SyntheticSource::make_stream(const format::TensorInfo& info) {
  if (info.dtype == DType::f8_e8m0) {
    const format::TensorInfo* weight = find(info.name.substr(0, info.name.size() - 5) + "weight");
    RORQUAL_CHECK(weight != nullptr);
    return make_quantised(*weight, true);
  }
  if (info.dtype == DType::i8 || info.dtype == DType::f8_e4m3) return make_quantised(info, false);
  RORQUAL_CHECK(info.dtype == DType::bf16 || info.dtype == DType::f32);
  auto pattern = NormalLaw::Pattern::constant;
  if (info.name.ends_with("_base")) pattern = NormalLaw::Pattern::hyper_base;
  if (info.name.ends_with("_scale")) pattern = NormalLaw::Pattern::hyper_scale;
  const Recipe& recipe = recipe_of(info.name);
  Stream stream;
  stream.normal = normal_law(recipe, deviation_of(recipe, info), pattern);
  stream.key = key_of(info.name);
  stream.is_f32 = info.dtype == DType::f32;
  stream.run_bytes = kRunElements * tensor::dtype_bytes(info.dtype);
  return stream;
}

Status SyntheticSource::read(const format::TensorInfo& info, int64_t offset, std::span<std::byte> dst) const {
  const format::TensorInfo* own = &info;
  const std::less<const format::TensorInfo*> before;
  if (before(own, tensors_.data()) || !before(own, tensors_.data() + tensors_.size())) own = find(info.name);
  const auto length = static_cast<int64_t>(dst.size());
  RORQUAL_CHECK(own != nullptr && offset >= 0 && offset <= own->size_bytes &&
                length <= own->size_bytes - offset);
  const Stream& stream = streams_[static_cast<size_t>(own - tensors_.data())];
  const int64_t run_bytes = stream.run_bytes;

  // Whole runs go straight to dst, the ragged ends through a buffer.
  std::array<std::byte, kLargestRunBytes> buffer;
  int64_t run = offset / run_bytes, skip = offset % run_bytes;
  std::byte* out = dst.data();
  std::byte* const end = out + length;
  while (out < end) {
    const int64_t whole_runs = skip == 0 ? (end - out) / run_bytes : 0;
    if (whole_runs > 0) {
      stream.fill(run, whole_runs, out);
      run += whole_runs;
      out += whole_runs * run_bytes;
      continue;
    }
    stream.fill(run, 1, buffer.data());
    const int64_t part = std::min<int64_t>(run_bytes - skip, end - out);
    std::memcpy(out, buffer.data() + skip, static_cast<size_t>(part));
    out += part;
    skip = 0;
    ++run;
  }
  return Ok{};
}

}  // namespace

std::unique_ptr<format::TensorSource> make_synthetic(const Config& config, const SyntheticOptions& options) {
  return std::make_unique<SyntheticSource>(config, options);
}

Result<std::unique_ptr<format::TensorSource>> open_synthetic(std::string_view model) {
  RORQUAL_TRY_ASSIGN(const SyntheticSpec spec, parse_synthetic(model));
  RORQUAL_TRY_ASSIGN(const Config config, synthetic_config(spec));
  return make_synthetic(config,
                        {.seed = spec.seed, .name = std::string(model), .tokenizer_folder = spec.tokenizer});
}

}  // namespace rorqual::model
