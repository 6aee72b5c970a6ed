// SPDX-License-Identifier: Apache-2.0
// A request between its body and its final form: what the three chat protocols have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/body_reader.h"
#include "api/policy.h"
#include "api/request.h"
#include "api/tool_schema.h"

namespace rorqual::api {

enum class ToolChoice : uint8_t { automatic, none, required, named };

enum class ResponseFormat : uint8_t { text, json_object, json_schema, regex };

struct RequestDraft {
  ChatRequest request;
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string chosen_tool;
  ResponseFormat format = ResponseFormat::text;
  bool has_format = false;     // given, even as text
  std::optional<Json> schema;  // json_schema
  bool schema_is_strict = false;
  std::string regex;
  std::optional<bool> thinking;
  std::optional<std::string> effort_name;
  std::optional<int32_t> effort_number;
  std::optional<double> temperature, top_p, presence_penalty, frequency_penalty;
  std::optional<uint64_t> n, seed;
  bool has_stop = false, stop_is_single = false;
  bool has_stream_options = false;
  bool clamps_max_tokens = false;  // lower max_tokens to the limit instead of rejecting it
  std::string json_word_message;   // when json_object is asked for without the word
};

/// Names that reasoning_effort may have.
bool read_effort(BodyReader& reader, const Json& object, const char* key, const ApiPolicy& policy,
                 RequestDraft& draft);

/// thinking: {"type": …}.
void read_thinking(BodyReader& reader, const Json& body, RequestDraft& draft);

/// temperature, top_p, penalties, stop …; fields common to chat and completions.
void read_extensions(BodyReader& reader, const Json& body, const ApiPolicy& policy, SamplingFields& sampling);

std::optional<ApiError> check_model(const std::string& model, const ApiPolicy& policy);

std::optional<ApiError> check_stop(const std::vector<std::string>& stop, bool is_single);

/// Ranges of the common sampling fields, in the official order of checks; fills request.sampling.
std::optional<ApiError> resolve_sampling(RequestDraft& draft, const ApiPolicy& policy);

/// Tools, response format, mode, constraint, parser options, sampling: everything after the messages.
ApiResult<ChatRequest> finish_request(RequestDraft draft, const ApiPolicy& policy);

/// The result of a parser as the policy wants it: the official form has no field names in errors.
template <class T>
ApiResult<T> in_policy_form(ApiResult<T> result, const ApiPolicy& policy) {
  if (result.ok() || policy.names_fields) return result;
  ApiError error = result.error();
  error.param.clear();
  return error;
}

/// True if "json" stands somewhere in the text of a message, in any case.
bool mentions_json(const std::vector<text::Message>& messages);

/// An image by URL; nullopt unless it is http(s) or an image data URL.
std::optional<text::ImageInput> image_from_url(const std::string& url, const std::string& detail,
                                               const std::string& path);

}  // namespace rorqual::api
