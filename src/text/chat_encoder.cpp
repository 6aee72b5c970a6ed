// SPDX-License-Identifier: Apache-2.0
// Rendering of conversations. The prompt is built from pieces that are either one control token or plain
// text, so that nothing in a message can become a control token.
#include "text/chat_encoder.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/json_text.h"
#include "text/utf8.h"

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
constexpr std::string_view kImage = "<｜deepseek_image｜>";
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

struct Piece {
  std::string text;
  bool is_special = false;
};

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

class Renderer {
 public:
  explicit Renderer(const Conversation& conversation)
      : c_(conversation), messages_(clean_up(conversation.messages)) {
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i]->role == Role::user || messages_[i]->role == Role::developer) last_user_ = i;
    }
  }

  void run() {
    if (c_.add_bos) special(kBos);
    size_t index = render_leading_system();
    while (index < messages_.size()) {
      const Message& message = *messages_[index];
      begin_message(message, index);
      if (is_user_turn(message.role)) {
        index = render_user_turn(index);
        continue;
      }
      render_other(message, index);
      ++index;
    }
    render_cue();
  }

  std::vector<Piece> take_pieces() { return std::move(pieces_); }

  std::vector<ImageInput> take_images() { return std::move(images_); }

 private:
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
        special(kImage);
        images_.push_back(part.image);
      } else {
        plain(part.text);
      }
    }
  }

  /// Drops what was rendered so far at the first message that is not context.
  void begin_message(const Message& message, size_t index) {
    if (c_.num_context_messages == 0 || &message < &c_.messages[0] + c_.num_context_messages ||
        is_past_context_) {
      return;
    }
    is_past_context_ = true;
    pieces_.clear();
    images_.clear();
    // The header of an answer counts as the end of the turn that asks for it.
    header_is_context_ =
        message.role == Role::assistant && index > 0 && messages_[index - 1]->role != Role::assistant;
  }

  bool keeps_reasoning(size_t index) const {
    return tools_active() || c_.keep_reasoning == KeepReasoning::all ||
           (c_.keep_reasoning == KeepReasoning::after_last_user && index > last_user_);
  }

  bool tools_active() const { return !c_.tool_schemas.empty(); }

  bool has_section() const { return tools_active() || !c_.response_schema.empty(); }

  /// Returns the number of messages used.
  size_t render_leading_system() {
    const bool has_system = !messages_.empty() && messages_[0]->role == Role::system;
    const bool has_effort = c_.thinking && (has_section() || !messages_.empty());
    if (has_effort || has_system || has_section()) special(kSystem);
    if (has_effort) {
      plain("Reasoning Effort: " + std::to_string(c_.effort) +
            " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    if (has_system) content(*messages_[0]);
    if (tools_active()) {
      plain(kGap);
      pattern(kToolsHead);
      for (const auto& line : c_.tool_schemas) {
        plain(line);
        plain("\n");
      }
      plain(kToolsTail);
    }
    if (!c_.response_schema.empty()) {
      plain(kGap);
      plain(kResponseHead);
      plain(c_.response_schema);
    }
    return has_system ? 1 : 0;
  }

  /// A run of user and tool messages under one marker; tool results in the order of their calls.
  size_t render_user_turn(size_t begin) {
    size_t end = begin;
    while (end < messages_.size() && is_user_turn(messages_[end]->role)) ++end;
    const std::vector<const Message*> turn = order_results(begin, end);
    special(kUser);
    for (size_t i = 0; i < turn.size(); ++i) {
      if (i > 0) plain(kGap);
      if (turn[i]->role == Role::tool) plain("<tool_result>");
      content(*turn[i]);
      if (turn[i]->role == Role::tool) plain("</tool_result>");
    }
    if (turn.back()->task != QuickTask::none) pending_task_ = turn.back()->task;
    return end;
  }

  std::vector<const Message*> order_results(size_t begin, size_t end) const {
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

  void render_other(const Message& message, size_t index) {
    switch (message.role) {
      case Role::system:
        special(kSystem);
        content(message);
        break;
      case Role::developer:  // the reference encoder's extension: a user turn of its own
        if (c_.thinking && !tools_active() && c_.keep_reasoning == KeepReasoning::after_last_user &&
            index < last_user_) {
          break;
        }
        special(kUser);
        content(message);
        break;
      case Role::latest_reminder:
        special(kReminder);
        content(message);
        break;
      default:
        render_assistant(message, index);
    }
  }

  void render_assistant(const Message& message, size_t index) {
    const bool continues = message.is_prefix && index + 1 == messages_.size();
    const QuickTask task = std::exchange(pending_task_, QuickTask::none);
    if (task != QuickTask::none) {  // the answer to a task has no header of its own
      render_task_cue(task);
    } else {
      const bool follows =
          continues && (index > 0 || has_section() || c_.keep_reasoning != KeepReasoning::none);
      render_assistant_header(message, follows || keeps_reasoning(index), continues);
    }
    header_is_context_ = false;
    if (continues) {
      ends_open_ = true;
      content(message);
      return;
    }
    content(message);
    if (!message.tool_calls.empty()) render_calls(message.tool_calls);
    special(kEos);
  }

  void render_assistant_header(const Message& message, bool shows_reasoning, bool continues) {
    const bool thinks = c_.thinking && shows_reasoning;
    if (!header_is_context_) {
      special(kAssistant);
      special(thinks ? kThink : kEndThink);
    }
    if (!thinks) return;
    plain(message.reasoning);
    if (!continues || !is_empty_content(message)) special(kEndThink);
  }

  void render_calls(const std::vector<ToolCall>& calls) {
    plain(kGap);
    pattern("<\1 calls>\n");
    for (const auto& call : calls) {
      pattern("<\1 invoke name=\"");
      plain(call.name);
      plain("\">\n");
      render_arguments(call.arguments);
      pattern("\n</\1 invoke>\n");
    }
    pattern("</\1 calls>");
  }

  /// Parameters of one call; what is not a JSON object becomes one string parameter.
  void render_arguments(const std::string& arguments) {
    const auto parsed = parse_json(arguments);
    if (!parsed || !parsed->is_object()) {
      render_parameter("arguments", true, arguments);
      return;
    }
    bool is_first = true;
    for (const auto& [key, value] : parsed->items()) {
      if (!is_first) plain("\n");
      is_first = false;
      const bool is_string = value.is_string();
      render_parameter(key, is_string, is_string ? value.get_ref<const std::string&>() : json_text(value));
    }
  }

  void render_parameter(std::string_view key, bool is_string, std::string_view value) {
    pattern("<\1 parameter name=\"");
    plain(key);
    plain(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    plain(value);
    pattern("</\1 parameter>");
  }

  void render_task_cue(QuickTask task) {
    if (task == QuickTask::action) {
      special(kAssistant);
      special(c_.thinking ? kThink : kEndThink);
    }
    special(task_token(task));
  }

  void render_cue() {
    if (ends_open_ || !c_.add_generation_prompt) return;
    if (pending_task_ != QuickTask::none) {
      render_task_cue(pending_task_);
      return;
    }
    special(kAssistant);
    special(c_.thinking ? kThink : kEndThink);
    if (c_.force_tool_call) pattern("\n\n<\1 calls>\n");
  }

  const Conversation& c_;
  std::vector<const Message*> messages_;
  std::vector<Piece> pieces_;
  std::vector<ImageInput> images_;
  size_t last_user_ = 0;
  QuickTask pending_task_ = QuickTask::none;
  bool ends_open_ = false;
  bool is_past_context_ = false;
  bool header_is_context_ = false;
};

Prompt assemble(const std::vector<Piece>& pieces) {
  Prompt prompt;
  int64_t offset = 0;
  for (const auto& piece : pieces) {
    const int64_t length = count_code_points(piece.text);
    if (piece.is_special) prompt.special_ranges.emplace_back(offset, offset + length);
    prompt.text += piece.text;
    offset += length;
  }
  return prompt;
}

}  // namespace

Prompt render_chat(const Conversation& conversation) {
  Renderer renderer(conversation);
  renderer.run();
  Prompt prompt = assemble(renderer.take_pieces());
  prompt.images = renderer.take_images();
  return prompt;
}

Result<Prompt> encode_chat(const Conversation& conversation, const Tokenizer& tokenizer) {
  Renderer renderer(conversation);
  renderer.run();
  const std::vector<Piece> pieces = renderer.take_pieces();
  Prompt prompt = assemble(pieces);
  prompt.images = renderer.take_images();
  for (const auto& piece : pieces) {
    if (!piece.is_special) {
      const auto ids = tokenizer.encode(piece.text, EncodeMode::plain);
      prompt.token_ids.insert(prompt.token_ids.end(), ids.begin(), ids.end());
      continue;
    }
    const auto id = tokenizer.added_token(piece.text);
    if (!id) {
      return Error(Code::unsupported,
                   "the tokenizer has no token " + piece.text + ", which the chat format needs",
                   "use the tokenizer.json that belongs to the model");
    }
    prompt.token_ids.push_back(*id);
  }
  return prompt;
}

QuickTask quick_task_from_name(const std::string& name) {
  for (const QuickTask task : {QuickTask::action, QuickTask::query, QuickTask::authority, QuickTask::domain,
                               QuickTask::title, QuickTask::read_url}) {
    if (task_token(task) == "<｜" + name + "｜>") return task;
  }
  return QuickTask::none;
}

std::string tool_schema_line(const std::string& name, const std::string& description,
                             const std::string& parameters_json) {
  return "{\"name\": " + json_quote(name) + ", \"description\": " + json_quote(description) +
         ", \"parameters\": " + (parameters_json.empty() ? "{}" : parameters_json) + "}";
}

}  // namespace rorqual::text
