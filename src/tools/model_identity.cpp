// SPDX-License-Identifier: Apache-2.0
#include "tools/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "model/cache.h"

namespace rorqual::tools {
namespace {

constexpr std::string_view kLayoutVersion = "rorqual.pages/1";
constexpr size_t kMaxSamples = 1024;
constexpr int64_t kSample_bytes = 256;

/// Fields with their lengths, so that no two lists of fields look alike.
class FieldHash {
 public:
  void add(std::string_view text) {
    const std::string length = fmt::format("{}:", text.size());
    update(length);
    update(text);
  }

  void add(std::span<const std::byte> bytes) { hash_.update(bytes); }

  std::string hex() { return hash_.hex(); }

 private:
  void update(std::string_view text) { hash_.update(std::as_bytes(std::span(text.data(), text.size()))); }

  Sha256 hash_;
};

/// From the middle of evenly spread tensors.
void add_samples(const format::TensorSource& source, FieldHash& hash) {
  const auto& tensors = source.tensors();
  const size_t step = std::max<size_t>(1, (tensors.size() + kMaxSamples - 1) / kMaxSamples);
  std::array<std::byte, kSample_bytes> sample;
  for (size_t i = 0; i < tensors.size(); i += step) {
    const format::TensorInfo& tensor = tensors[i];
    const int64_t size = std::min(kSample_bytes, tensor.size_bytes);
    const auto bytes = std::span(sample).first(static_cast<size_t>(size));
    if (const Status status = source.read(tensor, (tensor.size_bytes - size) / 2, bytes); !status.ok()) {
      hash.add(status.error().message());
    } else {
      hash.add(bytes);
    }
  }
}

}  // namespace

std::string model_identity(const OpenedSource& opened, const OpenOptions& options) {
  FieldHash hash;
  hash.add(kLayoutVersion);
  hash.add(options.numerics);
  const auto numerics = options.numerics == "exact" ? kernels::Numerics::exact : kernels::Numerics::reference;
  const auto layout = model::make_cache_layout(opened.config, numerics, options.with_drafts);
  hash.add(fmt::format("{} {} {}", options.with_drafts, layout.block_bytes, layout.window_page_bytes()));
  // The head comes after all caches and changes nothing in them.
  model::Switches switches = options.switches;
  switches.lm_head = {};
  hash.add(model::describe_switches(switches));
  if (const auto config = opened.source->read_text("config.json"); config.ok()) hash.add(*config);
  for (const format::TensorInfo& tensor : opened.source->tensors()) {
    hash.add(fmt::format("{} {} {} {}", tensor.name, static_cast<int>(tensor.dtype),
                         fmt::join(tensor.shape, ","), tensor.size_bytes));
  }
  add_samples(*opened.source, hash);
  if (!opened.config.engram_layer_ids.empty() && opened.tokenizer != nullptr) {
    for (int32_t id = 0; id < opened.tokenizer->vocab_size(); ++id)
      hash.add(opened.tokenizer->token_bytes(id));
  }
  return hash.hex();
}

}  // namespace rorqual::tools
