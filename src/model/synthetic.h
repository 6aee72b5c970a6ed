// SPDX-License-Identifier: Apache-2.0
// A TensorSource that computes its weights: the shapes of a Config, random numbers with the statistics of the
// release. The same bytes whether they are read from here or from files written by `convert --synthesize`.
// docs/synthetic.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/tensor_source.h"
#include "model/config.h"

namespace rorqual::model {

struct SyntheticOptions {
  uint64_t seed = 1;
  std::string name;              // shown to users
  std::string tokenizer_folder;  // empty = read_text("tokenizer.json") answers not_found
};

/// Weights of all tensors of `config`, which must be valid. A layer's numbers depend on its id in the release
/// (Config::layer_origin), so a slice has the same layers as the full model. Reads are cheap at any offset
/// and may run on any number of threads; nothing is stored.
std::unique_ptr<format::TensorSource> make_synthetic(const Config& config, const SyntheticOptions& options);

/// Opens "synthetic:v41?…" in place of a folder. Errors as parse_synthetic and synthetic_config.
Result<std::unique_ptr<format::TensorSource>> open_synthetic(std::string_view model);

}  // namespace rorqual::model
