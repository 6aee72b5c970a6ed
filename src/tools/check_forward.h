// SPDX-License-Identifier: Apache-2.0
// `rorqual check forward MODEL_DIR FIXTURES…`: whole-model golden runs against this build's forward pass.
// Schema of the files and reasons for the bounds: tests/golden/forward/README.md.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct CheckForwardOptions {
  OpenOptions open;                   // model, kernels, threads; numerics follow each file's mode
  std::vector<std::string> fixtures;  // files, or folders of *.safetensors
};

/// exact files: end to end (logits, KL, every discrete choice, caches, drafts). official files with whole
/// residual streams: layer by layer with forced input. Other official files: logits, pooled per model. Files
/// made for another model are skipped. Errors: not_found when nothing ran, else as open_model; failures go to
/// `report`.
Status check_forward(const CheckForwardOptions& options, CheckReport& report);

}  // namespace rorqual::tools
