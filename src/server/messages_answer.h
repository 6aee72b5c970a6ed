// SPDX-License-Identifier: Apache-2.0
// Answers of POST /v1/messages: content blocks and their events. docs/api.md#messages.
#pragma once

#include <string>

#include "server/parsed_answer.h"

namespace rorqual::server {

class MessagesAnswer final : public ParsedAnswer {
 public:
  using ParsedAnswer::ParsedAnswer;

 private:
  enum class Block : uint8_t { none, thinking, text, tool_use };

  void on_prefix(int64_t cached_tokens) override;
  void send_delta(size_t choice, const text::ParserEvent& event) override;
  void send_end(size_t choice) override;

  void send_last() override {}  // message_stop was the last event

  void send_failure(const HttpError& error) override;
  std::string whole_body() override;

  void send_start(int64_t cached_tokens);
  void open_block(Block block, const text::ParserEvent& event);
  void close_block();
  void send_block_delta(const char* type, const char* field, const std::string& text);
  void write_message_head(JsonWriter& json) const;
  void write_stop(JsonWriter& json) const;

  Block block_ = Block::none;
  int64_t block_index_ = -1;
  bool is_started_ = false;
};

}  // namespace rorqual::server
