// SPDX-License-Identifier: Apache-2.0
// serve and chat.
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/resolve.h"
#include "cli/reuse_options.h"
#include "cli/values.h"
#include "cli/vllm_options.h"
#include "server/limits.h"
#include "tools/chat.h"
#include "tools/serve.h"

namespace rorqual::cli {
namespace {

constexpr int64_t kMaxKeyFileBytes = 65536;

using Options = std::vector<OptionSpec>;

Options server_options() {
  return {
      {.name = "host",
       .group = "server",
       .help = "address to listen on; 0.0.0.0 opens it to the network, which needs a key or --allow-no-key",
       .value_name = "ADDRESS",
       .default_value = "127.0.0.1",
       .is_common = true},
      {.name = "port",
       .kind = OptionKind::integer,
       .group = "server",
       .help = "TCP port, 0 = any free port",
       .value_name = "PORT",
       .default_value = "8000",
       .min = 0,
       .max = 65535,
       .is_common = true},
      {.name = "served-model-name",
       .group = "server",
       .help = "name of the model in the API; default: the folder's name",
       .value_name = "NAME",
       .is_common = true,
       .is_list = true},
      {.name = "api-key",
       .group = "server",
       .help = "key that requests must carry; better given by --api-key-file or RORQUAL_API_KEY",
       .value_name = "KEY",
       .is_list = true},
      {.name = "api-key-file",
       .kind = OptionKind::path,
       .group = "server",
       .help = "file with one key per line",
       .value_name = "FILE",
       .is_common = true},
      {.name = "allow-no-key",
       .kind = OptionKind::flag,
       .group = "server",
       .help = "listen on an address that others can reach though no API key is set"},
      {.name = "allowed-origins",
       .group = "server",
       .help = "browser origins that may call the API besides the server's own page; * = any",
       .value_name = "ORIGIN",
       .is_list = true},
      {.name = "allowed-hosts",
       .group = "server",
       .help = "further Host names on a loopback address; on any other only these and plain addresses",
       .value_name = "HOST",
       .is_list = true},
      {.name = "max-logprobs",
       .kind = OptionKind::integer,
       .group = "server",
       .help = "most log-probabilities per token that a request may ask for, -1 = no limit",
       .value_name = "N",
       .default_value = "20",
       .min = -1,
       .max = 1'000'000},
      {.name = "usage-extension",
       .kind = OptionKind::flag,
       .group = "server",
       .help = "our own object in `usage`: reuse of the prompt, drafts, preemptions",
       .default_value = "on"},
      {.name = "access-log",
       .kind = OptionKind::flag,
       .group = "server",
       .help = "one log line per finished request, never any text of it",
       .default_value = "on"}};
}

Options form_options() {
  return {{.name = "official-tool-choice",
           .kind = OptionKind::flag,
           .group = "server",
           .help = "refuse tool_choice required, or a tool's name, while thinking, as the official API does"},
          {.name = "prompt-memo-bytes",
           .kind = OptionKind::size,
           .group = "server",
           .help = "memory for ids of earlier parts of conversations, 0 = tokenise every prompt anew",
           .value_name = "BYTES",
           .default_value = "64M",
           .min = 0,
           .max = 1e12},
          {.name = "usage-chunk",
           .kind = OptionKind::choice,
           .group = "server",
           .help = "usage in streams: official = always, on the last chunk; openai = if asked for, in a "
                   "chunk of its own",
           .value_name = "FORM",
           .default_value = "official",
           .choices = "official|openai"},
          {.name = "reasoning-alias",
           .kind = OptionKind::flag,
           .group = "server",
           .help = "thinking also as `reasoning`, vLLM's name, beside `reasoning_content`"},
          {.name = "stream-interval",
           .kind = OptionKind::integer,
           .group = "server",
           .help = "tokens of a piece of a stream, at least; the first piece and the last one never wait",
           .value_name = "N",
           .default_value = "1",
           .min = 1,
           .max = 1'000'000}};
}

/// Times, and the table of all limits.
Options time_options() {
  return {
      {.name = "limits",
       .kind = OptionKind::flag,
       .group = "server",
       .help = "print the limits on requests as a table, with --json as an object, and exit"},
      {.name = "keep-alive-interval",
       .kind = OptionKind::real,
       .group = "server",
       .help = "seconds of silence of a stream before a comment line is sent",
       .value_name = "SECONDS",
       .default_value = "5",
       .min = 0.001,
       .max = 86400},
      {.name = "keep-alive-lines",
       .kind = OptionKind::flag,
       .group = "server",
       .help =
           "blank lines while an answer in one piece is awaited: a failure after the first comes with 200"},
      {.name = "shutdown-timeout",
       .kind = OptionKind::real,
       .group = "server",
       .help = "seconds that running requests get to finish after SIGTERM",
       .value_name = "SECONDS",
       .default_value = "30",
       .min = 0,
       .max = 86400},
      {.name = "step-timeout",
       .kind = OptionKind::real,
       .group = "server",
       .help = "seconds of one step after which /health and /ready say 503 until it ends, 0 = no limit",
       .value_name = "SECONDS",
       .default_value = "3600",
       .min = 0,
       .max = 1e6},
      {.name = "cpu-isolation",
       .kind = OptionKind::flag,
       .group = "compute",
       .help =
           "compute threads on cores of their own, all others elsewhere; needs --threads below the cores"}};
}

Options engine_choice() {
  return {
      {.name = "engine",
       .group = "engine",
       .help = "local = MODEL in this process; script:FILE = answers from a file; http://host:port = another "
               "server, MODEL being its tokenizer and config",
       .value_name = "ENGINE",
       .default_value = "local"},
      {.name = "upstream-api-key",
       .group = "engine",
       .help = "key for --engine URL; better given as RORQUAL_UPSTREAM_API_KEY",
       .value_name = "KEY"},
      {.name = "upstream-model",
       .group = "engine",
       .help = "model to ask --engine URL for; default: the first that it lists",
       .value_name = "NAME"}};
}

Options log_options() {
  return {{.name = "log-level",
           .kind = OptionKind::choice,
           .group = "log",
           .help = "least level that is written",
           .value_name = "LEVEL",
           .default_value = "info",
           .choices = "trace|debug|info|warn|error|off",
           .is_common = true},
          {.name = "log-format",
           .kind = OptionKind::choice,
           .group = "log",
           .help = "lines as text or as JSON objects",
           .value_name = "FORM",
           .default_value = "text",
           .choices = "text|json",
           .is_common = true},
          {.name = "log-file",
           .kind = OptionKind::path,
           .group = "log",
           .help = "write the log to a file; default: standard error",
           .value_name = "FILE"},
          {.name = "color",
           .kind = OptionKind::choice,
           .group = "log",
           .help = "colours in the log",
           .value_name = "WHEN",
           .default_value = "auto",
           .choices = "auto|always|never"}};
}

/// Keys of --api-key and --api-key-file.
Result<std::vector<std::string>> api_keys(const Values& values) {
  auto keys = values.list("api-key");
  if (values.has("api-key-file")) {
    RORQUAL_TRY_ASSIGN(auto text, read_text_file(values.text("api-key-file"), kMaxKeyFileBytes));
    for (size_t begin = 0; begin < text.size();) {
      const auto end = std::min(text.find_first_of("\r\n", begin), text.size());
      if (end > begin) keys.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    if (keys.empty()) {
      return Error(Code::invalid_argument,
                   fmt::format("--api-key-file {}: holds no key", values.text("api-key-file")),
                   "write one key per line");
    }
  }
  return keys;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

Status serve(const Values& values) {
  tools::ServeOptions options;
  RORQUAL_TRY_ASSIGN(options.open, open_options(values));
  options.engine.max_num_seqs = options.open.max_num_seqs;
  options.engine.max_num_batched_tokens = options.open.max_num_batched_tokens;
  options.engine.long_prefill_token_threshold = values.number("long-prefill-token-threshold").value_or(-1);
  options.engine.max_num_queued_reqs = values.integer("max-queued-requests");
  options.engine.max_logprobs = values.integer("max-logprobs");
  options.engine.max_num_queued_tokens = values.number("max-num-queued-tokens").value_or(0);
  options.engine.max_queue_wait_s = values.real("max-queue-wait");
  options.engine.step_timeout_s = values.real("step-timeout");
  options.isolates_cpus = values.flag("cpu-isolation");
  RORQUAL_TRY_ASSIGN(options.reuse, reuse_values(values, options.engine));
  options.engine_name = values.text("engine");
  options.upstream_api_key = values.text("upstream-api-key");
  options.upstream_model = values.text("upstream-model");
  if (const auto seed = values.number("seed")) options.engine.seed = static_cast<uint64_t>(*seed);
  options.server.host = values.text("host");
  options.server.port = static_cast<uint16_t>(values.integer("port"));
  options.server.served_model_names = values.list("served-model-name");
  RORQUAL_TRY_ASSIGN(options.server.api_keys, api_keys(values));
  options.server.allowed_origins = values.list("allowed-origins");
  options.server.allowed_hosts = values.list("allowed-hosts");
  options.server.allows_no_key = values.flag("allow-no-key");
  options.server.max_num_queued_reqs = options.engine.max_num_queued_reqs;
  options.server.official_tool_choice = values.flag("official-tool-choice");
  options.server.usage_extension = values.flag("usage-extension");
  options.server.uses_priority = values.text("scheduling-policy") == "priority";
  options.server.max_logprobs = static_cast<int32_t>(values.integer("max-logprobs"));
  RORQUAL_TRY_ASSIGN(options.server.prompt_compat, prompt_compat_value(values));
  options.server.prompt_memo_bytes = static_cast<size_t>(values.number("prompt-memo-bytes").value_or(0));
  options.server.access_log = values.flag("access-log");
  options.server.shutdown_timeout = milliseconds(values.real("shutdown-timeout"));
  options.server.keep_alive_interval = milliseconds(values.real("keep-alive-interval"));
  options.server.keep_alive_lines = values.flag("keep-alive-lines");
  options.server.openai_usage_chunk = values.text("usage-chunk") == "openai";
  options.server.reasoning_alias = values.flag("reasoning-alias");
  options.server.stream_interval = values.integer("stream-interval");
  RORQUAL_TRY(apply_vllm_options(values, options));
  if (values.flag("limits")) {
    fmt::print("{}", values.flag("json") ? server::limits_json(options.server)
                                         : server::limits_markdown(options.server));
    return Ok();
  }
  options.log = {.level = values.text("log-level"),
                 .format = values.text("log-format"),
                 .file = values.text("log-file"),
                 .color = values.text("color")};
  options.as_json = values.flag("json");
  options.given_options = non_default_options(values);
  return tools::run_serve(options);
}

Options chat_options() {
  return {
      {.name = "prompt",
       .group = "chat",
       .help = "ask this once, print the answer and exit; default: a dialogue",
       .value_name = "TEXT",
       .letter = 'p',
       .is_common = true},
      {.name = "system", .group = "chat", .help = "system message", .value_name = "TEXT", .is_common = true},
      {.name = "thinking",
       .kind = OptionKind::flag,
       .group = "chat",
       .help = "let the model think before it answers",
       .default_value = "on",
       .is_common = true},
      {.name = "show-thinking",
       .kind = OptionKind::flag,
       .group = "chat",
       .help = "print the thinking to standard error",
       .default_value = "on",
       .is_common = true},
      {.name = "stats",
       .kind = OptionKind::flag,
       .group = "chat",
       .help = "print tokens and speed after each answer",
       .is_common = true},
      {.name = "max-tokens",
       .kind = OptionKind::size,
       .group = "sampling",
       .help = "most tokens of an answer; default: the server's",
       .value_name = "N",
       .min = 1,
       .is_common = true},
      {.name = "temperature",
       .kind = OptionKind::real,
       .group = "sampling",
       .help = "0 = always the most probable token; default: the server's",
       .value_name = "X",
       .min = 0,
       .max = 2,
       .is_common = true},
      {.name = "top-p",
       .kind = OptionKind::real,
       .group = "sampling",
       .help = "sample from the most probable tokens that together reach this probability",
       .value_name = "X",
       .min = 0,
       .max = 1},
      {.name = "seed",
       .kind = OptionKind::integer,
       .group = "sampling",
       .help = "seed of the sampling; default: drawn at random",
       .value_name = "N",
       .min = 0},
      {.name = "url",
       .group = "server",
       .help = "talk to this running server (http://host:port) instead of loading a model",
       .value_name = "URL",
       .is_common = true},
      {.name = "api-key",
       .group = "server",
       .help = "key for --url; better given as RORQUAL_API_KEY",
       .value_name = "KEY"},
      {.name = "served-model-name",
       .group = "server",
       .help = "model to ask --url for; default: the first that it lists",
       .value_name = "NAME"}};
}

Status chat(const Values& values) {
  if (values.has("url") && values.has("model")) {
    return Error(Code::invalid_argument, "MODEL and --url exclude each other", "leave one of them out");
  }
  tools::ChatOptions options;
  RORQUAL_TRY_ASSIGN(options.open, open_options(values));
  options.open.max_num_seqs = 1;
  RORQUAL_TRY_ASSIGN(options.reuse, reuse_values(values, options.engine));
  options.url = values.text("url");
  options.api_key = values.text("api-key");
  options.model = values.text("served-model-name");
  RORQUAL_TRY_ASSIGN(options.prompt_compat, prompt_compat_value(values));
  if (!options.url.empty() && options.prompt_compat != text::PromptCompat{}) {
    return Error(Code::invalid_argument, "--prompt-compat and --url exclude each other",
                 "start the server with --prompt-compat");
  }
  options.prompt = values.text("prompt");
  options.system = values.text("system");
  options.thinking = values.flag("thinking");
  options.show_thinking = values.flag("show-thinking");
  options.stats = values.flag("stats");
  options.as_json = values.flag("json");
  options.max_tokens = values.number("max-tokens");
  options.seed = values.number("seed");
  if (values.has("temperature")) options.temperature = values.real("temperature");
  if (values.has("top-p")) options.top_p = values.real("top-p");
  if (values.is_given("prompt") && options.prompt.empty()) {
    return Error(Code::invalid_argument, "--prompt: got an empty text, expected a question",
                 "leave the option out for a dialogue");
  }
  if (options.as_json && options.prompt.empty()) {
    return Error(Code::invalid_argument, "--json needs --prompt",
                 "rorqual chat --json -p 'What is 17 + 25?'");
  }
  return tools::run_chat(options);
}

}  // namespace

CommandSpec serve_command() {
  auto options = model_options();
  options.push_back(prompt_compat_option());
  append(options, server_options());
  append(options, form_options());
  append(options, time_options());
  append(options, limit_options());
  append(options, reuse_options());
  append(options, engine_choice());
  append(options, log_options());
  append(options, vllm_options());
  return {.name = "serve",
          .summary = "OpenAI-compatible server with a chat page and metrics",
          .description =
              "Serves MODEL over HTTP: /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses, "
              "/v1/models, a chat page at /, /metrics. Logs go to standard error.",
          .example = "rorqual serve /models/DeepSeek-V4.1-Flash --port 8000 --max-model-len 32K",
          .options = std::move(options),
          .run = serve};
}

CommandSpec chat_command() {
  auto options = model_options();
  options.push_back(prompt_compat_option());
  append(options, chat_options());
  append(options, reuse_options());
  options.push_back(max_model_len_option());
  return {.name = "chat",
          .summary = "talk to a model in the terminal",
          .description =
              "Loads MODEL, or talks to a running server with --url. The answer goes to standard output, "
              "thinking and statistics to standard error.",
          .example = "rorqual chat -p 'What is 17 + 25?' --stats",
          .options = std::move(options),
          .run = chat};
}

}  // namespace rorqual::cli
