// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/completions: plain text per choice, vLLM's log-probability lists, echo and prompt_logprobs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "server/answer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace rorqual::server {

class CompletionAnswer final : public Answer {
 public:
  struct Plan {
    AnswerHead head;
    api::CompletionRequest request;
    std::vector<std::vector<int32_t>> prompts;
    int64_t max_tokens = 0;
    std::optional<grammar::CompiledConstraint> constraint;
  };

  /// Choices are numbered prompt * n + k.
  CompletionAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan);

 private:
  /// Lists of the `logprobs` object, as JSON entries joined by commas.
  struct LogprobLists {
    std::string tokens, token_logprobs, top_logprobs, text_offset;
  };

  struct Choice {
    Choice(const text::Tokenizer& tokenizer, const api::SamplingFields& sampling)
        : detokenizer(tokenizer, sampling.skip_special_tokens), stops(sampling.stop) {}

    text::Detokenizer detokenizer;
    text::StopMatcher stops;
    int64_t num_tokens = 0;
    std::string text;  // stream: not sent yet
    LogprobLists logprobs;
    int64_t offset = 0;  // code points of the token texts so far
    std::string prompt_logprobs;
    std::vector<int32_t> token_ids;
    bool has_ended = false, is_end_sent = false, is_start_sent = false;
  };

  void on_begin() override;
  void on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) override;
  bool on_token(size_t choice, GenerationEvent& event) override;
  void on_choice_end(size_t choice) override;
  void send_pieces() override;
  std::string whole_body() override;
  std::string usage_piece() override;

  int64_t max_tokens() const override { return plan_.max_tokens; }

  const api::SamplingFields& sampling() const override { return plan_.request.sampling; }

  bool is_first_of_prompt(size_t choice) const override {
    return choice % static_cast<size_t>(plan_.request.sampling.n) == 0;
  }

  size_t prompt_index(size_t choice) const { return choice / static_cast<size_t>(plan_.request.sampling.n); }

  std::string prompt_text(size_t choice) const;

  bool wants_logprobs() const { return plan_.request.sampling.logprobs; }

  void add_token_logprobs(Choice& choice, int32_t token, const std::optional<runtime::PositionLogprobs>& row);
  void write_head(JsonWriter& json) const;
  void write_choice(JsonWriter& json, size_t index, bool is_end) const;
  void send_choice(size_t index, bool is_end);
  Usage usage_so_far() const;

  Plan plan_;
  std::vector<Choice> parts_;
};

}  // namespace rorqual::server
