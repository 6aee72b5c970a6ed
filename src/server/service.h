// SPDX-License-Identifier: Apache-2.0
// What all routes share: the engine and tokenizer once they are there, options, workers, metrics, running
// requests.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/policy.h"
#include "base/check.h"
#include "grammar/constraint.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/worker_pool.h"
#include "text/prompt_encoder.h"

namespace rorqual::server {

/// The model side; immutable once it exists.
struct Backend {
  Backend(runtime::Engine& e, const text::Tokenizer& t, const ServerOptions& options);

  runtime::Engine& engine;
  const text::Tokenizer& tokenizer;
  std::unique_ptr<text::PromptEncoder> prompts;  // any thread
  std::string checkpoint_encoder;                // of the checkpoint's own encoder, if it has one
  std::vector<std::string> model_names;          // the first one is printed in metrics
  api::ApiPolicy policy;
  std::unique_ptr<grammar::ConstraintCompiler> constraints;
  std::string fingerprint;      // system_fingerprint of answers
  int64_t token_bytes_max = 1;  // longest token: bounds the tokens of a text from below
  int64_t max_model_len = 0;
};

/// Whose request it is, and whose tokens.
struct RequestOrigin {
  std::string client_key;
  bool uses_priority = true;
  const text::Tokenizer& tokenizer;
};

/// Any thread.
class Service {
 public:
  explicit Service(ServerOptions o);

  void attach(runtime::Engine& engine, const text::Tokenizer& tokenizer,
              const std::string& checkpoint_encoder);

  bool is_attached() const { return backend_.load() != nullptr; }

  const Backend& backend() const {
    const Backend* b = backend_.load();
    RORQUAL_CHECK(b != nullptr);
    return *b;
  }

  Metrics& metrics() const { return *metrics_; }  // after attach

  RequestOrigin origin(const HttpRequest& request) const {
    return {client_key(request), options.uses_priority, backend().tokenizer};
  }

  /// Runs the text work of a request on a pool; its body is gone afterwards. Requests with large bodies have
  /// a thread of their own and wait for each other: nobody else waits for them.
  using TextWork = std::function<void(const std::shared_ptr<Exchange>&)>;
  void prepare(std::shared_ptr<Exchange> exchange, TextWork work);

  /// Answers 429 if the queue is full, before any work on the request; else the request counts as being
  /// prepared until a Preparing of it ends. IO thread.
  bool refuse_if_full(Exchange& exchange);

  /// A request's preparation, until end() or the end of the scope. It ends before the engine gets the
  /// request: one that counts twice could make another one be refused.
  class Preparing {
   public:
    explicit Preparing(Service& service) : service_(service) {}

    ~Preparing() { end(); }

    void end() { service_.num_preparing_ -= std::exchange(count_, 0); }

    Preparing(const Preparing&) = delete;
    Preparing& operator=(const Preparing&) = delete;

   private:
    Service& service_;
    int count_ = 1;
  };

  /// Logs why a prefix was not reused: at info when much was lost, not more often than once a second.
  void log_miss(const std::string& request_id, const runtime::FinishInfo& info);

  /// Remembers a running generation for shutdown.
  void add(const std::shared_ptr<Generation>& generation);
  std::vector<std::shared_ptr<Generation>> live_generations();

  const ServerOptions options;
  const int64_t started_at_s;  // Unix time
  std::atomic<bool> is_draining{false};
  std::atomic<double> load_progress{0};
  /// Name of the client by its API key, for fairness; empty without keys. Set before the first request.
  std::function<std::string(const HttpRequest&)> client_key = [](const HttpRequest&) {
    return std::string();
  };
  WorkerPool large_pool;    // the same for large bodies, one thread
  WorkerPool prepare_pool;  // parse, render, tokenise; answers that come in one piece
  BatchThread delivery;     // pieces of streams: never behind a long text

 private:
  std::unique_ptr<Backend> owned_backend_;
  std::unique_ptr<Metrics> metrics_;
  std::atomic<const Backend*> backend_{nullptr};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Generation>> generations_;
  size_t prune_at_ = 64;
  std::atomic<int64_t> num_preparing_{0};
  std::atomic<int64_t> last_miss_log_s_{0}, num_unlogged_misses_{0};
};

int64_t unix_time_s();

/// Handlers of routes that need the model. They run on the IO thread and hand the work to a pool at once.
void handle_chat(Service& service, std::shared_ptr<Exchange> exchange);
void handle_messages(Service& service, std::shared_ptr<Exchange> exchange);
void handle_responses(Service& service, std::shared_ptr<Exchange> exchange);
void handle_count_tokens(Service& service, std::shared_ptr<Exchange> exchange);
void handle_completion(Service& service, std::shared_ptr<Exchange> exchange);
void handle_tokenize(Service& service, std::shared_ptr<Exchange> exchange);
void handle_detokenize(Service& service, std::shared_ptr<Exchange> exchange);

/// Short answers, given on the IO thread.
void handle_models(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_model(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_health(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_ready(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_version(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_stored_response(const Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_load(const Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace rorqual::server
