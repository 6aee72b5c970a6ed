// SPDX-License-Identifier: Apache-2.0
// Constraints of requests.
#include "server/constraints.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace rorqual::server {

namespace {

using api::ApiError;
using api::ApiResult;
using Kind = api::Constraint::Kind;
using SpecKind = grammar::ConstraintSpec::Kind;

SpecKind spec_kind(Kind kind) {
  switch (kind) {
    case Kind::regex:
      return SpecKind::regex;
    case Kind::choice:
      return SpecKind::choice;
    case Kind::grammar:
      return SpecKind::grammar;
    case Kind::structural_tag:
      return SpecKind::structural_tag;
    case Kind::tool_call:
    case Kind::tool_call_required:
      return SpecKind::tools;
    case Kind::none:
    case Kind::json:
      break;
  }
  return SpecKind::json;
}

/// The field that the message is about.
std::string field_of(Kind kind) {
  if (kind == Kind::tool_call || kind == Kind::tool_call_required) return "tools";
  return kind == Kind::json ? "response_format or structured_outputs.json"
                            : std::string("structured_outputs.") + api::Constraint{kind, {}}.kind_name();
}

ApiResult<std::optional<grammar::CompiledConstraint>> compile(const api::Constraint& constraint,
                                                              grammar::ConstraintSpec spec,
                                                              grammar::ConstraintPlace place,
                                                              const Backend& backend) {
  spec.kind = spec_kind(constraint.kind);
  spec.text = constraint.enforced_text.empty() ? constraint.text : constraint.enforced_text;
  spec.space = constraint.compact ? grammar::JsonSpace::compact : grammar::JsonSpace::any;
  auto compiled = backend.constraints->compile(spec, place);
  if (!compiled.ok()) {
    const Error& error = compiled.error();
    ApiError out =
        ApiError::conversion("Invalid constraint in " + field_of(constraint.kind) + ": " + error.message() +
                             (error.hint().empty() ? "" : " (" + error.hint() + ")"));
    if (error.code() == Code::out_of_memory) out.http_status = 503;
    return out;
  }
  for (const std::string& note : compiled->notes()) spdlog::debug("grammar  not enforced: {}", note);
  return std::optional<grammar::CompiledConstraint>(*std::move(compiled));
}

/// A grammar ends a text where it ends; a longer one is not possible.
std::optional<ApiError> refuse_min_tokens(const api::SamplingFields& sampling, bool is_optional) {
  if (sampling.min_tokens <= 0 || is_optional) return std::nullopt;
  return ApiError::conversion(
      "min_tokens cannot be used with a constraint on the output: the constraint decides where "
      "the answer ends.");
}

}  // namespace

ApiResult<std::optional<grammar::CompiledConstraint>> compile_constraint(const api::ChatRequest& request,
                                                                         const Backend& backend) {
  const Kind kind = request.constraint.kind;
  if (kind == Kind::none) return std::optional<grammar::CompiledConstraint>();
  if (auto error = refuse_min_tokens(request.sampling, kind == Kind::tool_call)) return *std::move(error);
  grammar::ConstraintPlace place;
  const text::InitialStage stage = request.parsing.initial_stage;
  place.after_reasoning =
      stage == text::InitialStage::reasoning || stage == text::InitialStage::reasoning_continuation;
  if (kind == Kind::tool_call_required) {
    place.calls = request.parsing.starts_in_tool_calls ? grammar::ConstraintPlace::Calls::block_opened
                                                       : grammar::ConstraintPlace::Calls::required;
  }
  grammar::ConstraintSpec spec;
  spec.single_call = !request.parallel_tool_calls;
  return compile(request.constraint, std::move(spec), place, backend);
}

ApiResult<std::optional<grammar::CompiledConstraint>> compile_constraint(
    const api::CompletionRequest& request, const Backend& backend) {
  if (request.constraint.kind == Kind::none) return std::optional<grammar::CompiledConstraint>();
  if (auto error = refuse_min_tokens(request.sampling, false)) return *std::move(error);
  return compile(request.constraint, {}, {}, backend);
}

}  // namespace rorqual::server
