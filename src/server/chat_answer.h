// SPDX-License-Identifier: Apache-2.0
// Chat completion answers: tokens through the output parser to messages, deltas and log-probabilities, in the
// official form. docs/api.md#chat.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"
#include "text/output_parser.h"

namespace rorqual::server {

class ChatAnswer final : public Answer {
 public:
  struct Plan {
    AnswerHead head;
    api::ChatRequest request;
    std::vector<int32_t> prompt;
    int64_t max_tokens = 0;
  };

  ChatAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan);

 private:
  struct Choice {
    explicit Choice(text::OutputParser p) : parser(std::move(p)) {}

    text::OutputParser parser;
    std::vector<text::ParserEvent> pending;  // stream: not sent yet
    text::ParsedOutput output;               // in one piece
    std::vector<std::string> call_ids;
    std::string content_logprobs, reasoning_logprobs;  // entries joined by commas
    std::vector<int32_t> token_ids;
    int64_t reasoning_tokens = 0;
    bool has_ended = false, is_end_sent = false;
  };

  void on_begin() override;
  void on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) override;
  bool on_token(size_t choice, GenerationEvent& event) override;
  void on_choice_end(size_t choice) override;
  void send_pieces() override;
  std::string whole_body() override;
  std::string usage_piece() override;

  int64_t max_tokens() const override { return plan_.max_tokens; }

  bool is_first_of_prompt(size_t choice) const override { return choice == 0; }

  void take_events(Choice& choice, std::vector<text::ParserEvent> events);
  void add_logprobs(Choice& choice, const GenerationEvent& event);
  std::string finish_reason(size_t index) const;
  void write_head(JsonWriter& json, const char* object) const;
  void write_tail(JsonWriter& json, bool is_last_piece) const;
  void write_logprobs(JsonWriter& json, const Choice& choice) const;
  void write_stop_reason(JsonWriter& json, size_t index) const;
  void write_message(JsonWriter& json, const Choice& choice) const;
  void write_delta(JsonWriter& json, Choice& choice, const text::ParserEvent& event) const;
  void send_delta(size_t index, const text::ParserEvent& event);
  void send_end(size_t index);
  Usage usage_so_far() const;
  const std::string& call_id(Choice& choice, int32_t call_index) const;

  Plan plan_;
  std::vector<Choice> parts_;
  std::string prompt_logprobs_;  // JSON
  bool usage_sent_ = false;
};

}  // namespace rorqual::server
