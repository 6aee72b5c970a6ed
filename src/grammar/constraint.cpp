// SPDX-License-Identifier: Apache-2.0
// Kinds of constraints, and the cache of compiled ones.
#include "grammar/constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/sha256.h"
#include "grammar/compiled_constraint.h"
#include "grammar/tag_grammar.h"
#include "grammar/tool_grammar.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace rorqual::grammar {

namespace {

constexpr int kCompileThreads = 2;
constexpr const char* kMarker = "｜DSML｜";
constexpr const char* kThinkEnd = "</think>";

Result<std::string> json_grammar(const ConstraintSpec& spec) {
  Json schema{{"type", "object"}};
  if (!spec.text.empty()) {
    std::string problem;
    auto parsed = text::parse_json(spec.text, &problem);
    if (!parsed) return Error(Code::invalid_argument, "the schema is no JSON: " + problem);
    schema = *std::move(parsed);
  }
  Rules rules;
  SchemaGrammar grammar(std::move(schema), Unenforced::refuse, spec.space, rules);
  RORQUAL_TRY_ASSIGN(const std::string root, grammar.root_value());
  if (rules.is_too_large()) {
    return Error(Code::invalid_argument,
                 fmt::format("the schema is too large: more than {} rules", Rules::kMaxRules));
  }
  return rules.text(root);
}

Result<std::string> choice_grammar(const std::string& text) {
  const auto list = text::parse_json(text);
  const bool is_list =
      list && list->is_array() && !list->empty() && list->size() <= kMaxChoices &&
      std::all_of(list->begin(), list->end(), [](const Json& item) { return item.is_string(); });
  if (!is_list) {
    return Error(Code::invalid_argument, fmt::format("a choice is a list of 1 to {} texts", kMaxChoices));
  }
  std::vector<std::string> choices;
  for (const Json& item : *list) choices.push_back(literal(item.get<std::string>()));
  return Rules().text(choice(choices));
}

Result<std::string> regex_grammar(const std::string& text) {
  RORQUAL_TRY_ASSIGN(const RegexNode node, parse_regex(text, RegexMatch::whole));
  return Rules().text(regex_expression(node, RegexText::raw));
}

/// A grammar of a client. Macros over token ids could let control tokens through.
Result<std::string> client_grammar(const std::string& text) {
  if (text.find("::=") == std::string::npos) {
    return Error(Code::invalid_argument, "the grammar has no rule 'name ::= …'",
                 "write EBNF or GBNF with the start rule root; Lark grammars are not supported");
  }
  RORQUAL_TRY_ASSIGN(const std::string normal, CompiledGrammar::normal_text(text));
  bool is_quoted = false, is_class = false;
  for (size_t i = 0; i < normal.size(); ++i) {
    const char c = normal[i];
    if (c == '\\') {
      ++i;
    } else if (c == '"' && !is_class) {
      is_quoted = !is_quoted;
    } else if ((c == '[' || c == ']') && !is_quoted) {
      is_class = c == '[';
    } else if (!is_quoted && !is_class &&
               normal.compare(i, 5, "Token") == 0) {  // ExcludeToken, TokenTagDispatch
      const size_t end = normal.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", i);
      if (end != std::string::npos && normal[end] == '(')
        return Error(Code::unsupported, "grammars over token ids are not supported",
                     "describe the text instead");
    }
  }
  return text;
}

Result<std::string> raw_grammar_text(const ConstraintSpec& spec, int32_t marker,
                                     std::vector<std::string>& notes) {
  using Kind = ConstraintSpec::Kind;
  switch (spec.kind) {
    case Kind::json:
      return json_grammar(spec);
    case Kind::regex:
      return regex_grammar(spec.text);
    case Kind::choice:
      return choice_grammar(spec.text);
    case Kind::grammar:
      return client_grammar(spec.text);
    case Kind::structural_tag:
      return tag_grammar(spec.text, spec.space);
    case Kind::tools: {
      RORQUAL_TRY_ASSIGN(ToolGrammar tools, tool_grammar(spec.text, marker, spec.single_call));
      notes = std::move(tools.notes);
      return std::move(tools.text);
    }
  }
  return Error(Code::internal, "a constraint of no kind");
}

std::shared_ptr<const std::vector<uint32_t>> space_tokens(const text::Tokenizer& tokenizer,
                                                          int64_t vocab_size) {
  auto mask = std::make_shared<std::vector<uint32_t>>((static_cast<size_t>(vocab_size) + 31) / 32);
  const auto num_known = static_cast<int32_t>(std::min<int64_t>(vocab_size, tokenizer.vocab_size()));
  for (int32_t id = 0; id < num_known; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || bytes.find_first_not_of(" \t\r\n") != std::string_view::npos) continue;
    (*mask)[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  }
  return mask;
}

std::string cache_key(const ConstraintSpec& spec) {
  return fmt::format("{} {} {} {}", static_cast<int>(spec.kind), static_cast<int>(spec.space),
                     spec.single_call, spec.text);
}

}  // namespace

Result<std::string> grammar_text(const ConstraintSpec& spec, int32_t marker,
                                 std::vector<std::string>& notes) {
  if (spec.text.size() > kMaxConstraintBytes) {
    return Error(Code::invalid_argument, fmt::format("{} bytes of constraint; at most {} are possible",
                                                     spec.text.size(), kMaxConstraintBytes));
  }
  if (!text::is_valid_utf8(spec.text))
    return Error(Code::invalid_argument, "the constraint is not valid UTF-8");
  return raw_grammar_text(spec, marker, notes);
}

ConstraintCompiler::ConstraintCompiler(const text::Tokenizer& tokenizer, int64_t vocab_size,
                                       int32_t eos_token_id, size_t cache_bytes)
    : tokenizer_(tokenizer),
      marker_(tokenizer.added_token(kMarker).value_or(-1)),
      think_end_(tokenizer.added_token(kThinkEnd).value_or(-1)),
      table_(
          std::make_shared<const TokenTable>(tokenizer, TokenTable::Ids{vocab_size, eos_token_id, marker_})),
      spaces_(space_tokens(tokenizer, vocab_size)),
      cache_bytes_(cache_bytes) {}

ConstraintCompiler::~ConstraintCompiler() = default;

Result<ConstraintCompiler::Shared> ConstraintCompiler::compile_now(const ConstraintSpec& spec) {
  const bool is_tools = spec.kind == ConstraintSpec::Kind::tools;
  if (is_tools && marker_ < 0) {
    return Error(
        Code::unsupported,
        fmt::format("this model's tokenizer has no token '{}'; tool calls cannot be enforced", kMarker));
  }
  auto shared = std::make_shared<CompiledConstraint::Shared>();
  RORQUAL_TRY_ASSIGN(const std::string text, grammar_text(spec, marker_, shared->notes));
  RORQUAL_TRY_ASSIGN(shared->grammar, CompiledGrammar::compile(table_, text, kCompileThreads));
  shared->is_tools = is_tools;
  shared->marker = marker_;
  shared->think_end = think_end_;
  shared->eos = table_->ids().eos;
  shared->tokenizer = &tokenizer_;
  shared->spaces = spaces_;
  return Shared(std::move(shared));
}

ConstraintCompiler::Shared ConstraintCompiler::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  ++stats_.hits;
  return found->second->second;
}

void ConstraintCompiler::keep(const std::string& key, Shared value) {
  const std::lock_guard lock(mutex_);
  ++stats_.compilations;
  const auto cost = [](const auto& entry) {
    return 2 * entry.first.size() + entry.second->grammar->memory_bytes();
  };
  recent_.emplace_front(key, std::move(value));
  by_key_[key] = recent_.begin();
  stats_.bytes += cost(recent_.front());
  while (stats_.bytes > cache_bytes_ && !recent_.empty()) {
    stats_.bytes -= cost(recent_.back());
    by_key_.erase(recent_.back().first);
    recent_.pop_back();
  }
}

Result<CompiledConstraint> ConstraintCompiler::compile(const ConstraintSpec& spec, ConstraintPlace place) {
  if (place.after_reasoning && think_end_ < 0) {
    return Error(Code::unsupported, fmt::format("this model's tokenizer has no token '{}'", kThinkEnd));
  }
  const std::string key = cache_key(spec);
  if (Shared known = find(key)) return CompiledConstraint(std::move(known), place);
  const std::lock_guard lock(compile_mutex_);
  if (Shared known = find(key)) return CompiledConstraint(std::move(known), place);
  RORQUAL_TRY_ASSIGN(Shared compiled, compile_now(spec));
  keep(key, compiled);
  return CompiledConstraint(std::move(compiled), place);
}

ConstraintCompiler::Stats ConstraintCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace rorqual::grammar
