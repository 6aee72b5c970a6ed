// SPDX-License-Identifier: Apache-2.0
#include "kl/agentic_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "kl/agentic_text_agents.h"
#include "kl/agentic_text_session.h"

namespace rorqual::kl {
namespace {

constexpr size_t kMaxFileLines = 2500;
constexpr size_t kWorkspaceFiles = 5;
constexpr std::string_view kControlMark = "｜";  // no file may hold the markers of the chat format

/// Half-open ranges of files that belong to one package.
std::vector<std::pair<size_t, size_t>> package_ranges(std::span<const SourceFile> files) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (size_t begin = 0; begin < files.size();) {
    size_t end = begin;
    while (end < files.size() && files[end].package == files[begin].package) ++end;
    if (end - begin >= 3) ranges.emplace_back(begin, end);
    begin = end;
  }
  return ranges;
}

std::vector<SourceFile> usable(std::span<const SourceFile> files) {
  std::vector<SourceFile> out;
  for (const auto& file : files) {
    const auto lines = static_cast<size_t>(std::count(file.text.begin(), file.text.end(), '\n'));
    const bool is_new = std::none_of(out.begin(), out.end(), [&](const SourceFile& other) {
      return other.package == file.package && other.path == file.path;
    });
    if (is_new && lines >= 30 && lines <= kMaxFileLines &&
        file.text.find(kControlMark) == std::string::npos) {
      out.push_back(file);
    }
  }
  return out;
}

std::string render(Session& session) {
  text::Conversation conversation;
  conversation.messages = std::move(session.messages);
  conversation.thinking = session.agent.thinking;
  conversation.tool_schemas = session.agent.tool_schemas;
  conversation.effort = session.effort;
  conversation.add_bos = false;
  conversation.add_generation_prompt = false;
  return text::render_chat(conversation).text;
}

}  // namespace

std::vector<AgenticSession> agentic_sessions(std::span<const SourceFile> files, int64_t bytes) {
  const auto sources = usable(files);
  const auto ranges = package_ranges(sources);
  RORQUAL_CHECK(!ranges.empty());
  std::vector<AgenticSession> sessions;
  ReadCursors cursors;
  int64_t total = 0;
  for (uint64_t number = 0; total < bytes; ++number) {
    CorpusRandom random(0x41476E54ULL + number);
    // Kinds and packages take turns so that no prefix of the text lacks one.
    const size_t kind = number % kAgentCount;
    const auto [begin, end] = ranges[(number + number / ranges.size()) % ranges.size()];
    Session session{.kind = kind, .agent = make_agent(kind, random), .random = random, .cursors = cursors};
    std::set<size_t> chosen;
    const size_t count = std::min(end - begin, 3 + session.random.below(kWorkspaceFiles - 2));
    while (chosen.size() < count) chosen.insert(begin + session.random.below(end - begin));
    for (const size_t index : chosen) session.workspace.emplace_back(sources[index]);
    session.package = sources[begin].package;
    session.effort = static_cast<int32_t>(25 * (1 + session.random.below(4)));
    session.say(text::Role::system, system_prompt(kind, sources[begin], session.random));
    run_tasks(session);
    if (session.messages.size() < 3) continue;  // no task fitted these files
    AgenticSession done{.style = session.agent.name, .text = render(session)};
    total += static_cast<int64_t>(done.text.size());
    sessions.push_back(std::move(done));
  }
  return sessions;
}

}  // namespace rorqual::kl
