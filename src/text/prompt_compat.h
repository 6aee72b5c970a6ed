// SPDX-License-Identifier: Apache-2.0
// Switches that give a prompt the form of an earlier release or of another server, one rule at a time, so
// that two engines can be compared on the same ids. All are off by default. docs/text.md#prompt-compat.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::text {

/// true = the other behaviour.
struct PromptCompat {
  bool plain_text = false;        // text that spells a control token becomes that token
  bool developer = false;         // developer messages are user turns of their own, dropped once they are old
  bool response_format = false;   // the prompt does not show the response format
  bool tool_choice_none = false;  // the tools stay in the prompt though none may be called
  bool tool_fields = false;       // tools are printed with the fields that the client sent
  bool leading_system = false;  // tools and response format hang on the first system message, wherever it is

  bool operator==(const PromptCompat&) const = default;
};

struct Conversation;

/// The part of the switches that the rendering itself has: plain_text and leading_system. The others change
/// what a request body puts into the conversation (api/).
void apply_prompt_compat(const PromptCompat& compat, Conversation& conversation);

struct PromptCompatSwitch {
  std::string_view name;
  bool PromptCompat::*field;
  std::string_view effect;  // one line for the help
};

/// In the order in which they are written.
std::span<const PromptCompatSwitch> prompt_compat_switches();

/// Names separated by commas; "" is none. Errors: invalid_argument with the unknown name and all known ones.
Result<PromptCompat> parse_prompt_compat(std::string_view names);

/// "plain_text,developer", in fixed order; "" if all are off.
std::string prompt_compat_names(const PromptCompat& compat);

}  // namespace rorqual::text
