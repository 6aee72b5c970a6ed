// SPDX-License-Identifier: Apache-2.0
// A few threads, one connection and one request each; what waits, waits in a queue here.
#include "tools/remote_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/check.h"
#include "runtime/request_check.h"
#include "tools/completion_reply.h"
#include "tools/http_client.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxTries = 8;
constexpr double kMaxWait_s = 120;
constexpr int64_t kMaxAnswer_bytes = int64_t{2} << 30;

/// One accepted request.
struct Job {
  runtime::RequestId id = 0;
  runtime::Request request;
  std::shared_ptr<runtime::TokenSink> sink;
  std::atomic<bool> is_cancelled{false};
};

/// http://user:secret@host/ -> http://host/
std::string without_credentials(const std::string& url) {
  const auto scheme = url.find("://");
  if (scheme == std::string::npos) return url;
  const auto host = scheme + 3;
  const auto slash = std::min(url.find('/', host), url.size());
  const auto at = url.rfind('@', slash);
  if (at == std::string::npos || at < host) return url;
  return url.substr(0, host) + url.substr(at + 1);
}

/// The field as text or number, or the default when it is absent or of another kind.
std::string text_field(const nlohmann::json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_string()
             ? object[name].get<std::string>()
             : std::string();
}

int64_t number_field(const nlohmann::json& object, const char* name, int64_t otherwise) {
  return object.is_object() && object.contains(name) && object[name].is_number_integer()
             ? object[name].get<int64_t>()
             : otherwise;
}

Error bad_models(const std::string& url) {
  return {Code::corrupt_data, fmt::format("{}/v1/models: the answer lists no model", url),
          "--url must point to an OpenAI-compatible server"};
}

}  // namespace

struct RemoteEngine::Impl {
  explicit Impl(HttpClient http_client) : client(std::move(http_client)) {}

  ~Impl() { stop(); }

  Status ask(const RemoteOptions& options);
  Status ask_models(const std::string& wanted);
  void ask_version();
  void start(int64_t connections);
  void stop();
  void run();
  void serve(Job& job);
  Result<CompletionReply> call(Job& job);
  Result<CompletionReply> stream(Job& job);
  void count(int64_t prompt_tokens, int64_t generated_tokens);
  Result<HttpAnswer> post_patiently(Job& job, const std::string& body);
  std::string body_of(const runtime::Request& request) const;
  void deliver(Job& job, CompletionReply reply);

  HttpClient client;
  std::string model;  // to ask for
  runtime::EngineInfo info;
  RemoteServer server;

  mutable std::mutex mutex;
  std::condition_variable wake, idle;
  std::deque<std::shared_ptr<Job>> waiting;
  std::map<runtime::RequestId, std::shared_ptr<Job>> unfinished;
  std::mutex parsing;  // one large answer is taken apart at a time
  runtime::RequestId num_accepted = 0;
  runtime::EngineStats figures;
  bool is_streaming = false;
  bool is_draining = false, is_stopping = false;
  std::vector<std::thread> threads;
};

Status RemoteEngine::Impl::ask_models(const std::string& wanted) {
  RORQUAL_TRY_ASSIGN(const std::string body, client.get("/v1/models"));
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array() || json["data"].empty())
    return bad_models(server.url);
  std::string served;
  const nlohmann::json* found = nullptr;
  for (const auto& entry : json["data"]) {
    const std::string id = text_field(entry, "id");
    served += (served.empty() ? "" : ", ") + id;
    if (found == nullptr && (wanted.empty() || id == wanted)) found = &entry;
  }
  if (found == nullptr) {
    return Error(
        Code::invalid_argument,
        fmt::format("model '{}' is not served at {}; this server has: {}", wanted, server.url, served),
        "correct --served-model-name");
  }
  model = text_field(*found, "id");
  info.model_name = model;
  info.max_model_len = number_field(*found, "max_model_len", 0);
  server.is_rorqual = text_field(*found, "owned_by") == "rorqual";
  if (model.empty()) return bad_models(server.url);
  if (info.max_model_len > 0) return Ok();
  return Error(Code::unsupported, fmt::format("{}/v1/models does not tell max_model_len", server.url),
               "the server must be rorqual or vLLM");
}

/// Not every server has it; what it does not tell stays empty.
void RemoteEngine::Impl::ask_version() {
  auto body = client.get("/version");
  if (!body.ok()) return;
  const auto json = nlohmann::json::parse(*body, nullptr, false);
  server.version = text_field(json, "version");
  server.commit = text_field(json, "commit");
  if (!server.is_rorqual) return;
  info.numerics = text_field(json, "numerics");
  info.kernels = text_field(json, "kernels");
  info.switches = text_field(json, "switches");
  info.vocab_size = number_field(json, "vocab_size", 0);
  info.eos_token_id = static_cast<int32_t>(number_field(json, "eos_token_id", info.eos_token_id));
}

Status RemoteEngine::Impl::ask(const RemoteOptions& options) {
  server.url = without_credentials(options.url);
  RORQUAL_TRY(ask_models(options.model));
  ask_version();
  if (info.vocab_size < 1) info.vocab_size = options.vocab_size;
  if (info.vocab_size > 0) return Ok();
  return Error(Code::invalid_argument, fmt::format("{} does not tell its vocabulary size", server.url),
               "give it by --vocab-size (129280 for DeepSeek-V4.1)");
}

void RemoteEngine::Impl::start(int64_t connections) {
  for (int64_t i = 0; i < std::max<int64_t>(connections, 1); ++i) threads.emplace_back([this] { run(); });
}

void RemoteEngine::Impl::stop() {
  {
    const std::lock_guard lock(mutex);
    is_stopping = true;
    for (const auto& [id, job] : unfinished) job->is_cancelled = true;
  }
  wake.notify_all();
  for (auto& thread : threads) thread.join();
  threads.clear();
}

void RemoteEngine::Impl::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait(lock, [this] { return is_stopping || !waiting.empty(); });
    if (waiting.empty()) return;
    const auto job = waiting.front();
    waiting.pop_front();
    lock.unlock();
    serve(*job);
    lock.lock();
    unfinished.erase(job->id);
    if (unfinished.empty()) idle.notify_all();
  }
}

/// The sink hears of the end exactly once, whatever happens.
void RemoteEngine::Impl::serve(Job& job) {
  runtime::FinishInfo end;
  end.reason = runtime::FinishReason::error;
  try {
    const auto& sampling = job.request.sampling;
    const bool has_rows = sampling.prompt_logprobs >= 0 || sampling.max_tokens == 0;
    auto reply = is_streaming && !has_rows ? stream(job) : call(job);
    if (reply.ok()) return deliver(job, *std::move(reply));
    if (job.is_cancelled || reply.error().code() == Code::cancelled) {
      end.reason = runtime::FinishReason::cancelled;
    } else {
      end.error = std::move(reply).error();
    }
  } catch (const std::exception& e) {
    end.error = Error(Code::internal, fmt::format("a request to {} failed: {}", server.url, e.what()));
  }
  end.prompt_tokens = static_cast<int64_t>(job.request.prompt.size());
  job.sink->on_finish(end);
}

/// Passes tokens on as they come; what is returned has none left, only how it ended.
Result<CompletionReply> RemoteEngine::Impl::stream(Job& job) {
  const runtime::SamplingParams& p = job.request.sampling;
  ReplyContext context;
  context.prompt = job.request.prompt;
  context.num_logprobs = p.logprobs;
  context.eos_token_id = info.eos_token_id;
  context.is_piece = true;
  CompletionReply end;
  int64_t num_tokens = 0;
  const HttpClient own = client.with_stop(&job.is_cancelled);
  const auto on_event = [&](std::string_view data) -> Status {
    std::string text(data);
    RORQUAL_TRY_ASSIGN(CompletionReply piece, read_completion(text, context, {}));
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      job.sink->on_token(piece.tokens[i], std::move(piece.rows[i]));
    }
    if (!piece.tokens.empty()) {
      const auto more = static_cast<int64_t>(piece.tokens.size());
      count(num_tokens == 0 ? static_cast<int64_t>(job.request.prompt.size()) : 0, more);
      num_tokens += more;
    }
    if (piece.has_end) {
      end.has_end = true;
      end.info.reason = piece.info.reason;
      end.info.stop_token = piece.info.stop_token;
    }
    if (piece.has_usage) {
      end.info.prompt_tokens = piece.info.prompt_tokens;
      end.info.cached_tokens = piece.info.cached_tokens;
      end.info.completion_tokens = piece.info.completion_tokens;
    }
    return Ok();
  };
  const Status status = own.post_events("/v1/completions", body_of(job.request), on_event);
  if (!status.ok()) return status.error();
  if (!end.has_end) {
    return Error(Code::unavailable, fmt::format("{} ended its answer without a finish_reason", server.url));
  }
  end.info.completion_tokens = std::max(end.info.completion_tokens, num_tokens);
  return end;
}

/// The prompt counts with its first token.
void RemoteEngine::Impl::count(int64_t prompt_tokens, int64_t generated_tokens) {
  const std::lock_guard lock(mutex);
  figures.generation_tokens += generated_tokens;
  figures.prompt_tokens += prompt_tokens;
}

void RemoteEngine::Impl::deliver(Job& job, CompletionReply reply) {
  if (!reply.tokens.empty()) {
    count(static_cast<int64_t>(job.request.prompt.size()), static_cast<int64_t>(reply.tokens.size()));
  }
  for (size_t i = 0; i < reply.tokens.size(); ++i)
    job.sink->on_token(reply.tokens[i], std::move(reply.rows[i]));
  if (reply.info.prompt_tokens == 0)
    reply.info.prompt_tokens = static_cast<int64_t>(job.request.prompt.size());
  job.sink->on_finish(reply.info);
}

Result<CompletionReply> RemoteEngine::Impl::call(Job& job) {
  const runtime::SamplingParams& p = job.request.sampling;
  RORQUAL_TRY_ASSIGN(HttpAnswer answer, post_patiently(job, body_of(job.request)));
  ReplyContext context;
  context.prompt = job.request.prompt;
  context.first_scored = p.prompt_logprobs_begin;
  context.top_k = p.prompt_logprobs;
  context.num_logprobs = p.max_tokens == 0 ? -1 : p.logprobs;
  context.eos_token_id = info.eos_token_id;
  std::vector<std::optional<runtime::PositionLogprobs>> rows;
  if (p.prompt_logprobs >= 0 && !p.stream_prompt_rows) rows.resize(job.request.prompt.size());
  const std::lock_guard lock(parsing);
  auto reply = read_completion(answer.body, context, [&](int64_t position, runtime::PositionLogprobs row) {
    if (p.stream_prompt_rows) {
      job.sink->on_prompt_row(position, std::move(row), {});
    } else {
      rows[static_cast<size_t>(position)] = std::move(row);
    }
  });
  if (!reply.ok()) return std::move(reply).error().at(server.url);
  if (p.prompt_logprobs >= 0 && !p.stream_prompt_rows) job.sink->on_prompt_logprobs(std::move(rows));
  if (p.max_tokens == 0) {  // a server that must generate one token was asked for it
    reply->tokens.clear();
    reply->rows.clear();
    reply->info.reason = runtime::FinishReason::length;
    reply->info.stop_token.reset();
    reply->info.completion_tokens = 0;
  }
  return reply;
}

Result<HttpAnswer> RemoteEngine::Impl::post_patiently(Job& job, const std::string& body) {
  const HttpClient own = client.with_stop(&job.is_cancelled);
  for (int tries = 1;; ++tries) {
    RORQUAL_TRY_ASSIGN(HttpAnswer answer, own.post("/v1/completions", body));
    if (answer.status / 100 == 2) return answer;
    const bool is_busy = answer.status == 429 || answer.status == 503;
    if (!is_busy || !answer.retry_after_s || tries == kMaxTries) return own.error_of(answer);
    const std::chrono::duration<double> pause(std::min(*answer.retry_after_s, kMaxWait_s));
    std::unique_lock lock(mutex);
    wake.wait_for(lock, pause, [&] { return job.is_cancelled.load(); });
    if (job.is_cancelled) return Error(Code::cancelled, "interrupted");
  }
}

std::string RemoteEngine::Impl::body_of(const runtime::Request& request) const {
  const runtime::SamplingParams& p = request.sampling;
  const bool is_scoring = p.max_tokens == 0;
  Json body{{"model", model},
            {"prompt", request.prompt},
            {"max_tokens", is_scoring && !server.is_rorqual ? 1 : p.max_tokens},
            {"temperature", p.temperature},
            {"stream", is_streaming && !is_scoring && p.prompt_logprobs < 0}};
  const auto add = [&body](const char* name, const auto& value, bool differs) {
    if (differs) body[name] = value;
  };
  const runtime::SamplingParams plain;
  add("prompt_logprobs", p.prompt_logprobs, p.prompt_logprobs >= 0);
  add("prompt_logprobs_begin", p.prompt_logprobs_begin, p.prompt_logprobs >= 0 && server.is_rorqual);
  add("priority", request.priority, request.priority != 0);
  if (is_scoring) return body.dump();
  body["return_token_ids"] = true;
  body["return_tokens_as_token_ids"] = true;
  // Labels stand in for the ids of servers without return_token_ids.
  if (p.logprobs >= 0 || !is_streaming || !server.is_rorqual) body["logprobs"] = std::max(p.logprobs, 0);
  if (body["stream"] == true) body["stream_options"] = {{"include_usage", true}};
  add("cache_salt", request.cache_salt, !request.cache_salt.empty());
  add("skip_reading_prefix_cache", true, !request.reads_prefix_cache);
  if (request.drafts && server.is_rorqual) body["speculative_tokens"] = *request.drafts;
  if (request.replay_trim && server.is_rorqual) body["replay_trim"] = *request.replay_trim;
  add("top_k", p.top_k, p.top_k != plain.top_k);
  add("top_p", p.top_p, p.top_p != plain.top_p);
  add("min_p", p.min_p, p.min_p != plain.min_p);
  add("presence_penalty", p.presence_penalty, p.presence_penalty != 0);
  add("frequency_penalty", p.frequency_penalty, p.frequency_penalty != 0);
  add("repetition_penalty", p.repetition_penalty, p.repetition_penalty != 1);
  if (p.seed) body["seed"] = *p.seed;
  add("min_tokens", p.min_tokens, p.min_tokens > 0);
  add("ignore_eos", true, p.ignore_eos);
  add("stop_token_ids", p.stop_token_ids, !p.stop_token_ids.empty());
  add("allowed_token_ids", p.allowed_token_ids, !p.allowed_token_ids.empty());
  for (const auto& [id, bias] : p.logit_bias) body["logit_bias"][std::to_string(id)] = bias;
  return body.dump();
}

RemoteEngine::RemoteEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RemoteEngine::~RemoteEngine() = default;

Result<std::unique_ptr<RemoteEngine>> RemoteEngine::connect(const RemoteOptions& options) {
  RORQUAL_TRY_ASSIGN(HttpClient client, HttpClient::create(options.url, options.api_key, nullptr));
  client.set_timeout(options.timeout_s);
  client.set_body_limit(kMaxAnswer_bytes);
  auto impl = std::make_unique<Impl>(std::move(client));
  RORQUAL_TRY(impl->ask(options));
  impl->is_streaming = options.is_streaming;
  impl->start(options.connections);
  return std::unique_ptr<RemoteEngine>(new RemoteEngine(std::move(impl)));
}

const runtime::EngineInfo& RemoteEngine::info() const {
  return impl_->info;
}

const RemoteServer& RemoteEngine::server() const {
  return impl_->server;
}

Result<runtime::RequestId> RemoteEngine::submit(runtime::Request request,
                                                std::shared_ptr<runtime::TokenSink> sink) {
  RORQUAL_CHECK(sink != nullptr);
  const runtime::EngineInfo& info = impl_->info;
  const runtime::SamplingParams& p = request.sampling;
  if (!p.forced_tokens.empty() || !p.bad_token_sequences.empty() || !p.logprob_token_ids.empty() ||
      p.constraint != nullptr) {
    return Error(
        Code::unsupported,
        "forced_tokens, bad_token_sequences, logprob_token_ids and constraints do not exist behind a URL",
        "load the model in this process");
  }
  // Other servers generate a token after a scored prompt, which needs its place.
  const bool has_extra = p.max_tokens == 0 && !impl_->server.is_rorqual;
  RORQUAL_TRY(
      runtime::check_request(request, {info.vocab_size, info.max_model_len - (has_extra ? 1 : 0), -1, 0}));
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->sink = std::move(sink);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_draining || impl_->is_stopping)
    return Error(Code::unavailable, "the connection is being closed and takes no new requests");
  job->id = ++impl_->num_accepted;
  impl_->unfinished.emplace(job->id, job);
  impl_->waiting.push_back(job);
  impl_->wake.notify_all();
  return job->id;
}

void RemoteEngine::cancel(runtime::RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->unfinished.find(id);
  if (found == impl_->unfinished.end()) return;
  found->second->is_cancelled = true;
  impl_->wake.notify_all();
}

runtime::EngineStats RemoteEngine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  runtime::EngineStats stats = impl_->figures;
  stats.requests_waiting = static_cast<int64_t>(impl_->waiting.size());
  stats.requests_running = static_cast<int64_t>(impl_->unfinished.size()) - stats.requests_waiting;
  return stats;
}

bool RemoteEngine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->is_draining = true;
  return impl_->idle.wait_for(lock, timeout, [this] { return impl_->unfinished.empty(); });
}

Result<std::vector<int32_t>> RemoteEngine::tokenize(std::string_view text) const {
  const Json body{{"model", impl_->model}, {"prompt", text}, {"add_special_tokens", false}};
  std::string body_text;
  try {
    body_text = body.dump();
  } catch (const Json::type_error&) {
    return Error(Code::invalid_argument, "the text is not valid UTF-8 and cannot be sent as JSON",
                 "convert it, or give the model's tokenizer.json by --tokenizer");
  }
  RORQUAL_TRY_ASSIGN(const HttpAnswer answer, impl_->client.post("/tokenize", body_text));
  if (answer.status / 100 != 2) return impl_->client.error_of(answer).at("/tokenize");
  const auto json = nlohmann::json::parse(answer.body, nullptr, false);
  if (json.is_object() && json.contains("tokens") && json["tokens"].is_array()) {
    std::vector<int32_t> ids;
    for (const auto& id : json["tokens"]) {
      if (!id.is_number_integer()) break;
      ids.push_back(id.get<int32_t>());
    }
    if (ids.size() == json["tokens"].size()) return ids;
  }
  return Error(Code::corrupt_data,
               fmt::format("{}/tokenize: the answer has no list of tokens", impl_->server.url),
               "give the model's tokenizer.json by --tokenizer");
}

}  // namespace rorqual::tools
