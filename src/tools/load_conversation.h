// SPDX-License-Identifier: Apache-2.0
// A recorded conversation with tools as chat requests, one per turn; and the longest prefix that a prompt has
// in common with earlier ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

/// A JSON file {"name", "tools", "fields", "messages"}: a turn is what stands before each message of the
/// assistant; the recorded answers are sent as history in later turns.
class AgentConversation {
 public:
  /// Errors: not_found, corrupt_data.
  static Result<AgentConversation> read(const std::string& path);

  int64_t num_turns() const { return static_cast<int64_t>(turn_ends_.size()); }

  const std::string& name() const { return name_; }

  /// The body of turn 0, 1, …, streamed, with usage and token ids. `session` is written at the beginning of
  /// the system message.
  std::string body(int64_t turn, const std::string& session, const std::string& model,
                   int64_t output_tokens) const;

 private:
  AgentConversation() = default;

  std::string name_;
  std::string fields_;                 // JSON object: tools and other fields
  std::vector<std::string> messages_;  // JSON objects
  std::vector<size_t> turn_ends_;      // messages of each turn
};

/// What a server may have kept: prompts with the answers that were computed for them.
class RetainedPrompts {
 public:
  /// The last token of an answer was never fed to the model, so it is left out.
  void add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& output);

  /// Tokens that `prompt` has in common with the most similar kept one, in whole blocks and without its last
  /// token, which is always computed.
  int64_t common_tokens(const std::vector<int32_t>& prompt, int64_t block_tokens) const;

  /// JSON files of the kept ids. read: a file that is not there is no error.
  Status read(const std::string& path);
  Status write(const std::string& path) const;

 private:
  std::vector<std::vector<int32_t>> kept_;
};

}  // namespace rorqual::tools
