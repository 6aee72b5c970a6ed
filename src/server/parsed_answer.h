// SPDX-License-Identifier: Apache-2.0
// Answers whose tokens go through the output parser: what chat completions, messages and responses have in
// common. It keeps the choices and says what happens; the three forms write it down.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "server/answer.h"
#include "text/output_parser.h"

namespace rorqual::server {

class ParsedAnswer : public Answer {
 public:
  struct Plan {
    AnswerHead head;
    api::ChatRequest request;
    std::vector<int32_t> prompt;
    std::string prompt_text;  // if it is to be returned
    int64_t max_tokens = 0;
    std::optional<grammar::CompiledConstraint> constraint;
  };

  ParsedAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan);

 protected:
  struct Choice {
    explicit Choice(text::OutputParser p) : parser(std::move(p)) {}

    text::OutputParser parser;
    std::vector<text::ParserEvent> pending;  // stream: not sent yet
    text::ParsedOutput output;               // in one piece
    std::vector<std::string> call_ids;
    std::string content_logprobs, reasoning_logprobs;  // entries joined by commas; stream: not sent yet
    std::vector<int32_t> token_ids;
    int64_t reasoning_tokens = 0;
    bool has_ended = false, is_end_sent = false;
  };

  /// Stream: one delta. tool_end comes, too; empty texts do not.
  virtual void send_delta(size_t choice, const text::ParserEvent& event) = 0;
  /// Stream: the choice is complete.
  virtual void send_end(size_t choice) = 0;

  EndCause cause(size_t choice) const;

  /// The stop string that ended the choice.
  std::optional<std::string> matched_stop(size_t choice) const {
    return parts_[choice].parser.matched_stop();
  }

  const std::string& call_id(Choice& choice, int32_t call_index) const;
  Usage usage_so_far() const;

  int64_t max_tokens() const override { return plan_.max_tokens; }

  const api::SamplingFields& sampling() const override { return plan_.request.sampling; }

  Plan plan_;
  std::vector<Choice> parts_;
  std::string prompt_logprobs_;  // JSON

 private:
  void on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) final;
  bool on_token(size_t choice, GenerationEvent& event) final;
  void on_choice_end(size_t choice) final;
  void send_pieces() final;

  bool is_first_of_prompt(size_t choice) const final { return choice == 0; }

  void take_events(Choice& choice, std::vector<text::ParserEvent> events);
  void add_logprobs(Choice& choice, const GenerationEvent& event);
};

}  // namespace rorqual::server
