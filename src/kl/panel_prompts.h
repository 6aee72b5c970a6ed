// SPDX-License-Identifier: Apache-2.0
// The prompts of the panel: one user message each, answered greedily by the reference and scored
// teacher-forced. Our own words. docs/fidelity.md#panel.
#pragma once

#include <span>
#include <string_view>

namespace rorqual::kl {

/// 100 prompts, all different: 60 English; 5 each Italian, French, German, Spanish; 20 in further scripts.
/// The order is fixed: a case is known by its index. Any thread.
std::span<const std::string_view> panel_prompts();

}  // namespace rorqual::kl
