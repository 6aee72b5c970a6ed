// SPDX-License-Identifier: Apache-2.0
// Six kinds of coding agents: the same steps, each with its own tools, argument names and forms of results.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kl/agentic_text_workspace.h"
#include "text/chat_encoder.h"

namespace rorqual::kl {

enum class StepKind : uint8_t { list, read, find, outline, replace, insert, write };

/// What an agent does with its workspace.
struct Step {
  StepKind kind = StepKind::list;
  size_t file = 0;             // index in the workspace; not for list and write
  size_t first = 1, last = 1;  // read: lines; insert: before line `first`
  std::string old_text = {};   // find, replace: what; write: path
  std::string new_text = {};   // replace, insert, write
};

struct Agent {
  std::string_view name;
  bool thinking = true;
  std::vector<std::string> tool_schemas;
};

/// Kinds of agents: [0, kAgentCount).
inline constexpr size_t kAgentCount = 6;
Agent make_agent(size_t kind, CorpusRandom& random);

/// Several sentences: who it is, where it works, a few rules.
std::string system_prompt(size_t kind, const SourceFile& sample, CorpusRandom& random);

/// The call with the arguments that this kind of agent uses.
text::ToolCall tool_call(size_t kind, const Step& step, std::span<const WorkFile> workspace);

/// Does the step to the workspace and returns what the tool prints.
std::string tool_result(size_t kind, const Step& step, std::vector<WorkFile>& workspace);

}  // namespace rorqual::kl
