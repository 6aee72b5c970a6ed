// SPDX-License-Identifier: Apache-2.0
// Vectors of model outputs: what the parser must make of them, token by token and however they are cut.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/tokenizer.h"

namespace rorqual::tools {

/// Problem of one vector, or "". Three ways: the vector's ids one by one, with every delta; the ids with one
/// token cut in two at every byte; the text as the streaming detokenizer gives it, cut at every byte.
std::string check_parsing_case(const nlohmann::ordered_json& row, const text::Tokenizer& tokenizer);

}  // namespace rorqual::tools
