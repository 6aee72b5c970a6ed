// SPDX-License-Identifier: Apache-2.0
// The HTTP server: OpenAI-compatible routes, metrics and the chat page over an engine. docs/api.md.
// It may listen before the model is loaded: /health answers, /ready tells the progress, all else gives 503.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"
#include "text/prompt_compat.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace rorqual::server {

struct ServerOptions {
  std::string host = "127.0.0.1";  // address or "localhost"; 0.0.0.0 and :: open it to the network
  uint16_t port = 8000;            // 0 = any free port
  std::vector<std::string> served_model_names;  // empty = the engine's model name
  std::vector<std::string> api_keys;  // empty = open; else every route but /health and the page needs one
  std::vector<std::string> allowed_origins;  // browser origins besides the server's own; "*" = any
  std::vector<std::string> allowed_hosts;    // further Host names on a loopback bind; elsewhere the only ones
  bool allows_no_key = false;                // without it, an address that is not loopback needs api_keys
  bool is_demonstration = false;             // /v1/models says so, and the page shows it
  std::string version, commit;               // for /version, /v1/models and build_info

  int32_t max_logprobs = 20;  // largest logprobs, top_logprobs, prompt_logprobs; -1 = no limit (vocabulary)
  int32_t max_choices = 16;   // largest n
  bool official_tool_choice = false;  // 400 for tool_choice required or a name while thinking

  int64_t max_num_queued_reqs = 0;  // the engine's limit, for refusals that cost nothing; 0 = none
  bool uses_priority = true;        // false: the field of requests is ignored
  bool usage_extension = true;      // our own object in usage: reuse, drafts, preemptions
  /// Streams of chat and completions: usage in a chunk of its own and only if asked for, as OpenAI does it;
  /// false: on the last chunk, as DeepSeek does it.
  bool openai_usage_chunk = false;
  bool reasoning_alias = false;   // `reasoning` beside `reasoning_content`: vLLM's name
  bool keep_alive_lines = false;  // blank lines while a whole answer is awaited, as DeepSeek sends them
  int64_t stream_interval = 1;    // tokens of a piece of a stream, at least

  text::PromptCompat prompt_compat;  // as made: the prompt of the official service
  size_t prompt_memo_bytes = text::PromptEncoder::kDefaultMemoBytes;  // 0 = nothing is remembered

  bool access_log = true;  // one line per finished request at info; never any text of it
  std::vector<std::string> access_log_skip = {"/health", "/metrics", "/ready"};
  bool status_log = true;  // one line every ten seconds while requests run

  size_t max_header_bytes = 16 * 1024;
  size_t max_headers = 100;
  size_t max_body_bytes = 48u << 20;
  size_t max_total_body_bytes = 512u << 20;  // of all requests together
  size_t max_connections = 1024;
  size_t max_unsent_bytes = 8u << 20;  // of a stream whose client reads slowly; beyond it is cut
  size_t text_threads = 2;             // parse, render and tokenise requests
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests of one connection
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds keep_alive_interval{5'000};  // SSE comments while a stream is silent
  std::chrono::milliseconds shutdown_timeout{30'000};    // running requests may finish for so long
};

/// Owns the listening socket, one IO thread and a few text threads. Any thread may call it.
/// Order: start, [set_load_progress …], attach, stop. The engine and tokenizer must outlive the server.
class Server {
 public:
  /// Binds and listens. Errors: io (port in use, no permission), invalid_argument (address).
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();  // stop_now

  /// 0..1, shown by /ready until attach.
  void set_load_progress(double ratio);

  /// Makes the server ready: from here on requests reach the engine. Once. `checkpoint_encoder`: of the
  /// prompt encoder that came with the checkpoint, for /version; may be empty.
  void attach(runtime::Engine& engine, const text::Tokenizer& tokenizer,
              const std::string& checkpoint_encoder = {});

  /// Every route as "METHOD path", "METHOD path open" for those that need no key.
  std::vector<std::string> routes() const;

  uint16_t port() const;
  std::string url() const;  // http://127.0.0.1:8000

  /// Graceful end: new requests get 503 "draining", running ones finish up to shutdown_timeout, the rest is
  /// cancelled, connections close. True if nothing had to be cancelled. Blocks.
  bool stop();
  /// Cancels everything and closes; also makes a running stop() return at once.
  void stop_now();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::server
