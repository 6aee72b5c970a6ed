// SPDX-License-Identifier: Apache-2.0
// Messages of chat completions: shape first, rules second.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/body_reader.h"
#include "api/policy.h"
#include "text/chat_encoder.h"

namespace rorqual::api {

/// A message of the right shape whose rules are not checked yet.
struct RawMessage {
  text::Message message;  // content still empty
  bool has_content = false;
  bool has_tool_calls = false;
  Json* content = nullptr;  // in the body: string or list of parts
};

/// Texts are moved out of `body` here and by the conversion: a long conversation is not copied.
std::vector<RawMessage> read_chat_messages(BodyReader& reader, Json& body, const ApiPolicy& policy);

/// Contents, order of calls and results, prefix. System messages without content are left out. The body must
/// still exist.
ApiResult<std::vector<text::Message>> convert_chat_messages(std::vector<RawMessage> raw);

}  // namespace rorqual::api
