// SPDX-License-Identifier: Apache-2.0
// config.json: an accepted config can be written, read again to the same values, and gives a finite tensor
// list.
#include <cstdint>
#include <cstdlib>

#include "model/config.h"
#include "model/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rorqual::model;
  const auto config = parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    if (config.error().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const std::string text = config_to_json(*config);
  const auto again = parse_config(text);
  if (!again.ok() || config_to_json(*again) != text) std::abort();
  constexpr int64_t kFewExperts = 2000;  // larger lists are right, but slow
  if (config->num_hidden_layers * config->n_routed_experts > kFewExperts) return 0;
  for (const auto& entry : manifest(*config)) {
    if (entry.size_bytes() <= 0) std::abort();
  }
  return 0;
}
