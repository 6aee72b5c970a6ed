// SPDX-License-Identifier: Apache-2.0
// Transcripts of coding agents in the model's own chat format: system prompt with tools, tasks, reasoning,
// tool calls, and tool results that are computed on real files. Not recorded from any model: what an
// assistant says is put together from phrases and from the computed facts, so every stated number is true.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kl/corpus_build.h"

namespace rorqual::kl {

struct AgenticSession {
  std::string_view style;  // which kind of agent
  std::string text;        // rendered, control tokens as text, no begin-of-sentence token
};

/// Sessions until they hold `bytes` together. A pure function of files and bytes; a larger `bytes` only
/// appends sessions. Needs at least one package with three files.
std::vector<AgenticSession> agentic_sessions(std::span<const SourceFile> files, int64_t bytes);

}  // namespace rorqual::kl
