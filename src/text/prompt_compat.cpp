// SPDX-License-Identifier: Apache-2.0
// Names of the prompt switches.
#include "text/prompt_compat.h"

#include <algorithm>

#include "text/chat_encoder.h"

namespace rorqual::text {

namespace {

constexpr PromptCompatSwitch kSwitches[] = {
    {"plain_text", &PromptCompat::plain_text, "text that spells a control token becomes that token"},
    {"developer", &PromptCompat::developer, "developer messages are user turns, not system messages"},
    {"response_format", &PromptCompat::response_format, "the response format is not shown"},
    {"tool_choice_none", &PromptCompat::tool_choice_none, "tools are shown also with tool_choice none"},
    {"tool_fields", &PromptCompat::tool_fields, "tools are shown with all fields that were sent"},
    {"leading_system", &PromptCompat::leading_system,
     "tools hang on the first system message, wherever it is"},
};

std::string known_names() {
  std::string names;
  for (const auto& item : kSwitches) names += (names.empty() ? "" : ", ") + std::string(item.name);
  return names;
}

}  // namespace

void apply_prompt_compat(const PromptCompat& compat, Conversation& conversation) {
  conversation.spells_control_tokens = compat.plain_text;
  conversation.sections_on_first_system = compat.leading_system;
}

std::span<const PromptCompatSwitch> prompt_compat_switches() {
  return kSwitches;
}

Result<PromptCompat> parse_prompt_compat(std::string_view names) {
  PromptCompat compat;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const auto* found = std::find_if(std::begin(kSwitches), std::end(kSwitches),
                                     [&](const auto& item) { return item.name == name; });
    if (found == std::end(kSwitches)) {
      return Error(Code::invalid_argument, "unknown prompt switch '" + std::string(name) + "'",
                   "expected names out of: " + known_names());
    }
    compat.*(found->field) = true;
  }
  return compat;
}

std::string prompt_compat_names(const PromptCompat& compat) {
  std::string names;
  for (const auto& item : kSwitches) {
    if (compat.*(item.field)) names += (names.empty() ? "" : ",") + std::string(item.name);
  }
  return names;
}

}  // namespace rorqual::text
