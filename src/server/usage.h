// SPDX-License-Identifier: Apache-2.0
// Token counts of an answer as the API gives them, and what the engine tells of reuse and speculation beside
// them. docs/api.md#usage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "prefix/miss.h"
#include "runtime/engine.h"
#include "server/json_writer.h"
#include "text/tokenizer.h"

namespace rorqual::server {

/// Figures of all choices together; the miss is that of the first.
struct ReuseReport {
  int64_t cached_tokens = 0, disk_tokens = 0, replayed_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  int64_t preemptions = 0, trim_rows = 0;
  std::optional<prefix::MissReport> miss;
  std::string token_text, kept_token_text;  // of the miss, if it has the tokens

  /// `is_first_of_prompt`: choices of one prompt beyond the first find what the first one left.
  void add(const runtime::FinishInfo& info, bool is_first_of_prompt);
};

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
};

/// `reuse` adds our own object `rorqual`; null = without it.
void write_usage(JsonWriter& json, const Usage& usage, const ReuseReport* reuse = nullptr);

/// Our own object by itself.
void write_reuse(JsonWriter& json, const ReuseReport& reuse);

/// Why the prompt was not reused further, as one line for the log; empty if there is nothing to say.
std::string miss_line(const prefix::MissReport& miss, int64_t cached_tokens,
                      const text::Tokenizer& tokenizer);

/// True for a miss that someone should see: a long common beginning that could not be used to its end.
bool is_notable(const prefix::MissReport& miss, int64_t cached_tokens);

}  // namespace rorqual::server
