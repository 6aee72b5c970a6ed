// SPDX-License-Identifier: Apache-2.0
// Structural tags: text with parts that follow a schema or a pattern. docs/constraints.md#tags lists the
// formats.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/schema_grammar.h"

namespace rorqual::grammar {

/// `tag`: JSON, {"format": {…}} or the older {"structures": […], "triggers": […]}. Gives a whole grammar.
/// Errors: invalid_argument (not of that form, schemas, limits), unsupported (formats over token ids, other
/// tool-call styles, grammars inside), naming the path.
Result<std::string> tag_grammar(std::string_view tag, JsonSpace space);

}  // namespace rorqual::grammar
