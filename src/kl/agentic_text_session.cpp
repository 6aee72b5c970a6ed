// SPDX-License-Identifier: Apache-2.0
#include "kl/agentic_text_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace rorqual::kl {
namespace {

/// `text` with {0}, {1} … filled in.
template <class... Args>
std::string filled(const std::string& text, const Args&... args) {
  return fmt::format(fmt::runtime(text), args...);
}

std::string code(std::string_view text) {
  return fmt::format("`{}`", text);
}

size_t pick_file(Session& session) {
  return session.random.below(session.workspace.size());
}

/// A file that defines something, or the one with most lines.
size_t pick_defining_file(Session& session) {
  const size_t begin = pick_file(session);
  for (size_t i = 0; i < session.workspace.size(); ++i) {
    const size_t file = (begin + i) % session.workspace.size();
    if (session.workspace[file].definitions().size() >= 3) return file;
  }
  return begin;
}

std::string line_list(const std::vector<Hit>& hits, size_t limit) {
  std::string out;
  for (size_t i = 0; i < hits.size() && i < limit; ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", hits[i].line);
  }
  if (hits.size() > limit) out += fmt::format(" and {} more", hits.size() - limit);
  return out;
}

void locate(Session& s) {
  const size_t file = pick_file(s);
  const auto& work = s.workspace[file];
  const auto name = frequent_identifier(work, s.random.next());
  if (name.empty()) return;
  s.say(text::Role::user,
        filled(s.pick({"Where is `{0}` used in {1}?", "List every line of {1} that mentions {0}.",
                       "I need all uses of {0} in {1}, with line numbers please.",
                       "Dove compare `{0}` in {1}? Mi servono i numeri di riga.",
                       "In welchen Zeilen von {1} steht `{0}`?", "¿En qué líneas de {1} aparece {0}?",
                       "Où est-ce que `{0}` est utilisé dans {1} ?", "{1} 里哪些行用到了 {0}?"}),
               name, work.path()));
  const auto hits = work.find(name);
  s.act(filled(s.pick({"A literal search for {0} in {1} is enough; the name is specific.",
                       "The user wants occurrences. One search in {1} for {0} gives the lines.",
                       "I search {1} instead of reading it: {0} is a plain identifier."}),
               name, work.path()),
        {{.kind = StepKind::find, .file = file, .old_text = name}});
  const Hit& first = hits.front();
  s.answer(filled(s.pick({"{0} lines. I give the numbers and what the first one does.",
                          "The search returned {0} matching lines, all in this file."}),
                  hits.size()),
           filled(s.pick({"{0} occurs in {1} lines of {2}: {3}.\n\nThe first is line {4}:\n\n```\n{5}\n```",
                          "{2}: {1} lines with {0} ({3}). Line {4} reads {5}",
                          "Found {1} lines with {0} in {2}.\n\n- lines: {3}\n- first: {4}, `{5}`"}),
                  code(name), hits.size(), code(work.path()), line_list(hits, 12), first.line, first.text));
}

void rename(Session& s) {
  const size_t file = pick_file(s);
  const auto name = frequent_identifier(s.workspace[file], s.random.next());
  if (name.empty()) return;
  const auto path = s.workspace[file].path();
  const bool has_underscore = name.find('_') != std::string::npos;
  const auto renamed = has_underscore ? name + s.pick({"_value", "_new", "_internal", "_v2"})
                                      : name + s.pick({"Value", "New", "Internal", "V2"});
  s.say(text::Role::user, filled(s.pick({"Rename {0} to {1} in {2}. Only there.",
                                         "Please change the name {0} into {1} everywhere in {2}.",
                                         "{0} is a misleading name. Call it {1} instead ({2}).",
                                         "Benenne {0} in {2} in {1} um und prüfe das Ergebnis."}),
                                 code(name), code(renamed), path));
  const auto hits = s.workspace[file].find(name);
  s.act(
      filled(
          s.pick({"First see how often {0} occurs and whether it is part of longer names.",
                  "Before replacing I look at all lines with {0}, in case it is a prefix of something else.",
                  "Check the occurrences of {0} first."}),
          name),
      {{.kind = StepKind::find, .file = file, .old_text = name}});
  s.act(filled(s.pick({"{0} lines, a plain replacement does it.",
                       "All {0} lines mean the same thing, so replace them in one go.",
                       "Nothing surprising in these {0} lines; replace."}),
               hits.size()),
        {{.kind = StepKind::replace, .file = file, .old_text = name, .new_text = renamed}},
        s.pick({"", "", "I replace it in one step.", "The name is unambiguous, so I replace it."}));
  s.act(s.pick({"Verify.", "One more search to be sure that the new name is there.", "Check the result."}),
        {{.kind = StepKind::find, .file = file, .old_text = renamed}});
  const auto after = s.workspace[file].find(renamed);
  s.answer(filled("Before {0} lines, after {1}.", hits.size(), after.size()),
           filled(s.pick({"Done: {0} is now {1} in {2} ({3} lines: {4}). Other files were not touched.",
                          "{2} uses {1} now. Lines changed: {4}.",
                          "Renamed {0} to {1}. The search afterwards shows {3} lines in {2}."}),
                  code(name), code(renamed), code(path), after.size(), line_list(after, 12)));
}

void count_definitions(Session& s) {
  const size_t file = pick_defining_file(s);
  const auto& work = s.workspace[file];
  const auto found = work.definitions();
  s.say(text::Role::user,
        filled(s.pick({"How many functions and types does {0} define?", "Give me an outline of {0}.",
                       "What is defined in {0}? Names only.", "Quante definizioni contiene {0}?",
                       "Which definitions does {0} have, and where does the last one start?"}),
               work.path()));
  s.act(s.pick({"The outline tool answers this directly.", "No need to read the file, the outline is enough.",
                ""}),
        {{.kind = StepKind::outline, .file = file}});
  std::string names;
  for (size_t i = 0; i < found.size() && i < 15; ++i) {
    names += fmt::format("\n{}. {} (line {})", i + 1, code(found[i].name), found[i].line);
  }
  if (found.empty()) {
    s.answer("Nothing listed.",
             filled("The outline of {0} is empty: it has {1} lines but no definition that the "
                    "tool knows.",
                    code(work.path()), work.lines().size()));
    return;
  }
  s.answer(filled("{0} entries, last at line {1}.", found.size(), found.back().line),
           filled(s.pick({"{0} has {1} definitions.{2}", "{1} definitions in {0}:{2}",
                          "I count {1} in {0}; the last one, {3}, starts at line {4}.{2}"}),
                  code(work.path()), found.size(), names, code(found.back().name), found.back().line));
}

void summarise(Session& s) {
  const size_t file = pick_file(s);
  const auto& work = s.workspace[file];
  s.say(text::Role::user,
        filled(s.pick({"What is {0} about? Read a part of it and tell me.",
                       "Have a look at {0} and summarise it.", "I have never seen {0}. What should I know?",
                       "Résume {0} en quelques points.", "Fasse zusammen, was in {0} steht.",
                       "请简单介绍一下 {0}。"}),
               work.path()));
  const Step read = s.excerpt(file, 30 + s.random.below(35));
  s.act(s.pick({"Read a piece, then the outline.", "I start with an excerpt and the list of definitions.",
                "Two calls: some lines for the style, and the outline for the structure."}),
        {read, {.kind = StepKind::outline, .file = file}});
  const auto found = work.definitions();
  const auto imports = work.imports();
  std::string points = fmt::format("- {} lines of {}, {} of them blank\n", work.lines().size(),
                                   work.language(), work.blank_lines());
  if (!imports.empty()) {
    points +=
        fmt::format("- depends on other units in {} lines, first `{}`\n", imports.size(), imports[0].text);
  }
  if (!found.empty()) {
    points += fmt::format("- {} definitions, from {} to {}\n", found.size(), code(found.front().name),
                          code(found.back().name));
  }
  points += fmt::format("- I read lines {} to {} closely", read.first, read.last);
  s.answer(s.pick({"Enough for a summary. Only state what I saw.",
                   "I keep to facts: size, dependencies, definitions.", ""}),
           filled(s.pick({"{0} in short:\n\n{1}", "Summary of {0}\n{1}", "What I found in {0}:\n{1}"}),
                  code(work.path()), points));
}

void sizes(Session& s) {
  s.say(text::Role::user,
        s.pick({"Which file is the largest here?", "Sort the files by length, longest first.",
                "Show me a table of the files with their lines.", "Qual è il file più lungo del progetto?",
                "What do we have in this checkout?", "一番長いファイルはどれですか。"}));
  s.act(s.pick({"List everything.", "The listing has the sizes.", "One listing is enough."}),
        {{.kind = StepKind::list}});
  std::vector<const WorkFile*> order;
  for (const auto& file : s.workspace) order.push_back(&file);
  std::stable_sort(order.begin(), order.end(), [](const WorkFile* a, const WorkFile* b) {
    return a->lines().size() > b->lines().size();
  });
  std::string table = "| file | lines | bytes |\n|---|---:|---:|\n";
  for (const auto* file : order) {
    table += fmt::format("| {} | {} | {} |\n", file->path(), file->lines().size(), file->size_bytes());
  }
  s.answer(filled("{0} is the longest with {1} lines.", order[0]->path(), order[0]->lines().size()),
           filled(s.pick({"{0} is the longest.\n\n{1}", "{1}\nThe longest one is {0}.", "{1}"}),
                  code(order[0]->path()), table));
}

void imports_as_json(Session& s) {
  size_t file = pick_file(s);
  for (size_t i = 0; i < s.workspace.size() && s.workspace[file].imports().empty(); ++i) {
    file = (file + 1) % s.workspace.size();
  }
  const auto& work = s.workspace[file];
  const auto imports = work.imports();
  if (imports.empty()) return;
  s.say(text::Role::user,
        filled(s.pick({"Give me the imports of {0} as a JSON array of objects with line and text.",
                       "Which modules does {0} pull in? JSON only, please.",
                       "Extract the dependencies of {0} as JSON: [{{\"line\": …, \"text\": …}}]."}),
               work.path()));
  const size_t last = std::min(imports.back().line + 2, std::min(work.lines().size(), imports[0].line + 70));
  s.act(filled(s.pick({"Imports stand at the top; read until line {0}.",
                       "Lines up to {0} should contain all of them.", "I read from the first import on."}),
               last),
        {{.kind = StepKind::read, .file = file, .first = imports[0].line, .last = last}});
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const auto& hit : imports) {
    if (hit.line <= last) array.push_back({{"line", hit.line}, {"text", hit.text}});
  }
  const bool fenced = s.random.below(2) == 0;
  const auto json = text::json_text(array);
  s.answer(filled("{0} entries.", array.size()), fenced ? fmt::format("```json\n{}\n```", json) : json);
}

void add_comment(Session& s) {
  const size_t file = pick_defining_file(s);
  const auto found = s.workspace[file].definitions();
  if (found.empty()) return;
  const auto definition = found[s.random.below(found.size())];
  const auto path = s.workspace[file].path();
  const auto comment =
      comment_line(s.workspace[file].language(),
                   filled(s.pick({"{0}: see the tests for its edge cases.", "Entry point {0}; keep it small.",
                                  "{0} is called from outside, do not change its arguments.",
                                  "Part of the public interface: {0}."}),
                          definition.name));
  s.say(text::Role::user, filled(s.pick({"Add this comment above {0} in {1}:\n\n{2}",
                                         "Put the line \"{2}\" directly before the definition of {0} ({1}).",
                                         "In {1}, {0} needs a note. Insert: {2}"}),
                                 code(definition.name), path, comment));
  const size_t last = std::min(definition.line + 18, s.workspace[file].lines().size());
  const size_t first = definition.line > 5 ? definition.line - 5 : 1;
  s.act(filled(s.pick({"I need the line of {0}.", "Find the definition of {0} first."}), definition.name),
        {{.kind = StepKind::find, .file = file, .old_text = definition.text}});
  s.act(filled("It starts at line {0}. Look at the surroundings before editing.", definition.line),
        {{.kind = StepKind::read, .file = file, .first = first, .last = last}});
  s.act(filled(s.pick({"Insert before line {0}.", "The new line becomes line {0}."}), definition.line),
        {{.kind = StepKind::insert, .file = file, .first = definition.line, .new_text = comment}});
  s.act(s.pick({"Check.", "Read the two lines back."}),
        {{.kind = StepKind::read, .file = file, .first = definition.line, .last = definition.line + 2}});
  s.answer(s.pick({"It is in place.", "The comment stands where it should."}),
           filled(s.pick({"The comment is now line {0} of {1}, right above {2}.",
                          "Done. {2} moved down by one line, to {3}.", "Inserted one line at {0} in {1}."}),
                  definition.line, code(path), code(definition.name), definition.line + 1));
}

void write_index(Session& s) {
  const auto path = s.pick({"FILES.md", "docs/index.md", "OVERVIEW.md", "notes/files.md"});
  if (std::any_of(s.workspace.begin(), s.workspace.end(),
                  [&](const WorkFile& file) { return file.path() == path; }))
    return;
  s.say(text::Role::user,
        filled(s.pick({"Write {0} with one line per file: name, language, number of lines.",
                       "Create {0}: a short index of this checkout.",
                       "Please add an overview of the files as {0}. Markdown list, nothing fancy."}),
               path));
  s.act(s.pick({"I need the file names and lengths first.", "List, then write."}),
        {{.kind = StepKind::list}});
  std::string content =
      filled(s.pick({"# Files of {0}\n\n", "# {0}\n\nWhat is where.\n\n", "# Index ({0})\n"}), s.package);
  for (const auto& file : s.workspace) {
    const auto found = file.definitions();
    content += fmt::format("- `{}`: {}, {} lines", file.path(), file.language(), file.lines().size());
    if (!found.empty())
      content += fmt::format("; defines {} and {} more", code(found[0].name), found.size() - 1);
    content += '\n';
  }
  s.act(s.pick({"Now write it.", "The content is clear, write the file.", ""}),
        {{.kind = StepKind::write, .old_text = path, .new_text = content}});
  s.answer("", filled(s.pick({"{0} is written: {1} bytes, {2} entries.", "Created {0} with {2} entries."}),
                      code(path), content.size(), s.workspace.size() - 1));
}

void compare_files(Session& s) {
  const size_t a = pick_file(s), b = (a + 1 + s.random.below(s.workspace.size() - 1)) % s.workspace.size();
  const auto &first = s.workspace[a], &second = s.workspace[b];
  s.say(text::Role::user,
        filled(s.pick({"Compare {0} and {1}: which one defines more, and do they share names?",
                       "Do {0} and {1} define anything with the same name?",
                       "Vergleiche {0} mit {1}: Gibt es gleiche Namen?"}),
               first.path(), second.path()));
  s.act(s.pick({"Both outlines at once.", "Two independent calls, so I make them together.",
                "Get both outlines, then compare."}),
        {{.kind = StepKind::outline, .file = a}, {.kind = StepKind::outline, .file = b}});
  const auto left = first.definitions(), right = second.definitions();
  std::string shared;
  for (const auto& definition : left) {
    const bool both = std::any_of(right.begin(), right.end(),
                                  [&](const Definition& other) { return other.name == definition.name; });
    if (both && shared.find(code(definition.name)) == std::string::npos)
      shared += (shared.empty() ? "" : ", ") + code(definition.name);
  }
  s.answer(filled("{0} against {1} definitions; shared: {2}.", left.size(), right.size(),
                  shared.empty() ? "none" : shared),
           filled(s.pick({"{0} has {1} definitions, {2} has {3}. Shared names: {4}.",
                          "| | definitions |\n|---|---|\n| {0} | {1} |\n| {2} | {3} |\n\nIn both: {4}."}),
                  code(first.path()), left.size(), code(second.path()), right.size(),
                  shared.empty() ? "none" : shared));
}

void longest_line(Session& s) {
  const size_t file = pick_file(s);
  const auto& work = s.workspace[file];
  const size_t line = work.longest_line();
  s.say(text::Role::user,
        filled(s.pick({"Is there a line over 100 characters in {0}? Show the longest with its surroundings.",
                       "Find the longest line of {0} and tell me whether it can be split."}),
               work.path()));
  s.act(filled(s.pick({"A scan of the lengths points to line {0}; read around it.",
                       "Read around line {0}, the longest."}),
               line),
        {{.kind = StepKind::read,
          .file = file,
          .first = line > 12 ? line - 12 : 1,
          .last = std::min(line + 12, work.lines().size())}});
  const auto length = work.lines()[line - 1].size();
  s.answer(filled("Line {0} has {1} bytes.", line, length),
           filled("The longest line of {0} is line {1} with {2} bytes, so {3}.\n\n```\n{4}\n```",
                  code(work.path()), line, length,
                  length > 100 ? "it is over the limit" : "nothing exceeds 100", work.lines()[line - 1]));
}

void explain(Session& s) {
  const size_t file = pick_defining_file(s);
  const auto& work = s.workspace[file];
  const auto found = work.definitions();
  if (found.size() < 2) return;
  const size_t index = s.random.below(found.size() - 1);
  const size_t first = found[index].line;
  const size_t last = std::min({found[index + 1].line - 1, first + 45, work.lines().size()});
  s.say(text::Role::user, filled(s.pick({"Show me {0} in {1}. How long is it, and what does it call?",
                                         "Explain {0} ({1}).", "Spiegami cosa fa {0} in {1}.",
                                         "I do not understand {0} in {1}, can you go through it?"}),
                                 found[index].name, work.path()));
  s.act(s.pick({"Outline for the position, then read it.", "Where does it start? The outline tells."}),
        {{.kind = StepKind::outline, .file = file}});
  s.act(filled("Lines {0} to {1}.", first, last),
        {{.kind = StepKind::read, .file = file, .first = first, .last = last}});
  std::string mentioned;
  for (const auto& other : found) {
    for (size_t n = first; n < last; ++n) {
      if (other.name == found[index].name || work.lines()[n].find(other.name) == std::string::npos) continue;
      mentioned += (mentioned.empty() ? "" : ", ") + code(other.name);
      break;
    }
    if (mentioned.size() > 160) break;
  }
  s.answer(filled("{0} lines; other definitions mentioned: {1}.", last - first + 1,
                  mentioned.empty() ? "none" : mentioned),
           filled(s.pick({"{0} is defined at line {1} of {2} and the part I read has {3} lines. {4}",
                          "{0} ({2}:{1}, {3} lines). {4}"}),
                  code(found[index].name), first, code(work.path()), last - first + 1,
                  mentioned.empty() ? std::string("It uses none of the other definitions of this file.")
                                    : fmt::format("Of this file it mentions {}.", mentioned)));
}

void search_in_vain(Session& s) {
  const size_t file = pick_file(s);
  const auto& work = s.workspace[file];
  auto name = frequent_identifier(work, s.random.next());
  if (name.empty()) return;
  auto wrong = name;
  std::swap(wrong[2], wrong[3]);
  if (!work.find(wrong).empty()) return;
  s.say(text::Role::user,
        filled(s.pick({"Where does {1} set {0}?", "Find {0} in {1}.", "Is {0} still used in {1}?"}), wrong,
               work.path()));
  s.act(filled("Search {0}.", wrong), {{.kind = StepKind::find, .file = file, .old_text = wrong}});
  s.act(filled(s.pick({"No match. Two letters may be swapped: {0} looks like a name that could exist.",
                       "Nothing. Perhaps a typing error for {0}; try that once."}),
               name),
        {{.kind = StepKind::find, .file = file, .old_text = name}});
  const auto hits = work.find(name);
  s.answer(filled("{0} lines with the other spelling.", hits.size()),
           filled(s.pick({"There is no {0} in {1}. Did you mean {2}? It occurs in {3} lines ({4}).",
                          "{1} does not contain {0}; the similar name {2} stands in lines {4}."}),
                  code(wrong), code(work.path()), code(name), hits.size(), line_list(hits, 8)));
}

using Task = void (*)(Session&);

constexpr Task kTasks[] = {
    locate,          rename,      summarise,     explain,      count_definitions, add_comment,
    imports_as_json, write_index, compare_files, longest_line, search_in_vain,    sizes};

}  // namespace

void Session::say(text::Role role, std::string content) {
  text::Message message;
  message.role = role;
  message.content.push_back({false, std::move(content), {}});
  messages.push_back(std::move(message));
}

void Session::act(std::string thought, const std::vector<Step>& steps, std::string preface) {
  text::Message turn;
  turn.role = text::Role::assistant;
  turn.content.push_back({false, std::move(preface), {}});
  if (agent.thinking) turn.reasoning = std::move(thought);
  std::vector<text::Message> results;
  for (const auto& step : steps) {
    auto call = tool_call(kind, step, workspace);
    call.id = fmt::format("call_{}", calls++);
    text::Message result;
    result.role = text::Role::tool;
    result.tool_call_id = call.id;
    result.content.push_back({false, tool_result(kind, step, workspace), {}});
    turn.tool_calls.push_back(std::move(call));
    results.push_back(std::move(result));
  }
  messages.push_back(std::move(turn));
  for (auto& result : results) messages.push_back(std::move(result));
}

void Session::answer(std::string thought, std::string content) {
  say(text::Role::assistant, std::move(content));
  if (agent.thinking) messages.back().reasoning = std::move(thought);
}

std::string Session::pick(std::initializer_list<std::string_view> phrases) {
  return std::string(phrases.begin()[random.below(phrases.size())]);
}

Step Session::excerpt(size_t file, size_t lines) {
  const auto count = workspace[file].lines().size();
  auto& cursor = cursors[fmt::format("{}/{}", package, workspace[file].path())];
  if (cursor + 10 > count) cursor = 0;
  const Step step{
      .kind = StepKind::read, .file = file, .first = cursor + 1, .last = std::min(cursor + lines, count)};
  cursor = step.last;
  return step;
}

void run_tasks(Session& session) {
  const size_t count = 4 + session.random.below(3), first = session.random.below(std::size(kTasks));
  // A stride without a common factor with the number of tasks: no two tasks of a session are the same kind.
  constexpr size_t kStride = 5;
  for (size_t i = 0; i < count; ++i) kTasks[(first + i * kStride) % std::size(kTasks)](session);
}

}  // namespace rorqual::kl
