// SPDX-License-Identifier: Apache-2.0
// Tools of a request: name rules, JSON Schema checks, strict normalisation, prompt lines and constraint text.
// docs/api.md#tools.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/api_error.h"

namespace rorqual::api {

struct Tool {
  std::string name;
  std::optional<std::string> description;
  std::string parameters_json;     // JSON text as sent, "" if absent or null
  std::string enforced_json = {};  // strict: with the definitions that the normal form leaves out; "" = none
  std::optional<bool> strict;
  bool defer_loading = false;
  std::string function_json;  // if set, printed in the prompt in place of the three official fields
};

/// Name rules; `where` is e.g. "tools[0].function.name".
std::optional<ApiError> check_tool_name(const std::string& name, const std::string& where);

/// Unique names and schemas of all tools; strict ones are replaced by their normal form. names_only: the
/// tools are not active.
std::optional<ApiError> check_and_normalise_tools(std::vector<Tool>& tools, bool names_only);

/// Strict tools must be mixed neither with other tools nor with a response format.
std::optional<ApiError> check_strict_use(const std::vector<Tool>& tools, bool has_response_format);

/// Strict normal form of a schema (docs/api.md#strict). `is_tool` selects the texts and whether an empty
/// object is allowed at the top.
ApiResult<nlohmann::ordered_json> normalise_strict_schema(const nlohmann::ordered_json& schema, bool is_tool);

/// What is wrong with `schema` as a JSON Schema, or "".
std::string schema_problem(const nlohmann::ordered_json& schema);

/// Prompt lines, one per tool.
std::vector<std::string> tool_lines(const std::vector<Tool>& tools);

/// Compact JSON array of function tools, for the constraint: in the official form, or with the schemas that
/// are to be enforced.
std::string tool_constraint(const std::vector<Tool>& tools, bool for_grammar);

/// Compact JSON of `normal`, the strict normal form of `schema`, with the definitions ($defs, definitions)
/// that the official form leaves out though references to them stay. "" if there are none.
std::string with_definitions(const nlohmann::ordered_json& normal, const nlohmann::ordered_json& schema,
                             bool is_tool);

}  // namespace rorqual::api
