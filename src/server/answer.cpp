// SPDX-License-Identifier: Apache-2.0
// Life of an answer: tokens in, pieces or one body out, exactly one end.
#include "server/answer.h"

#include <algorithm>
#include <utility>

namespace rorqual::server {

namespace {

/// Tokens that the engine reports so close together come from one step: drafts that were accepted.
constexpr std::chrono::microseconds kSameStep{100};

double seconds_between(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

Outcome outcome(const ChoiceState& choice) {
  if (choice.is_done) return Outcome::stop;
  switch (choice.info.reason) {
    case runtime::FinishReason::stop:
      return Outcome::stop;
    case runtime::FinishReason::length:
      return Outcome::length;
    case runtime::FinishReason::cancelled:
      return Outcome::abort;
    case runtime::FinishReason::error:
      break;
  }
  return Outcome::error;
}

/// The engine's refusals begin with the name of the parameter, "stop_token_ids[2] is 5000000 …", which is
/// that of the request's field.
std::string field_of(const Error& error) {
  if (error.code() != Code::invalid_argument) return {};
  const std::string& message = error.message();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  const std::string name = message.substr(0, end);
  const bool is_field = name.find('_') != std::string::npos || name == "temperature" || name == "prompt";
  if (!is_field || end == std::string::npos) return {};
  return name == "bad_token_sequences" ? "bad_words" : name;
}

std::string milliseconds(double seconds) {
  return std::to_string(static_cast<int64_t>(seconds * 1000 + 0.5));
}

}  // namespace

std::string token_label(const text::Tokenizer& tokenizer, int32_t token, bool as_id) {
  if (as_id) return "token_id:" + std::to_string(token);
  return tokenizer.decode({&token, 1}, false);
}

void write_prompt_logprobs(JsonWriter& json,
                           const std::vector<std::optional<runtime::PositionLogprobs>>& rows, int32_t k,
                           const text::Tokenizer& tokenizer) {
  const auto entry = [&](const runtime::TokenLogprob& t) {
    json.key(std::to_string(t.token)).begin_object();
    json.key("logprob").logprob(t.logprob).field("rank", int64_t{t.rank});
    json.field("decoded_token", token_label(tokenizer, t.token, false)).end_object();
  };
  json.begin_array();
  for (const auto& row : rows) {
    if (!row) {
      json.null();
      continue;
    }
    json.begin_object();
    entry(row->chosen);
    const size_t count = k < 0 ? row->top.size() : std::min(row->top.size(), static_cast<size_t>(k));
    for (size_t i = 0; i < count; ++i) {
      if (row->top[i].token != row->chosen.token) entry(row->top[i]);
    }
    json.end_object();
  }
  json.end_array();
}

void write_token_logprobs(JsonWriter& json, const runtime::PositionLogprobs& row,
                          const text::Tokenizer& tokenizer, bool as_id) {
  const auto begin_entry = [&](const runtime::TokenLogprob& t) {
    json.begin_object();
    json.field("token", token_label(tokenizer, t.token, as_id)).key("logprob").logprob(t.logprob);
    json.key("bytes").begin_array();
    for (const char c : tokenizer.token_bytes(t.token)) json.integer(static_cast<unsigned char>(c));
    json.end_array();
  };
  begin_entry(row.chosen);
  json.key("top_logprobs").begin_array();
  for (const auto& t : row.top) {
    begin_entry(t);
    json.end_object();
  }
  json.end_array().end_object();
}

void write_ids(JsonWriter& json, const char* name, const std::vector<int32_t>& ids) {
  json.key(name).begin_array();
  for (const int32_t id : ids) json.integer(id);
  json.end_array();
}

AnswerHead answer_head(const Service& service, std::string id, std::string model, api::StreamFields stream) {
  stream.interval = std::max(stream.interval, service.options.stream_interval);
  return {std::move(id), std::move(model), unix_time_s(), stream, service.options.openai_usage_chunk};
}

Answer::Answer(Service& service, std::shared_ptr<Exchange> exchange, AnswerHead head, size_t num_choices)
    : service_(service),
      exchange_(std::move(exchange)),
      head_(std::move(head)),
      choices_(num_choices),
      arrival_(exchange_->request().arrival) {}

void Answer::begin() {
  if (!head_.stream.stream) return;
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->begin_stream(std::move(response));
  on_begin();
  send_gathered();
}

void Answer::send_gathered() {
  if (!gathered_.empty()) exchange_->write(std::exchange(gathered_, {}));
}

void Answer::on_events(Generation& generation, std::vector<GenerationEvent> events) {
  for (GenerationEvent& event : events) {
    if (is_over_) return;
    ChoiceState& choice = choices_[event.choice];
    switch (event.kind) {
      case GenerationEvent::Kind::begin:
        if (event.choice == 0) on_prefix(event.cached_tokens);
        break;
      case GenerationEvent::Kind::prompt_logprobs:
        on_prompt_rows(event.choice, std::move(*event.prompt_rows));
        break;
      case GenerationEvent::Kind::token:
        if (choice.is_done) break;
        measure_token(choice, event);
        ++choice.num_tokens;
        choice.is_repeating = is_repeating(choice, event.token);
        if (on_token(event.choice, event) || choice.is_repeating) {
          choice.is_done = true;
          generation.cancel(event.choice);
        }
        break;
      case GenerationEvent::Kind::finish:
        // What was generated before a failure reaches the client.
        if (head_.stream.stream && !choice.is_done) send_pieces();
        finish_choice(event.choice, event);
        break;
    }
    if (choice.is_finished && outcome(choice) == Outcome::error) {
      fail(&generation, choice.info.error.value_or(Error(Code::internal, "the engine failed")));
    } else if (choice.is_finished && outcome(choice) == Outcome::abort) {
      fail(&generation, Error(Code::unavailable, "The server is stopping; the request was cancelled."));
    }
  }
  if (is_over_) return;
  if (head_.stream.stream) send_pieces();
  if (num_finished_ == choices_.size()) {
    complete();
  } else {
    send_gathered();
  }
}

void Answer::measure_token(ChoiceState& choice, const GenerationEvent& event) {
  if (!choice.first_token) {
    choice.first_token = event.time;
    service_.metrics().observe_first_token(seconds_between(arrival_, event.time));
  } else if (event.time - *choice.last_token > kSameStep) {
    service_.metrics().observe_next_token(seconds_between(*choice.last_token, event.time));
  }
  choice.last_token = event.time;
}

/// Linear in the pattern's size times the number of sizes: both are limited by the request's parser.
bool Answer::is_repeating(ChoiceState& choice, int32_t token) const {
  const auto& limit = sampling().repetition;
  if (!limit) return false;
  choice.recent.push_back(token);
  const auto& tokens = choice.recent;
  const auto length = static_cast<int64_t>(tokens.size());
  for (int64_t size = limit->min_size; size <= limit->max_size && size * limit->min_count <= length; ++size) {
    // The last size * min_count tokens have the period `size` if each equals the one a period earlier.
    const int64_t first = length - size * (limit->min_count - 1);
    int64_t i = length - 1;
    while (i >= first && tokens[static_cast<size_t>(i)] == tokens[static_cast<size_t>(i - size)]) --i;
    if (i < first) return true;
  }
  return false;
}

bool Answer::is_piece_due(size_t choice) const {
  const ChoiceState& state = choices_[choice];
  if (state.is_done || state.is_finished || state.num_sent == 0) return true;
  return state.num_tokens - state.num_sent >= head_.stream.interval;
}

void Answer::write_chunk_usage(JsonWriter& json, const Usage& usage, bool is_last_chunk) const {
  const bool is_official_end = is_last_chunk && !head_.has_usage_chunk;
  if (head_.stream.continuous_usage_stats || is_official_end) {
    json.key("usage");
    write_usage(json, usage, is_official_end ? reuse() : nullptr);
  } else if (head_.stream.include_usage) {
    json.null_field("usage");
  }
}

EndCause Answer::end_cause(size_t choice) const {
  const ChoiceState& state = choices_[choice];
  if (state.is_repeating) return EndCause::repetition;
  const bool by_length = !state.is_done && state.info.reason == runtime::FinishReason::length;
  return by_length ? EndCause::length : EndCause::stop;
}

int64_t Answer::completion_tokens(size_t choice) const {
  const ChoiceState& state = choices_[choice];
  // The engine may have run a step further than the stop that we found in the text.
  return state.is_finished && !state.is_done ? state.info.completion_tokens : state.num_tokens;
}

void Answer::finish_choice(size_t index, GenerationEvent& event) {
  ChoiceState& choice = choices_[index];
  choice.is_finished = true;
  choice.info = std::move(*event.info);
  ++num_finished_;
  const runtime::FinishInfo& info = choice.info;
  service_.metrics().observe_finish({.outcome = outcome(choice),
                                     .prompt_tokens = info.prompt_tokens,
                                     .cached_tokens = info.cached_tokens,
                                     .completion_tokens = completion_tokens(index),
                                     .max_tokens = max_tokens(),
                                     .preemptions = info.preemptions,
                                     .e2e_s = seconds_between(arrival_, event.time),
                                     .queue_s = info.queue_s,
                                     .prefill_s = info.prefill_s,
                                     .decode_s = info.decode_s});
  report_reuse(index);
  on_choice_end(index);
  const double first_s = choice.first_token ? seconds_between(arrival_, *choice.first_token) : 0;
  int64_t generated = 0;
  for (size_t i = 0; i < choices_.size(); ++i) generated += completion_tokens(i);
  exchange_->set_log_note("prompt=" + std::to_string(usage_.prompt_tokens) + " cached=" +
                          std::to_string(usage_.cached_tokens) + " generated=" + std::to_string(generated) +
                          " queue_ms=" + milliseconds(info.queue_s) + " ttft_ms=" + milliseconds(first_s));
}

/// Gathers what the engine tells of the prefix, and logs why more of it was not reused.
void Answer::report_reuse(size_t index) {
  const runtime::FinishInfo& info = choices_[index].info;
  const bool is_first = is_first_of_prompt(index);
  reuse_.add(info, is_first);
  if (index == 0) {
    reuse_.miss = info.prefix;
    const text::Tokenizer& tokenizer = backend().tokenizer;
    const auto text = [&](const std::optional<int32_t>& token) {
      return token ? token_label(tokenizer, *token, false) : std::string();
    };
    reuse_.token_text = text(info.prefix.token);
    // The kept prompt may be another client's.
    if (service_.options.api_keys.size() <= 1) reuse_.kept_token_text = text(info.prefix.kept_token);
  }
  if (is_first) service_.log_miss(exchange_->request().id, info);
}

void Answer::complete() {
  is_over_ = true;
  int64_t longest = 0;
  for (size_t i = 0; i < choices_.size(); ++i) longest = std::max(longest, completion_tokens(i));
  service_.metrics().observe_longest_choice(longest);
  if (!head_.stream.stream) {
    HttpResponse response;
    response.body = whole_body();
    exchange_->respond(std::move(response));
    return;
  }
  send_last();
  send_gathered();
  exchange_->finish();
}

void Answer::send_last() {
  if (head_.stream.include_usage && head_.has_usage_chunk) send_piece(usage_piece());
  send_done();
}

void Answer::send_failure(const HttpError& error) {
  send_piece(error_json(error));
  send_done();
}

void Answer::fail(Generation* generation, const Error& error) {
  is_over_ = true;
  if (generation != nullptr) generation->cancel_all();
  const HttpError http = http_error(error);
  if (!head_.stream.stream) {
    exchange_->respond(error_response(http, exchange_->request()));
    return;
  }
  send_failure(http);
  send_gathered();
  exchange_->finish();
}

void Answer::on_failure(const Error& error) {
  if (!is_over_) fail(nullptr, error);
}

void Answer::send_piece(std::string_view json) {
  gathered_.append("data: ").append(json).append("\n\n");
}

void Answer::send_event(std::string_view name, std::string_view json) {
  gathered_.append("event: ").append(name).append("\ndata: ").append(json).append("\n\n");
}

void start_answer(Service& service, std::vector<runtime::Request> requests, std::unique_ptr<Answer> answer,
                  const std::shared_ptr<Exchange>& exchange) {
  const auto num_choices = static_cast<int64_t>(requests.size());
  // Answers in one piece may need much time for their text, so they do not share the thread of the streams.
  const bool is_stream = answer->is_stream();
  Executor& executor = is_stream ? static_cast<Executor&>(service.delivery) : service.prepare_pool;
  auto generation = std::make_shared<Generation>(service.backend().engine, executor);
  if (const Status status = generation->submit(std::move(requests)); !status.ok()) {
    service.metrics().count_rejection(status.error().limit());
    HttpError error = http_error(status.error());
    error.param = field_of(status.error());
    exchange->respond(error_response(error, exchange->request()));
    return;
  }
  service.metrics().observe_request(num_choices);
  service.add(generation);
  exchange->on_disconnect([weak = std::weak_ptr(generation)] {
    if (const auto live = weak.lock()) live->cancel_all();
  });
  if (!is_stream && service.options.keep_alive_lines) exchange->fill_wait_with_lines();
  answer->begin();
  generation->release(std::move(answer));
}

runtime::Request engine_request(const api::SamplingFields& fields, uint32_t index,
                                const RequestOrigin& origin) {
  runtime::Request request;
  request.sampling = sampling_params(fields, index, origin.tokenizer);
  request.priority = origin.uses_priority ? fields.priority : 0;
  request.client_key = origin.client_key;
  request.reads_prefix_cache = !fields.skip_reading_prefix_cache;
  request.cache_salt = fields.cache_salt;
  request.drafts = fields.speculative_tokens;
  request.replay_trim = fields.replay_trim;
  return request;
}

runtime::SamplingParams sampling_params(const api::SamplingFields& fields, uint32_t index,
                                        const text::Tokenizer& tokenizer) {
  runtime::SamplingParams p;
  p.temperature = fields.temperature;
  p.top_k = fields.top_k;
  p.top_p = fields.top_p;
  p.min_p = fields.min_p;
  p.presence_penalty = fields.presence_penalty;
  p.frequency_penalty = fields.frequency_penalty;
  p.repetition_penalty = fields.repetition_penalty;
  p.seed = fields.seed;
  p.choice_index = index;
  p.min_tokens = fields.min_tokens;
  p.ignore_eos = fields.ignore_eos;
  p.stop_token_ids = fields.stop_token_ids;
  p.logit_bias = fields.logit_bias;
  p.allowed_token_ids = fields.allowed_token_ids;
  p.logprob_token_ids = fields.logprob_token_ids;
  for (const std::string& word : fields.bad_words) {
    // A word inside a sentence usually begins with a space, which makes it another token sequence.
    for (const std::string& form : {word, " " + word}) {
      auto ids = tokenizer.encode(form, text::EncodeMode::plain);
      if (!ids.empty()) p.bad_token_sequences.push_back(std::move(ids));
    }
  }
  return p;
}

void respond_error(Exchange& exchange, const api::ApiError& error) {
  // Not error.body(): a message may quote bytes of the request that are not UTF-8.
  exchange.respond(error_response({.status = error.http_status,
                                   .message = error.message,
                                   .type = error.type,
                                   .code = error.code,
                                   .param = error.param},
                                  exchange.request()));
}

}  // namespace rorqual::server
