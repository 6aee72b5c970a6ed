// SPDX-License-Identifier: Apache-2.0
// Chat completion answers: messages, deltas and log-probabilities in the official form. docs/api.md#chat.
#pragma once

#include <string>

#include "server/parsed_answer.h"

namespace rorqual::server {

class ChatAnswer final : public ParsedAnswer {
 public:
  using ParsedAnswer::ParsedAnswer;

 private:
  void on_begin() override;
  void send_delta(size_t index, const text::ParserEvent& event) override;
  void send_end(size_t index) override;
  std::string whole_body() override;
  std::string usage_piece() override;

  const char* finish_reason(size_t index) const;
  void write_head(JsonWriter& json, const char* object) const;
  void write_tail(JsonWriter& json, bool is_last_piece) const;
  void write_reasoning(JsonWriter& json, const std::string* reasoning) const;
  void write_logprobs(JsonWriter& json, const Choice& choice) const;
  void write_stop_reason(JsonWriter& json, size_t index) const;
  void write_message(JsonWriter& json, const Choice& choice) const;
  void write_delta(JsonWriter& json, Choice& choice, const text::ParserEvent& event) const;
};

}  // namespace rorqual::server
