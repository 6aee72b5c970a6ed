// SPDX-License-Identifier: Apache-2.0
// An engine without a model: answers come from a script, so that servers, parsers and tools can be tested
// exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

struct ScriptedOptions {
  int64_t max_num_queued_reqs = 0;  // unfinished requests, 0 = no limit
  int64_t max_logprobs = 20;        // -1 = no limit
};

/// An engine that answers the n-th accepted request (from 0) with line n of the script, modulo the number of
/// lines.
///
/// Script    JSON lines; blank lines are skipped. Fields of a line, all but `tokens` optional:
///             tokens          [id…]        the answer; its end stands for EOS
///             first_pause_ms  number (0)   before the first token (the "prefill")
///             pause_ms        number (0)   before every later step
///             step_tokens     integer (1)  tokens of one step
///             logprobs        [x…]         of the chosen tokens, by position (absent: -1)
///             top_logprobs    [[[id, x]…]…]  alternatives by position, descending (absent: made up: id + 1,
///                                          id + 2 …)
///             error           text         the request fails with it (internal) after the tokens
///             drafts          integer (0)  drafted and verified in each step after the first, of which one
///             less
///                                          than the step's tokens were accepted
///             cached_tokens, disk_tokens, replayed_tokens, preemptions, replay_trim   integers (0), reported
///             miss            {"reason", "position", "common_tokens", "token", "kept_token"}, reported
/// Times     Steps follow the script's rhythm without drift; a step that is a whole pause late begins it
/// anew.
///           Steps that are due within a millisecond are played together.
/// Semantics as the local engine: max_tokens, min_tokens, ignore_eos, stop_token_ids, cancel, drain,
/// prompt_logprobs (made up), forced_tokens (the script's token is the best one of the row). An end (EOS, a
/// stop id) before min_tokens is skipped. Where EOS must not end the answer the script starts again from its
/// first token. Each request runs by itself: pauses of one do not delay another. Errors: invalid_argument
/// (line number and what is wrong).
Result<std::unique_ptr<Engine>> make_scripted_engine(std::string_view script, EngineInfo info,
                                                     ScriptedOptions options);

/// The same from a file. Errors: not_found, io, and those of make_scripted_engine with the path.
Result<std::unique_ptr<Engine>> load_scripted_engine(const std::string& path, EngineInfo info,
                                                     ScriptedOptions options);

}  // namespace rorqual::runtime
