// SPDX-License-Identifier: Apache-2.0
// Fields of structured_outputs.
#include "api/structured_outputs.h"

#include <utility>

#include "text/json_text.h"

namespace rorqual::api {

void read_structured_outputs(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                             Constraint& constraint) {
  const Json* outputs = policy.extensions ? reader.find(body, "structured_outputs") : nullptr;
  if (outputs == nullptr || !reader.expect_object(*outputs, "a map")) return;
  const auto scope = reader.enter("structured_outputs");
  if (constraint.kind != Constraint::Kind::none) {
    reader.fail(
        "field `structured_outputs`: cannot be used with a response_format that is a constraint, too");
  }
  int count = 0;
  for (const auto& [key, kind] : {std::pair{"json", Constraint::Kind::json},
                                  {"regex", Constraint::Kind::regex},
                                  {"choice", Constraint::Kind::choice},
                                  {"grammar", Constraint::Kind::grammar},
                                  {"structural_tag", Constraint::Kind::structural_tag}}) {
    const Json* value = reader.find(*outputs, key);
    if (value == nullptr) continue;
    ++count;
    constraint.kind = kind;
    constraint.text =
        value->is_string() ? value->get<std::string>() : text::json_text(*value, text::JsonStyle::compact);
    if (constraint.text.empty()) reader.fail(std::string("field `structured_outputs.") + key + "`: empty");
  }
  if (reader.boolean_or(*outputs, "json_object", false)) {
    ++count;
    constraint.kind = Constraint::Kind::json;
  }
  constraint.compact = reader.boolean_or(*outputs, "disable_any_whitespace", false);
  if (reader.find(*outputs, "whitespace_pattern") != nullptr) {
    reader.fail("field `structured_outputs.whitespace_pattern`: not supported; disable_any_whitespace is");
  }
  if (count != 1) reader.fail("field `structured_outputs`: exactly one kind of constraint is expected");
}

void read_response_constraint(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                              Constraint& constraint) {
  const Json* format = policy.extensions ? reader.find(body, "response_format") : nullptr;
  if (format == nullptr || !reader.expect_object(*format, "an object with field `type`")) return;
  const std::string type =
      reader.require_variant(*format, "type", {"json_object", "json_schema", "structural_tag", "text"});
  if (type == "json_object") constraint.kind = Constraint::Kind::json;
  if (type == "structural_tag") {
    constraint.kind = Constraint::Kind::structural_tag;
    constraint.text = text::json_text(*format, text::JsonStyle::compact);
  }
  if (type != "json_schema") return;
  constraint.kind = Constraint::Kind::json;
  const Json* holder = reader.require(*format, "json_schema");
  if (holder == nullptr || !reader.expect_object(*holder, "a named schema")) return;
  const Json* schema = reader.require(*holder, "schema");
  if (schema != nullptr) constraint.text = text::json_text(*schema, text::JsonStyle::compact);
}

}  // namespace rorqual::api
