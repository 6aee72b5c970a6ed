// SPDX-License-Identifier: Apache-2.0
// Common part of answers that come from the engine: life of the choices, usage, metrics, failures, and the
// JSON pieces that chat and completions share. chat_answer.cpp and completion_answer.cpp add their forms.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"
#include "server/generation.h"
#include "server/json_writer.h"
#include "server/service.h"
#include "server/usage.h"

namespace rorqual::server {

/// Text of one token as it is shown in log-probabilities; `as_id` gives "token_id:N".
std::string token_label(const text::Tokenizer& tokenizer, int32_t token, bool as_id);

/// List of vLLM's prompt_logprobs: null, then {"id":{"logprob","rank","decoded_token"}} with the prompt's own
/// token first and at most `k` best ones (-1 = all that are there).
void write_prompt_logprobs(JsonWriter& json,
                           const std::vector<std::optional<runtime::PositionLogprobs>>& rows, int32_t k,
                           const text::Tokenizer& tokenizer);

/// `id` and everything that is the same in all pieces of an answer.
struct AnswerHead {
  std::string id;
  std::string model;
  int64_t created_s = 0;
  api::StreamFields stream;
};

/// State of one choice that does not depend on the protocol.
struct ChoiceState {
  bool is_done = false;      // by us (stop string, end of calls): later tokens are dropped
  bool is_finished = false;  // the engine reported its end
  int64_t num_tokens = 0;    // taken up
  runtime::FinishInfo info;
  std::optional<SteadyTime> first_token, last_token;
};

class Answer : public GenerationConsumer {
 public:
  Answer(Service& service, std::shared_ptr<Exchange> exchange, AnswerHead head, size_t num_choices);

  bool is_stream() const { return head_.stream.stream; }

  /// Sends the head of a stream and what is known before the first token.
  void begin();

  void on_events(Generation& generation, std::vector<GenerationEvent> events) final;
  void on_failure(const Error& error) final;

 protected:
  virtual void on_begin() {}

  virtual void on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) = 0;
  /// Takes one token; true when the answer of this choice is complete now.
  virtual bool on_token(size_t choice, GenerationEvent& event) = 0;
  /// The engine has ended the choice: gives out what was held back.
  virtual void on_choice_end(size_t choice) = 0;
  /// Stream: sends what has gathered, finish reasons included.
  virtual void send_pieces() = 0;
  /// Is it the first choice of its prompt?
  virtual bool is_first_of_prompt(size_t choice) const = 0;
  /// All choices have ended: the whole body, or the usage piece of a stream.
  virtual std::string whole_body() = 0;
  virtual std::string usage_piece() = 0;
  virtual int64_t max_tokens() const = 0;

  /// Joins the pieces of this delivery, which are sent together.
  void send_piece(std::string_view json);
  int64_t completion_tokens(size_t choice) const;

  /// For the usage of a complete answer; null where our own object is not wanted.
  const ReuseReport* reuse() const { return service_.options.usage_extension ? &reuse_ : nullptr; }

  const Backend& backend() const { return service_.backend(); }

  Service& service_;
  std::shared_ptr<Exchange> exchange_;
  AnswerHead head_;
  std::vector<ChoiceState> choices_;
  Usage usage_;  // prompt figures from the start, the others as choices end

 private:
  void report_reuse(size_t index);
  void measure_token(ChoiceState& choice, const GenerationEvent& event);
  void finish_choice(size_t index, GenerationEvent& event);
  void complete();
  void send_gathered();
  void fail(Generation* generation, const Error& error);

  SteadyTime arrival_;
  ReuseReport reuse_;
  std::string gathered_;  // events of a stream, not handed to the exchange yet
  size_t num_finished_ = 0;
  bool is_over_ = false;
};

/// Submits the requests and sets the answer going; on an error answers with it.
void start_answer(Service& service, std::vector<runtime::Request> requests, std::unique_ptr<Answer> answer,
                  const std::shared_ptr<Exchange>& exchange);

/// Request of choice `index`, without prompt, max_tokens and log-probabilities.
runtime::Request engine_request(const api::SamplingFields& fields, uint32_t index,
                                const RequestOrigin& origin);

/// Sampling of choice `index`, without max_tokens and log-probabilities.
runtime::SamplingParams sampling_params(const api::SamplingFields& fields, uint32_t index,
                                        const text::Tokenizer& tokenizer);

/// Largest number of prompts times n in one completions request.
inline constexpr size_t kCompletionChoicesMax = 1024;

/// Answers with an API error.
void respond_error(Exchange& exchange, const api::ApiError& error);

}  // namespace rorqual::server
