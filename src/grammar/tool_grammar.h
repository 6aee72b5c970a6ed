// SPDX-License-Identifier: Apache-2.0
// The calls block of DeepSeek-V4.1 for a list of tools: names, parameters and values by the tools' schemas.
// The marker is a token id, never text. docs/constraints.md#tools.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::grammar {

/// Text before the first marker of a block, and between it and the first call.
inline constexpr std::string_view kBlockOpening = "\n\n<";
inline constexpr std::string_view kBlockName = " calls>\n";

/// Up to so many parameters may come in any order; more come in the order of the schema.
inline constexpr size_t kMaxFreeOrder = 5;

struct ToolGrammar {
  std::string text;                // grammar of kBlockOpening, marker, kBlockName, calls, and the block's end
  std::vector<std::string> notes;  // what the schemas say and the grammar does not enforce
};

/// `tools`: JSON list of {"type":"function","function":{"name","parameters",…}}. `marker`: id of ｜DSML｜.
/// `single_call`: exactly one call, else one or more. Errors: invalid_argument (not such a list, schemas that
/// contradict themselves, limits), naming tool and path.
Result<ToolGrammar> tool_grammar(std::string_view tools, int32_t marker, bool single_call);

}  // namespace rorqual::grammar
