// SPDX-License-Identifier: Apache-2.0
// One scripted session: tasks of a user and what an agent does about them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kl/agentic_text_agents.h"

namespace rorqual::kl {

/// Where the next excerpt of a file begins (by package and path), so that sessions do not show the same lines
/// again and again.
using ReadCursors = std::map<std::string, size_t>;

/// A conversation under construction. One thread.
struct Session {
  size_t kind = 0;
  Agent agent;
  CorpusRandom random;
  ReadCursors& cursors;
  std::string_view package = {};
  std::vector<WorkFile> workspace = {};
  std::vector<text::Message> messages = {};
  int calls = 0;
  int32_t effort = 75;

  void say(text::Role role, std::string content);

  /// An assistant turn with calls (in parallel if several) and the results that follow.
  void act(std::string thought, const std::vector<Step>& steps, std::string preface = {});
  void answer(std::string thought, std::string content);
  std::string pick(std::initializer_list<std::string_view> phrases);

  /// The next excerpt of a file.
  Step excerpt(size_t file, size_t lines);
};

/// Four to six tasks; those that the files do not allow are left out.
void run_tasks(Session& session);

}  // namespace rorqual::kl
