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
#include "server/error_body.h"
#include "server/generation.h"
#include "server/json_writer.h"
#include "server/service.h"
#include "server/usage.h"

namespace rorqual::server {

/// Why a choice ended, the same in all protocols.
enum class EndCause : uint8_t { stop, length, tool_calls, repetition };

/// Text of one token as it is shown in log-probabilities; `as_id` gives "token_id:N".
std::string token_label(const text::Tokenizer& tokenizer, int32_t token, bool as_id);

/// List of vLLM's prompt_logprobs: null, then {"id":{"logprob","rank","decoded_token"}} with the prompt's own
/// token first and at most `k` best ones (-1 = all that are there).
void write_prompt_logprobs(JsonWriter& json,
                           const std::vector<std::optional<runtime::PositionLogprobs>>& rows, int32_t k,
                           const text::Tokenizer& tokenizer);

/// token, logprob and bytes of one entry of a chat's list, then its `top_logprobs`.
void write_token_logprobs(JsonWriter& json, const runtime::PositionLogprobs& row,
                          const text::Tokenizer& tokenizer, bool as_id);

/// List of ids as a field.
void write_ids(JsonWriter& json, const char* name, const std::vector<int32_t>& ids);

/// `id` and everything that is the same in all pieces of an answer.
struct AnswerHead {
  std::string id;
  std::string model;
  int64_t created_s = 0;
  api::StreamFields stream;
  bool has_usage_chunk = false;  // OpenAI's form: usage in a chunk of its own, only if asked for
};

/// With the server's own choices in it, and the time of now.
AnswerHead answer_head(const Service& service, std::string id, std::string model, api::StreamFields stream);

/// State of one choice that does not depend on the protocol.
struct ChoiceState {
  bool is_done = false;       // by us (stop string, end of calls): later tokens are dropped
  bool is_repeating = false;  // why we ended it: RepetitionLimit
  bool is_finished = false;   // the engine reported its end
  int64_t num_tokens = 0;     // taken up
  int64_t num_sent = 0;       // of those, when a piece was last sent
  runtime::FinishInfo info;
  std::vector<int32_t> recent;  // tokens, if repetitions are looked for
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

  /// The first choice begins to run. Not before every engine's first token.
  virtual void on_prefix(int64_t /*cached_tokens*/) {}

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

  virtual std::string usage_piece() { return {}; }

  virtual int64_t max_tokens() const = 0;
  virtual const api::SamplingFields& sampling() const = 0;

  /// Last events of a complete stream. Here: those of the OpenAI form.
  virtual void send_last();
  /// Last events of a stream that failed.
  virtual void send_failure(const HttpError& error);

  /// May text of this choice go out now? With a stream interval it waits for enough tokens; the first piece
  /// and the last one never wait.
  bool is_piece_due(size_t choice) const;

  /// Joins the pieces of this delivery, which are sent together.
  void send_piece(std::string_view json);
  void send_event(std::string_view name, std::string_view json);

  /// Ends the stream by [DONE].
  void send_done() { gathered_ += "data: [DONE]\n\n"; }

  /// The `usage` field of a chat or completions chunk. The official form has it on the last chunk, null on
  /// the others if it was asked for; OpenAI's in a chunk of its own.
  void write_chunk_usage(JsonWriter& json, const Usage& usage, bool is_last_chunk) const;

  /// "length" by the engine's limit, "repetition" by ours, else "stop"; calls are the parser's matter.
  EndCause end_cause(size_t choice) const;
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
  bool is_repeating(ChoiceState& choice, int32_t token) const;
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
