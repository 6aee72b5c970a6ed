// SPDX-License-Identifier: Apache-2.0
// The released checkpoint without its files: the tensors that a config implies, and the built-in name "v41".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/manifest.h"

namespace rorqual::plan {

inline constexpr std::string_view kReleaseName = "v41";
inline constexpr std::string_view kReleaseRepository = "deepseek-ai/DeepSeek-V4.1-Flash";

/// Bytes of all tensors of the release: `metadata.total_size` of its index. A test adds them up.
inline constexpr int64_t kReleaseTensor_bytes = 510'286'023'000;

/// A tensor, and how many of its kind there are: one entry stands for all experts of a layer.
struct ReleaseTensor {
  model::ManifestEntry entry;
  int64_t count = 1;
  int64_t layer = -1;   // backbone layers, then draft stages; -1 = outside
  int64_t section = 0;  // buffer of model/weights.cpp: 0 = outside the layers, then one per layer
};

/// model::manifest(config) with the experts of a layer counted instead of listed: 50 times faster, same sums.
std::vector<ReleaseTensor> tensor_kinds(const model::Config& config);

/// Bytes of all tensors of a checkpoint of this config, headers of files not included.
int64_t checkpoint_bytes(const model::Config& config);

/// Number of tensors.
int64_t checkpoint_tensors(const model::Config& config);

/// The config behind MODEL: "v41" (the release), "synthetic:…", or a folder, of which only config.json is
/// read. Errors: not_found, corrupt_data, invalid_argument.
Result<model::Config> config_of(const std::string& model);

}  // namespace rorqual::plan
