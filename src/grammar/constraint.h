// SPDX-License-Identifier: Apache-2.0
// Constraints of a reply: from what a client asked for to the masks that the engine applies.
// docs/constraints.md.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/schema_grammar.h"
#include "grammar/token_matcher.h"
#include "runtime/engine.h"
#include "text/tokenizer.h"

namespace rorqual::grammar {

inline constexpr size_t kMaxConstraintBytes = 512 * 1024;  // of what the client sends
inline constexpr size_t kMaxChoices = kMaxEnumValues;

/// What must hold of a reply.
struct ConstraintSpec {
  enum class Kind : uint8_t {
    json,            // text: schema; "" = any object
    regex,           // text: the pattern, for the whole answer
    choice,          // text: JSON list of strings
    grammar,         // text: EBNF or GBNF, start rule root
    structural_tag,  // text: JSON
    tools,           // text: JSON list of tools
  };
  Kind kind = Kind::json;
  std::string text;
  JsonSpace space = JsonSpace::any;
  bool single_call = false;  // tools: one call, not more
};

/// Where in the reply it begins to hold.
struct ConstraintPlace {
  bool after_reasoning = false;  // the reply begins inside the reasoning: at the content
  enum class Calls : uint8_t {
    optional,      // tools: where the model opens a block by itself
    required,      // tools: at the begin of the content, or where the model opens a block in the reasoning
    block_opened,  // tools: the prompt has opened the block
  };
  Calls calls = Calls::optional;
};

/// A constraint that is ready to be applied; one per request, for any number of replies.
class CompiledConstraint {
 public:
  /// The masks of one reply. Each reply needs its own.
  std::shared_ptr<runtime::TokenConstraint> for_reply() const;

  /// What the client's schemas say and this does not enforce; tools only.
  const std::vector<std::string>& notes() const;

 private:
  friend class ConstraintCompiler;
  friend class ReplyConstraint;
  struct Shared;

  CompiledConstraint(std::shared_ptr<const Shared> shared, ConstraintPlace place)
      : shared_(std::move(shared)), place_(place) {}

  std::shared_ptr<const Shared> shared_;
  ConstraintPlace place_;
};

/// Compiles constraints for one tokenizer and keeps the last ones. Any thread; one compilation at a time, so
/// that its memory and processor time are bounded whatever clients send.
class ConstraintCompiler {
 public:
  static constexpr size_t kDefaultCacheBytes = 256u << 20;

  ConstraintCompiler(const text::Tokenizer& tokenizer, int64_t vocab_size, int32_t eos_token_id,
                     size_t cache_bytes = kDefaultCacheBytes);
  ~ConstraintCompiler();

  /// Errors: invalid_argument and unsupported as the grammars give them, with the path of the fault, and for
  /// kMaxConstraintBytes; unsupported for tools with a tokenizer that lacks the markers.
  Result<CompiledConstraint> compile(const ConstraintSpec& spec, ConstraintPlace place);

  struct Stats {
    int64_t compilations = 0, hits = 0;
    size_t bytes = 0;  // of compiled grammars kept
  };

  Stats stats() const;

 private:
  using Shared = std::shared_ptr<const CompiledConstraint::Shared>;
  Result<Shared> compile_now(const ConstraintSpec& spec);
  Shared find(const std::string& key);
  void keep(const std::string& key, Shared value);

  const text::Tokenizer& tokenizer_;
  int32_t marker_ = -1, think_end_ = -1;  // -1: the tokenizer has none
  std::shared_ptr<const TokenTable> table_;
  std::shared_ptr<const std::vector<uint32_t>> spaces_;
  size_t cache_bytes_;
  std::mutex compile_mutex_;
  mutable std::mutex mutex_;                          // of what follows
  std::list<std::pair<std::string, Shared>> recent_;  // used last comes first
  std::unordered_map<std::string, decltype(recent_)::iterator> by_key_;
  Stats stats_;
};

/// Grammar text of a specification. `marker`: id of ｜DSML｜, for tools. For tests and for measuring.
Result<std::string> grammar_text(const ConstraintSpec& spec, int32_t marker, std::vector<std::string>& notes);

}  // namespace rorqual::grammar
