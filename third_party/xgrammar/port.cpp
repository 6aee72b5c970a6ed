// SPDX-License-Identifier: Apache-2.0
// What the vendored core of xgrammar needs from outside: a place for its messages, and the converters that
// are left out (README.md).
#include <stdexcept>
#include <string>

#include "json_schema_converter.h"
#include "lark_converter.h"
#include "structural_tag.h"
#include "support/logging.h"

namespace xgrammar {

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

// Its warnings are about grammars that clients wrote; what matters of them is checked before it sees them.
void LogMessageImpl(const std::string& /*file*/, int /*line*/, int /*level*/,
                    const std::string& /*message*/) {}

Grammar JSONSchemaToGrammar(const std::string&, bool, std::optional<int>,
                            std::optional<std::pair<std::string, std::string>>, bool, std::optional<int>,
                            bool, JSONFormat, std::vector<std::string>) {
  throw std::logic_error("xgrammar's JSON Schema converter is not part of this program");
}

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw std::logic_error("xgrammar's Lark converter is not part of this program");
}

Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&,
                                                           const std::optional<TokenizerInfo>&) {
  throw std::logic_error("xgrammar's structural tags are not part of this program");
}

}  // namespace xgrammar
