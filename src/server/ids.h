// SPDX-License-Identifier: Apache-2.0
// Random identifiers of requests, answers and tool calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rorqual::server {

/// `length` lower-case hex digits.
std::string random_hex(size_t length);

/// Up to 128 letters, digits, '-', '_' and '.': may be taken over from a client.
bool is_plain_id(std::string_view id);

/// `call_NN_` and 24 letters or digits: the form that clients of the official API know.
std::string tool_call_id(int32_t call_index);

}  // namespace rorqual::server
