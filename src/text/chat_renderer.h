// SPDX-License-Identifier: Apache-2.0
// Walks a conversation block by block. A block starts with a control token (or is empty), so its ids depend
// on nothing before it: the unit that text/prompt_encoder.h remembers. Used by the encoders of this folder
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoder.h"

namespace rorqual::text {

/// One per image of the conversation.
inline constexpr std::string_view kImageToken = "<｜deepseek_image｜>";

/// Either one control token or plain text; two plain pieces never follow each other.
struct PromptPiece {
  std::string text;
  bool is_special = false;
};

/// One conversation, which must outlive it; one thread. Order: next, then anything of that block, next, …
class ChatRenderer {
 public:
  explicit ChatRenderer(const Conversation& conversation);

  /// To the first or next block; false at the end.
  bool next();

  /// What came before was context of an earlier prompt, not part of this one.
  bool starts_output() const { return starts_output_; }

  /// Appends the block.
  void render(std::vector<PromptPiece>& pieces) const;

  /// Appends everything that render() depends on, so that equal keys mean equal pieces. Nothing for a block
  /// that is cheaper to render than to remember, or that depends on more than its own messages.
  void append_key(std::string& key) const;

  /// Appends the images of the block, in the order of their placeholders.
  void append_images(std::vector<ImageInput>& images) const;

 private:
  enum class Kind : uint8_t { none, head, user_turn, message, cue, end };

  class Writer;

  void leave();
  void enter_message();
  std::vector<const Message*> order_results(size_t begin, size_t end) const;

  bool tools_active() const { return !c_.tool_schemas.empty(); }

  bool has_section() const { return tools_active() || !c_.response_schema.empty(); }

  bool has_effort() const { return c_.thinking && (has_section() || !messages_.empty()); }

  bool has_leading_system() const { return !messages_.empty() && messages_[0]->role == Role::system; }

  bool is_dropped_developer() const;
  bool continues() const;
  bool thinks() const;

  void render_head(Writer& out) const;
  void render_message(Writer& out) const;
  void render_assistant(Writer& out) const;
  void render_cue(Writer& out) const;
  void append_message_key(std::string& key) const;

  const Conversation& c_;
  std::vector<const Message*> messages_;
  Kind kind_ = Kind::none;
  size_t begin_ = 0, end_ = 0;        // messages of the block
  std::vector<const Message*> turn_;  // of a user turn, as printed
  size_t last_user_ = 0;
  size_t sections_at_ = 0;  // message that carries tools and response format; 0 also if there is none
  QuickTask pending_task_ = QuickTask::none;
  bool is_past_context_ = false;
  bool starts_output_ = false;
  bool header_is_context_ = false;
};

}  // namespace rorqual::text
