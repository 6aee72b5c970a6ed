// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies that a config implies. Angles and their cos and sin belong to the kernels (rope_angles).
#pragma once

#include <vector>

#include "model/config.h"

namespace rorqual::model {

/// F32 [qk_rope_head_dim/2]: 1/theta^(2i/d), each step rounded to F32 as the official code does.
/// `compressed`: layers that see compressed KV (ratio > 0), with compress_rope_theta and, when
/// original_seq_len > 0, YaRN interpolation. Source: docs/numerics.md, "Rotary angles".
std::vector<float> rope_inv_freq(const Config& config, bool compressed);

}  // namespace rorqual::model
