// SPDX-License-Identifier: Apache-2.0
// Rendering of conversations. The prompt is built from pieces that are either one control token or plain
// text, so that nothing in a message can become a control token.
#include "text/chat_renderer.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace rorqual::text {

namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kGap = "\n\n";

// The tool section up to the schemas; \1 stands for the markup token, \2 and \3 for the thinking tokens.
constexpr std::string_view kToolsHead =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<\1 calls>\" block like the following:\n\n"
    "<\1 calls>\n"
    "<\1 invoke name=\"$TOOL_NAME\">\n"
    "<\1 parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</\1 parameter>\n"
    "...\n"
    "</\1 invoke>\n"
    "<\1 invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\1 invoke>\n"
    "</\1 calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by \2), you MUST output your complete reasoning inside \2...\3 "
    "BEFORE any "
    "tool calls or final response.\n\n"
    "Otherwise, output directly after \3 with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kResponseHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

std::string_view task_token(QuickTask task) {
  switch (task) {
    case QuickTask::action:
      return "<｜action｜>";
    case QuickTask::query:
      return "<｜query｜>";
    case QuickTask::authority:
      return "<｜authority｜>";
    case QuickTask::domain:
      return "<｜domain｜>";
    case QuickTask::title:
      return "<｜title｜>";
    case QuickTask::read_url:
      return "<｜read_url｜>";
    case QuickTask::none:
      break;
  }
  return {};
}

bool is_empty_content(const Message& message) {
  for (const auto& part : message.content) {
    if (part.is_image || !part.text.empty()) return false;
  }
  return message.content.size() <= 1;
}

/// Of consecutive reminders the first stays.
std::vector<const Message*> clean_up(const std::vector<Message>& messages) {
  std::vector<const Message*> out;
  out.reserve(messages.size());
  for (const auto& message : messages) {
    if (message.role == Role::latest_reminder && !out.empty() && out.back()->role == Role::latest_reminder)
      continue;
    out.push_back(&message);
  }
  return out;
}

bool is_user_turn(Role role) {
  return role == Role::user || role == Role::tool;
}

/// Fields with their lengths, so that no two lists of fields look alike.
class KeyWriter {
 public:
  explicit KeyWriter(std::string& key) : key_(key) {}

  void mark(char kind) { key_ += kind; }

  void number(uint64_t value) { key_.append(reinterpret_cast<const char*>(&value), sizeof value); }

  void text(std::string_view value) {
    number(value.size());
    key_ += value;
  }

  void content(const Message& message) {
    number(message.content.size());
    for (const auto& part : message.content) {
      mark(part.is_image ? 'i' : 't');
      if (!part.is_image) text(part.text);
    }
  }

  void sections(const Conversation& conversation) {
    number(conversation.tool_schemas.size());
    for (const auto& line : conversation.tool_schemas) text(line);
    text(conversation.response_schema);
  }

 private:
  std::string& key_;
};

}  // namespace

/// Appends pieces and joins plain ones.
class ChatRenderer::Writer {
 public:
  explicit Writer(std::vector<PromptPiece>& pieces) : pieces_(pieces) {}

  void special(std::string_view token) { pieces_.push_back({std::string(token), true}); }

  void plain(std::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().is_special) pieces_.push_back({});
    pieces_.back().text += text;
  }

  /// Text of ours with stand-ins for control tokens.
  void pattern(std::string_view text) {
    size_t begin = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] < 1 || text[i] > 3) continue;
      plain(text.substr(begin, i - begin));
      special(text[i] == 1 ? kDsml : text[i] == 2 ? kThink : kEndThink);
      begin = i + 1;
    }
    plain(text.substr(begin));
  }

  void content(const Message& message) {
    bool is_first = true;
    for (const auto& part : message.content) {
      if (!is_first) plain(kGap);
      is_first = false;
      if (part.is_image) {
        special(kImageToken);
      } else {
        plain(part.text);
      }
    }
  }

  void user_turn(const std::vector<const Message*>& turn) {
    special(kUser);
    for (size_t i = 0; i < turn.size(); ++i) {
      if (i > 0) plain(kGap);
      if (turn[i]->role == Role::tool) plain("<tool_result>");
      content(*turn[i]);
      if (turn[i]->role == Role::tool) plain("</tool_result>");
    }
  }

  /// Tools, then response format.
  void sections(const Conversation& conversation) {
    if (!conversation.tool_schemas.empty()) {
      plain(kGap);
      pattern(kToolsHead);
      for (const auto& line : conversation.tool_schemas) {
        plain(line);
        plain("\n");
      }
      plain(kToolsTail);
    }
    if (!conversation.response_schema.empty()) {
      plain(kGap);
      plain(kResponseHead);
      plain(conversation.response_schema);
    }
  }

  void calls(const std::vector<ToolCall>& calls) {
    plain(kGap);
    pattern("<\1 calls>\n");
    for (const auto& call : calls) {
      pattern("<\1 invoke name=\"");
      plain(call.name);
      plain("\">\n");
      arguments(call.arguments);
      pattern("\n</\1 invoke>\n");
    }
    pattern("</\1 calls>");
  }

  void task_cue(QuickTask task, bool thinking) {
    if (task == QuickTask::action) {
      special(kAssistant);
      special(thinking ? kThink : kEndThink);
    }
    special(task_token(task));
  }

 private:
  /// Parameters of one call; what is not a JSON object becomes one string parameter.
  void arguments(const std::string& text) {
    const auto parsed = parse_json(text);
    if (!parsed || !parsed->is_object()) {
      parameter("arguments", true, text);
      return;
    }
    bool is_first = true;
    for (const auto& [key, value] : parsed->items()) {
      if (!is_first) plain("\n");
      is_first = false;
      const bool is_string = value.is_string();
      parameter(key, is_string, is_string ? value.get_ref<const std::string&>() : json_text(value));
    }
  }

  void parameter(std::string_view key, bool is_string, std::string_view value) {
    pattern("<\1 parameter name=\"");
    plain(key);
    plain(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    plain(value);
    pattern("</\1 parameter>");
  }

  std::vector<PromptPiece>& pieces_;
};

ChatRenderer::ChatRenderer(const Conversation& conversation)
    : c_(conversation), messages_(clean_up(conversation.messages)) {
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i]->role == Role::user || messages_[i]->role == Role::developer) last_user_ = i;
  }
  if (!c_.sections_on_first_system) return;
  const auto first = std::find_if(messages_.begin(), messages_.end(),
                                  [](const Message* message) { return message->role == Role::system; });
  if (first != messages_.end()) sections_at_ = static_cast<size_t>(first - messages_.begin());
}

bool ChatRenderer::next() {
  leave();
  if (kind_ == Kind::none) {
    kind_ = Kind::head;
    end_ = has_leading_system() ? 1 : 0;
    return true;
  }
  begin_ = end_;
  if (begin_ < messages_.size()) {
    enter_message();
    return true;
  }
  kind_ = kind_ == Kind::cue || kind_ == Kind::end ? Kind::end : Kind::cue;
  return kind_ == Kind::cue;
}

/// What the block leaves behind for later ones.
void ChatRenderer::leave() {
  starts_output_ = false;
  if (kind_ == Kind::user_turn && turn_.back()->task != QuickTask::none) pending_task_ = turn_.back()->task;
  if (kind_ == Kind::message && messages_[begin_]->role == Role::assistant) {
    pending_task_ = QuickTask::none;
    header_is_context_ = false;
  }
}

void ChatRenderer::enter_message() {
  const Message& message = *messages_[begin_];
  end_ = begin_ + 1;
  kind_ = Kind::message;
  if (is_user_turn(message.role)) {
    kind_ = Kind::user_turn;
    while (end_ < messages_.size() && is_user_turn(messages_[end_]->role)) ++end_;
    turn_ = order_results(begin_, end_);
  }
  if (c_.num_context_messages == 0 || is_past_context_ ||
      &message < &c_.messages[0] + c_.num_context_messages) {
    return;
  }
  is_past_context_ = true;
  starts_output_ = true;
  // The header of an answer counts as the end of the turn that asks for it.
  header_is_context_ =
      message.role == Role::assistant && begin_ > 0 && messages_[begin_ - 1]->role != Role::assistant;
}

std::vector<const Message*> ChatRenderer::order_results(size_t begin, size_t end) const {
  std::vector<const Message*> turn(messages_.begin() + static_cast<std::ptrdiff_t>(begin),
                                   messages_.begin() + static_cast<std::ptrdiff_t>(end));
  if (begin == 0 || messages_[begin - 1]->role != Role::assistant) return turn;
  std::map<std::string_view, size_t> position;
  for (const auto& call : messages_[begin - 1]->tool_calls) position.emplace(call.id, position.size());
  std::vector<size_t> slots;
  std::vector<const Message*> results;
  for (size_t i = 0; i < turn.size(); ++i) {
    if (turn[i]->role != Role::tool) continue;
    slots.push_back(i);
    results.push_back(turn[i]);
  }
  const auto rank = [&](const Message* message) {
    const auto it = position.find(message->tool_call_id);
    return it == position.end() ? position.size() : it->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const Message* a, const Message* b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < slots.size(); ++i) turn[slots[i]] = results[i];
  return turn;
}

bool ChatRenderer::is_dropped_developer() const {
  return messages_[begin_]->role == Role::developer && c_.thinking && !tools_active() &&
         c_.keep_reasoning != KeepReasoning::all && begin_ < last_user_;
}

bool ChatRenderer::continues() const {
  return !messages_.empty() && messages_.back()->role == Role::assistant && messages_.back()->is_prefix;
}

/// Does the assistant message of this block show its reasoning?
bool ChatRenderer::thinks() const {
  if (!c_.thinking) return false;
  const bool is_continued = continues() && end_ == messages_.size();
  if (is_continued && (begin_ > 0 || has_section() || c_.keep_reasoning != KeepReasoning::none)) return true;
  return tools_active() || c_.keep_reasoning == KeepReasoning::all ||
         (c_.keep_reasoning == KeepReasoning::after_last_user && begin_ > last_user_);
}

void ChatRenderer::render(std::vector<PromptPiece>& pieces) const {
  Writer out(pieces);
  switch (kind_) {
    case Kind::head:
      render_head(out);
      break;
    case Kind::user_turn:
      out.user_turn(turn_);
      break;
    case Kind::message:
      render_message(out);
      break;
    case Kind::cue:
      render_cue(out);
      break;
    case Kind::none:
    case Kind::end:
      break;
  }
}

void ChatRenderer::render_head(Writer& out) const {
  const bool shows_sections = has_section() && sections_at_ == 0;
  if (c_.add_bos) out.special(kBos);
  if (has_effort() || has_leading_system() || shows_sections) out.special(kSystem);
  if (has_effort()) {
    out.plain("Reasoning Effort: " + std::to_string(c_.effort) +
              " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
  }
  if (has_leading_system()) out.content(*messages_[0]);
  if (shows_sections) out.sections(c_);
}

void ChatRenderer::render_message(Writer& out) const {
  const Message& message = *messages_[begin_];
  switch (message.role) {
    case Role::system:
      out.special(kSystem);
      out.content(message);
      if (begin_ == sections_at_) out.sections(c_);
      break;
    case Role::developer:  // a user turn of its own, as the reference encoder has it
      if (is_dropped_developer()) break;
      out.special(kUser);
      out.content(message);
      break;
    case Role::latest_reminder:
      out.special(kReminder);
      out.content(message);
      break;
    default:
      render_assistant(out);
  }
}

void ChatRenderer::render_assistant(Writer& out) const {
  const Message& message = *messages_[begin_];
  const bool is_continued = continues() && end_ == messages_.size();
  if (pending_task_ != QuickTask::none) {  // the answer to a task has no header of its own
    out.task_cue(pending_task_, c_.thinking);
  } else {
    if (!header_is_context_) {
      out.special(kAssistant);
      out.special(thinks() ? kThink : kEndThink);
    }
    if (thinks()) {
      out.plain(message.reasoning);
      if (!is_continued || !is_empty_content(message)) out.special(kEndThink);
    }
  }
  out.content(message);
  if (is_continued) return;
  if (!message.tool_calls.empty()) out.calls(message.tool_calls);
  out.special(kEos);
}

void ChatRenderer::render_cue(Writer& out) const {
  if (continues() || !c_.add_generation_prompt) return;
  if (pending_task_ != QuickTask::none) {
    out.task_cue(pending_task_, c_.thinking);
    return;
  }
  out.special(kAssistant);
  out.special(c_.thinking ? kThink : kEndThink);
  if (c_.force_tool_call) out.pattern("\n\n<\1 calls>\n");
}

void ChatRenderer::append_key(std::string& key) const {
  const bool depends_on_others = pending_task_ != QuickTask::none || header_is_context_;
  if (kind_ == Kind::cue || depends_on_others) return;
  KeyWriter out(key);
  if (kind_ == Kind::head) {
    out.mark('H');
    out.number(static_cast<uint64_t>(c_.add_bos) | static_cast<uint64_t>(has_effort()) << 1 |
               static_cast<uint64_t>(has_leading_system()) << 2);
    out.number(static_cast<uint64_t>(c_.effort));
    if (has_leading_system()) out.content(*messages_[0]);
    if (sections_at_ == 0) out.sections(c_);
    return;
  }
  if (kind_ == Kind::user_turn) {
    out.mark('U');
    for (const Message* message : turn_) {
      out.mark(message->role == Role::tool ? 'r' : 'u');
      out.content(*message);
    }
    return;
  }
  append_message_key(key);
}

void ChatRenderer::append_message_key(std::string& key) const {
  const Message& message = *messages_[begin_];
  KeyWriter out(key);
  switch (message.role) {
    case Role::system:
      out.mark('S');
      out.content(message);
      if (begin_ == sections_at_) out.sections(c_);
      break;
    case Role::developer:
      if (is_dropped_developer()) return;
      out.mark('D');
      out.content(message);
      break;
    case Role::latest_reminder:
      out.mark('R');
      out.content(message);
      break;
    default: {
      const bool is_continued = continues() && end_ == messages_.size();
      out.mark(is_continued ? 'C' : 'A');
      out.mark(thinks() ? 't' : 'n');
      if (thinks()) out.text(message.reasoning);
      out.content(message);
      out.number(message.tool_calls.size());
      for (const auto& call : message.tool_calls) {
        out.text(call.name);
        out.text(call.arguments);
      }
    }
  }
}

void ChatRenderer::append_images(std::vector<ImageInput>& images) const {
  const auto append = [&images](const Message& message) {
    for (const auto& part : message.content) {
      if (part.is_image) images.push_back(part.image);
    }
  };
  if (kind_ == Kind::head && has_leading_system()) append(*messages_[0]);
  if (kind_ == Kind::user_turn) {
    for (const Message* message : turn_) append(*message);
  }
  if (kind_ == Kind::message && !is_dropped_developer()) append(*messages_[begin_]);
}

QuickTask quick_task_from_name(const std::string& name) {
  for (const QuickTask task : {QuickTask::action, QuickTask::query, QuickTask::authority, QuickTask::domain,
                               QuickTask::title, QuickTask::read_url}) {
    if (task_token(task) == "<｜" + name + "｜>") return task;
  }
  return QuickTask::none;
}

}  // namespace rorqual::text
