// SPDX-License-Identifier: Apache-2.0
#include "plan/release.h"

#include <charconv>
#include <string>

#include "base/file.h"
#include "model/synthetic_spec.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kMaxConfig_bytes = int64_t{16} << 20;

/// "12." at the start of `text` as a number, -1 if there is none.
int64_t leading_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : -1;
}

int64_t layer_of(const std::string& name, int64_t num_layers) {
  if (name.starts_with("layers.")) return leading_number(std::string_view(name).substr(7));
  if (name.starts_with("mtp.")) return num_layers + leading_number(std::string_view(name).substr(4));
  return -1;
}

}  // namespace

std::vector<ReleaseTensor> tensor_kinds(const model::Config& config) {
  // A model with one expert per layer has the same tensors but for the experts' number and the routers' rows.
  model::Config slim = config;
  slim.n_routed_experts = 1;
  if (slim.dspark_n_routed_experts > 0) slim.dspark_n_routed_experts = 1;
  std::vector<ReleaseTensor> tensors;
  for (model::ManifestEntry& entry : model::manifest(slim)) {
    ReleaseTensor tensor;
    tensor.layer = layer_of(entry.name, config.num_hidden_layers);
    tensor.section = tensor.layer + 1;
    if (entry.shard == model::ShardRule::by_expert) tensor.count = config.num_experts(tensor.layer);
    if (entry.name.find(".ffn.gate.") != std::string::npos) {
      entry.shape[0] = config.num_experts(tensor.layer);
    }
    tensor.entry = std::move(entry);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

int64_t checkpoint_bytes(const model::Config& config) {
  int64_t total = 0;
  for (const ReleaseTensor& tensor : tensor_kinds(config)) total += tensor.count * tensor.entry.size_bytes();
  return total;
}

int64_t checkpoint_tensors(const model::Config& config) {
  int64_t total = 0;
  for (const ReleaseTensor& tensor : tensor_kinds(config)) total += tensor.count;
  return total;
}

Result<model::Config> config_of(const std::string& model) {
  if (model == kReleaseName) return model::release_config();
  if (model::is_synthetic(model)) {
    RORQUAL_TRY_ASSIGN(const model::SyntheticSpec spec, model::parse_synthetic(model));
    return model::synthetic_config(spec);
  }
  const std::string path = model + "/config.json";
  auto text = read_text_file(path, kMaxConfig_bytes);
  if (!text.ok()) {
    return Error(text.error().code(), text.error().message(),
                 "MODEL is a folder with config.json, 'v41' for the release, or 'synthetic:v41?…'");
  }
  auto config = model::parse_config(*text);
  if (!config.ok()) return std::move(config).error().at(path);
  return config;
}

}  // namespace rorqual::plan
