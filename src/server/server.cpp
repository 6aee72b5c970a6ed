// SPDX-License-Identifier: Apache-2.0
// Puts the server together: routes, access rules, HTTP, logs, and the order of shutting down.
#include "server/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/access.h"
#include "server/error_body.h"
#include "server/http.h"
#include "server/router.h"
#include "server/service.h"
#include "server/web_page.h"

namespace rorqual::server {

namespace {

constexpr int kStatusPeriod_s = 10;
constexpr std::chrono::milliseconds kCancelTimeout{2'000};  // for the engine's step after a cancellation
constexpr std::chrono::milliseconds kFlushTimeout{2'000};   // for the last bytes to leave

/// Paths come from the network: only plain characters reach the log.
std::string loggable(std::string_view text) {
  std::string out(text.substr(0, 120));
  for (char& c : out) {
    if (c <= ' ' || c > '~') c = '?';
  }
  return out;
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions options) : service(std::move(options)) {}

  AccessOptions access_options() const;
  void add_routes();
  void add_model_routes();
  HttpConfig http_config();
  void log_access(const AccessRecord& record);
  void log_status();
  void cancel_all();
  void shut_down(std::chrono::milliseconds drain_timeout);

  Service service;
  std::unique_ptr<Router> router;
  std::unique_ptr<HttpServer> http;
  std::mutex stop_mutex;
  bool is_stopped = false, was_clean = true;
  std::atomic<bool> must_hurry{false};
  int ticks = 0;  // IO thread
  runtime::EngineStats last_stats;
};

AccessOptions Server::Impl::access_options() const {
  const ServerOptions& o = service.options;
  return {.api_keys = o.api_keys,
          .allowed_origins = o.allowed_origins,
          .allowed_hosts = o.allowed_hosts,
          .bind_host = o.host,
          .is_loopback = is_loopback_name(o.host)};
}

void Server::Impl::add_model_routes() {
  const auto post = [this](std::initializer_list<const char*> paths,
                           void (*handle)(Service&, std::shared_ptr<Exchange>)) {
    for (const char* path : paths) {
      router->add({.method = "POST",
                   .path = path,
                   .handler = [this, handle](std::shared_ptr<Exchange> e) { handle(service, std::move(e)); },
                   .needs = Route::Needs::model});
    }
  };
  post({"/v1/chat/completions", "/chat/completions", "/beta/chat/completions"}, handle_chat);
  post({"/v1/completions", "/completions", "/beta/completions"}, handle_completion);
  post({"/tokenize"}, handle_tokenize);
  post({"/detokenize"}, handle_detokenize);
  post({"/v1/messages", "/anthropic/v1/messages"}, handle_messages);
  post({"/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"}, handle_count_tokens);
  post({"/v1/responses", "/responses"}, handle_responses);
  for (const char* method : {"GET", "POST", "DELETE"}) {
    for (const char* path : {"/v1/responses/", "/responses/"}) {
      router->add({.method = method, .path = path, .handler = [this](const std::shared_ptr<Exchange>& e) {
                     handle_stored_response(service, e);
                   }});
    }
  }
}

void Server::Impl::add_routes() {
  using Handle = void (*)(const Service&, const std::shared_ptr<Exchange>&);
  const auto get = [this](const char* path, Handle handle, Route::Needs needs, bool is_open = false) {
    router->add({.method = "GET",
                 .path = path,
                 .handler = [this, handle](const std::shared_ptr<Exchange>& e) { handle(service, e); },
                 .needs = needs,
                 .is_open = is_open});
  };
  add_model_routes();
  get("/v1/models", handle_models, Route::Needs::model);
  get("/models", handle_models, Route::Needs::model);
  get("/v1/models/", handle_model, Route::Needs::model);
  get("/models/", handle_model, Route::Needs::model);
  get("/metrics", handle_metrics, Route::Needs::attached);
  get("/load", handle_load, Route::Needs::attached);
  get("/health", handle_health, Route::Needs::nothing, true);
  get("/ping", handle_health, Route::Needs::nothing);
  get("/ready", handle_ready, Route::Needs::nothing);
  get("/version", handle_version, Route::Needs::nothing);
  add_web_page(*router);
}

HttpConfig Server::Impl::http_config() {
  const ServerOptions& o = service.options;
  HttpConfig config;
  config.host = o.host;
  config.port = o.port;
  config.limits = {.max_header_bytes = o.max_header_bytes,
                   .max_headers = o.max_headers,
                   .max_body_bytes = o.max_body_bytes,
                   .max_connections = o.max_connections,
                   .max_unsent_bytes = o.max_unsent_bytes,
                   .max_total_body_bytes = o.max_total_body_bytes,
                   .header_timeout = o.header_timeout,
                   .body_timeout = o.body_timeout,
                   .idle_timeout = o.idle_timeout,
                   .write_timeout = o.write_timeout,
                   .keep_alive_interval = o.keep_alive_interval};
  config.check_head = [this](const HttpRequest& request) { return router->check(request); };
  config.handler = [this](std::shared_ptr<Exchange> exchange) { router->dispatch(std::move(exchange)); };
  config.decorate = [this](const HttpRequest& request, HttpResponse& r) { router->decorate(request, r); };
  config.error_response = [](const HttpRequest& request, int status, const std::string& message) {
    return error_response(http_error(status, message), request);
  };
  config.on_access = [this](const AccessRecord& record) { log_access(record); };
  config.on_exception = [](const char* what) { spdlog::error("http  exception on the IO thread: {}", what); };
  config.on_tick = [this] { log_status(); };
  return config;
}

void Server::Impl::log_access(const AccessRecord& record) {
  if (service.is_attached()) service.metrics().count_http(record.status);
  const ServerOptions& o = service.options;
  const auto& skip = o.access_log_skip;
  if (!o.access_log || std::find(skip.begin(), skip.end(), record.request.path) != skip.end()) return;
  spdlog::info("http  id={} {} {} status={} ms={}{}{}", record.request.id, loggable(record.request.method),
               loggable(record.request.path), record.status, record.duration.count(),
               record.note.empty() ? "" : " ", record.note);
}

/// One line every ten seconds while something runs: what waits, cache use, tokens per second since the last
/// line.
void Server::Impl::log_status() {
  if (!service.options.status_log || !service.is_attached() || ++ticks % kStatusPeriod_s != 0) return;
  const runtime::EngineStats now = service.backend().engine.stats();
  const runtime::EngineStats before = std::exchange(last_stats, now);
  const int64_t prompt = now.prompt_tokens - before.prompt_tokens;
  const int64_t generated = now.generation_tokens - before.generation_tokens;
  if (now.requests_running + now.requests_waiting + prompt + generated == 0) return;
  const auto percent = [](int64_t part, int64_t whole) { return whole > 0 ? 100 * part / whole : 0; };
  spdlog::info(
      "sched running={} waiting={} kv={}% hit={}% prefill={:.1f} tok/s decode={:.1f} tok/s",
      now.requests_running, now.requests_waiting, percent(now.cache_blocks_used, now.cache_blocks_total),
      percent(now.cached_tokens - before.cached_tokens, prompt),
      static_cast<double>(prompt) / kStatusPeriod_s, static_cast<double>(generated) / kStatusPeriod_s);
}

void Server::Impl::cancel_all() {
  for (const auto& generation : service.live_generations()) generation->cancel_all();
}

void Server::Impl::shut_down(std::chrono::milliseconds drain_timeout) {
  service.is_draining = true;
  if (service.is_attached()) {
    runtime::Engine& engine = service.backend().engine;
    const bool is_drained = must_hurry ? false : engine.drain(drain_timeout);
    was_clean = is_drained && !must_hurry;
    if (!is_drained) {
      cancel_all();
      engine.drain(kCancelTimeout);
    }
  }
  // What the engine reported is written out; then its events are cut off, so that nothing reaches a closed
  // connection.
  service.large_pool.finish();
  service.prepare_pool.finish();
  service.delivery.finish();
  for (const auto& generation : service.live_generations()) {
    generation->detach();
    generation->drop_consumer();
  }
  http->close(kFlushTimeout);
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop_now();
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  const AccessOptions access = impl->access_options();
  if (!access.is_loopback && access.api_keys.empty()) {
    const std::string& host = impl->service.options.host;
    if (!impl->service.options.allows_no_key) {
      return Error(
          Code::invalid_argument,
          "--host " + host + " opens the server to the network, and no API key is set",
          "give a key by --api-key-file or RORQUAL_API_KEY, listen on 127.0.0.1, or say --allow-no-key");
    }
    spdlog::warn("http  {} is open to the network and no API key is set: anyone who reaches it can use it",
                 host);
  }
  impl->service.client_key = [rules = AccessRules(access)](const HttpRequest& request) {
    return rules.client_key(request);
  };
  impl->router = std::make_unique<Router>(AccessRules(access), [i = impl.get()] {
    if (i->service.is_draining) return Readiness::draining;
    return i->service.is_attached() ? Readiness::ready : Readiness::loading;
  });
  impl->add_routes();
  auto http = HttpServer::start(impl->http_config());
  if (!http.ok()) return std::move(http).error();
  impl->http = *std::move(http);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::set_load_progress(double ratio) {
  impl_->service.load_progress = std::clamp(ratio, 0.0, 1.0);
}

void Server::attach(runtime::Engine& engine, const text::Tokenizer& tokenizer,
                    const std::string& checkpoint_encoder) {
  impl_->service.attach(engine, tokenizer, checkpoint_encoder);
}

std::vector<std::string> Server::routes() const {
  std::vector<std::string> out;
  for (const Route& route : impl_->router->routes()) {
    out.push_back(route.method + " " + route.path + (route.is_open ? " open" : ""));
  }
  return out;
}

uint16_t Server::port() const {
  return impl_->http->port();
}

std::string Server::url() const {
  std::string host = impl_->service.options.host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  if (host.find(':') != std::string::npos && !host.starts_with('[')) host = "[" + host + "]";
  return "http://" + host + ":" + std::to_string(port());
}

bool Server::stop() {
  const std::lock_guard lock(impl_->stop_mutex);
  if (!impl_->is_stopped) {
    impl_->is_stopped = true;
    impl_->shut_down(impl_->service.options.shutdown_timeout);
  }
  return impl_->was_clean;
}

void Server::stop_now() {
  impl_->must_hurry = true;
  impl_->service.is_draining = true;
  impl_->cancel_all();  // makes a drain in progress end
  stop();
}

}  // namespace rorqual::server
