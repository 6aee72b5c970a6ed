// SPDX-License-Identifier: Apache-2.0
// A limit of the thinking as a constraint on tokens: exact, also with drafts.
#pragma once

#include <memory>

#include "runtime/engine.h"
#include "text/tokenizer.h"

namespace rorqual::server {

struct ThinkingBudget {
  int64_t max_tokens = 0;     // of the thinking, </think> not counted
  bool calls_end_it = false;  // a call in the middle of the thinking ends it, too (tools are active)
};

/// After max_tokens tokens of the reply without an end of the thinking only </think> may follow; all else is
/// as `inner` says (null = anything). `tokenizer` must live as long as the result and have </think>.
std::shared_ptr<runtime::TokenConstraint> limit_thinking(const ThinkingBudget& budget,
                                                         const text::Tokenizer& tokenizer,
                                                         std::shared_ptr<runtime::TokenConstraint> inner);

}  // namespace rorqual::server
