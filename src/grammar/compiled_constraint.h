// SPDX-License-Identifier: Apache-2.0
// What all replies under one constraint share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/constraint.h"

namespace rorqual::grammar {

struct CompiledConstraint::Shared {
  std::shared_ptr<const CompiledGrammar> grammar;
  bool is_tools = false;
  int32_t marker = -1;     // ｜DSML｜
  int32_t think_end = -1;  // </think>
  int32_t eos = -1;
  const text::Tokenizer* tokenizer = nullptr;
  std::shared_ptr<const std::vector<uint32_t>> spaces;  // mask of the tokens that are white space only
  std::vector<std::string> notes;
};

}  // namespace rorqual::grammar
