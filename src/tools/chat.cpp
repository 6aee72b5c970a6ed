// SPDX-License-Identifier: Apache-2.0
#include "tools/chat.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

#include "server/server.h"
#include "tools/build_info.h"
#include "tools/http_client.h"
#include "tools/log.h"
#include "tools/progress_bar.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

std::atomic<bool> g_stop{false};

extern "C" void stop_answer(int /*signal*/) {
  g_stop = true;
}

/// SIGINT sets the flag and interrupts system calls (no SA_RESTART: a waiting prompt must see it too).
void catch_interrupt() {
  struct sigaction action {};

  action.sa_handler = stop_answer;
  sigaction(SIGINT, &action, nullptr);
}

/// Engine and server of a chat without --url.
struct LocalServer {
  OpenedEngine opened;  // outlives the server
  std::unique_ptr<server::Server> server;
  std::string api_key;
};

std::string random_key() {
  std::random_device device;
  std::string key = "chat-";
  for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", device());
  return key;
}

Status start_local(const ChatOptions& options, LocalServer& local) {
  RORQUAL_TRY(set_up_log({.level = "warn"}));
  ProgressBar bar(ProgressBar::is_terminal());
  const auto show_progress = [&](int64_t done, int64_t total) {
    if (ProgressBar::is_terminal()) bar.update(done, total);
  };
  auto opened = open_engine(options.open, options.engine, show_progress, {}, options.reuse);
  bar.finish();
  if (!opened.ok()) return std::move(opened).error();
  local.opened = *std::move(opened);
  local.api_key = random_key();  // nobody else on this machine is meant to use the port
  server::ServerOptions server_options;
  server_options.port = 0;
  server_options.api_keys = {local.api_key};
  server_options.version = build_info().version;
  server_options.commit = build_info().commit;
  server_options.access_log = false;
  server_options.prompt_compat = options.prompt_compat;
  server_options.status_log = false;
  server_options.shutdown_timeout = std::chrono::milliseconds(0);
  RORQUAL_TRY_ASSIGN(local.server, server::Server::start(server_options));
  local.server->attach(*local.opened.engine, *local.opened.opened.tokenizer);
  return Ok();
}

struct Answer {
  std::string content, reasoning, finish_reason;
  Json tool_calls = Json::array();
  Json usage;
  double first_token_s = 0, total_s = 0;
};

/// Prints deltas as they come: thinking dimmed to standard error, the answer to standard output.
class AnswerPrinter {
 public:
  AnswerPrinter(bool show_thinking, bool is_silent)
      : show_thinking_(show_thinking), is_silent_(is_silent), is_terminal_(isatty(STDERR_FILENO) == 1) {}

  void reasoning(const std::string& text) {
    if (is_silent_ || !show_thinking_ || text.empty()) return;
    if (!in_reasoning_) std::fputs(is_terminal_ ? "\x1b[2m" : "[thinking] ", stderr);
    in_reasoning_ = true;
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  void content(const std::string& text) {
    if (is_silent_ || text.empty()) return;
    end_reasoning();
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    has_content_ = true;
  }

  void finish() {
    if (is_silent_) return;
    end_reasoning();
    if (has_content_) std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  void end_reasoning() {
    if (in_reasoning_) std::fputs(is_terminal_ ? "\x1b[0m\n" : "\n", stderr);
    in_reasoning_ = false;
  }

  bool show_thinking_, is_silent_, is_terminal_;
  bool in_reasoning_ = false, has_content_ = false;
};

std::string text_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Joins the pieces of streamed tool calls by their index.
void add_tool_calls(const Json& deltas, Json& calls) {
  for (const auto& delta : deltas) {
    const auto number = delta.is_object() ? delta.value("index", Json(0)) : Json();
    if (!number.is_number_unsigned() || number.get<size_t>() > calls.size()) continue;
    const auto index = number.get<size_t>();
    if (index == calls.size()) calls.push_back({{"name", ""}, {"arguments", ""}});
    const auto function = delta.value("function", Json::object());
    for (const char* field : {"name", "arguments"}) {
      calls[index][field] = calls[index][field].get<std::string>() + text_field(function, field);
    }
  }
}

class Chat {
 public:
  Chat(const ChatOptions& options, HttpClient client) : options_(options), client_(std::move(client)) {
    reset();
  }

  Status choose_model() {
    RORQUAL_TRY_ASSIGN(const auto body, client_.get("/v1/models"));
    const auto document = Json::parse(body, nullptr, false);
    const bool has_models = document.is_object() && document.contains("data") &&
                            document["data"].is_array() && !document["data"].empty() &&
                            document["data"][0].is_object();
    model_ = !options_.model.empty() ? options_.model
             : has_models            ? text_field(document["data"][0], "id")
                                     : "";
    if (model_.empty())
      return Error(Code::unavailable, fmt::format("{} lists no model", client_.url()),
                   "name one with --served-model-name");
    return Ok();
  }

  const std::string& model() const { return model_; }

  void reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  /// Asks and prints the answer; on success both turns become part of the conversation.
  Result<Answer> ask(const std::string& text, bool is_silent) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Answer answer;
    AnswerPrinter printer(options_.show_thinking, is_silent);
    const auto start = SteadyClock::now();
    auto seconds = [&] { return std::chrono::duration<double>(SteadyClock::now() - start).count(); };
    const auto status = client_.post_events(
        "/v1/chat/completions", request_body(),
        [&](std::string_view data) { return on_event(data, seconds(), answer, printer); });
    answer.total_s = seconds();
    printer.finish();
    if (!status.ok()) {
      messages_.erase(messages_.size() - 1);
      return status.error();
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.content}});
    return answer;
  }

 private:
  std::string request_body() const {
    Json body = {{"model", model_},
                 {"messages", messages_},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"thinking", {{"type", options_.thinking ? "enabled" : "disabled"}}}};
    if (options_.max_tokens) body["max_tokens"] = *options_.max_tokens;
    if (options_.seed) body["seed"] = *options_.seed;
    if (options_.temperature) body["temperature"] = *options_.temperature;
    if (options_.top_p) body["top_p"] = *options_.top_p;
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  static Status on_event(std::string_view data, double seconds, Answer& answer, AnswerPrinter& printer) {
    const auto chunk = Json::parse(data, nullptr, false);
    if (!chunk.is_object())
      return Error(Code::unavailable, fmt::format("the server sent a broken event: {}", data.substr(0, 100)));
    if (chunk.contains("error")) {
      return Error(Code::internal,
                   fmt::format("the server reports: {}", text_field(chunk["error"], "message")));
    }
    if (chunk.contains("usage") && chunk["usage"].is_object()) answer.usage = chunk["usage"];
    const auto choices = chunk.value("choices", Json::array());
    if (!choices.is_array() || choices.empty()) return Ok();
    const auto delta = choices[0].value("delta", Json::object());
    const auto reasoning = text_field(delta, "reasoning_content"), content = text_field(delta, "content");
    if (answer.first_token_s == 0 && !(reasoning.empty() && content.empty())) answer.first_token_s = seconds;
    answer.reasoning += reasoning;
    answer.content += content;
    printer.reasoning(reasoning);
    printer.content(content);
    if (delta.contains("tool_calls") && delta["tool_calls"].is_array())
      add_tool_calls(delta["tool_calls"], answer.tool_calls);
    if (const auto reason = text_field(choices[0], "finish_reason"); !reason.empty())
      answer.finish_reason = reason;
    return Ok();
  }

  const ChatOptions& options_;
  HttpClient client_;
  std::string model_;
  Json messages_;
};

void print_stats(const Answer& answer) {
  const auto count = [&](const char* name) {
    return answer.usage.is_object() ? answer.usage.value(name, int64_t{0}) : 0;
  };
  const auto completion = count("completion_tokens");
  const double decode_s = answer.total_s - answer.first_token_s;
  fmt::print(stderr,
             "[{} prompt tokens, {} cached; {} generated; first after {:.2f} s, then {:.1f} tokens/s; {}]\n",
             count("prompt_tokens"), count("prompt_cache_hit_tokens"), completion, answer.first_token_s,
             completion > 1 && decode_s > 0 ? static_cast<double>(completion - 1) / decode_s : 0.0,
             answer.finish_reason);
}

Status ask_once(Chat& chat, const ChatOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto answer, chat.ask(options.prompt, options.as_json));
  if (options.as_json) {
    const Json document = {{"schema", "rorqual.chat/1"},      {"model", chat.model()},
                           {"content", answer.content},       {"reasoning_content", answer.reasoning},
                           {"tool_calls", answer.tool_calls}, {"finish_reason", answer.finish_reason},
                           {"usage", answer.usage},           {"first_token_s", answer.first_token_s},
                           {"total_s", answer.total_s}};
    fmt::print("{}\n", document.dump(-1, ' ', false, Json::error_handler_t::replace));
    return Ok();
  }
  for (const auto& call : answer.tool_calls) {
    fmt::print("[calls {} {}]\n", call["name"].get<std::string>(), call["arguments"].get<std::string>());
  }
  if (options.stats) print_stats(answer);
  return Ok();
}

enum class Line : uint8_t { text, end, interrupted };

Line read_line(bool show_prompt, std::string& line) {
  if (show_prompt) {
    std::fputs("> ", stderr);
    std::fflush(stderr);
  }
  line.clear();
  char c = 0;
  while (true) {
    const auto count = read(STDIN_FILENO, &c, 1);
    if (count < 0 && errno == EINTR) {
      if (g_stop) return Line::interrupted;
      continue;
    }
    if (count <= 0) return line.empty() ? Line::end : Line::text;
    if (c == '\n') return Line::text;
    line += c;
  }
}

Status converse(Chat& chat, const ChatOptions& options) {
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  if (is_terminal)
    fmt::print(stderr, "model {}; /new starts again, /quit or Ctrl-D ends, Ctrl-C stops an answer\n",
               chat.model());
  std::string line;
  while (true) {
    g_stop = false;
    const auto got = read_line(is_terminal, line);
    if (got == Line::interrupted) return Error(Code::cancelled, "interrupted");
    if (got == Line::end || line == "/quit" || line == "/exit") return Ok();
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/new") {
      chat.reset();
      continue;
    }
    const auto answer = chat.ask(line, false);
    if (answer.ok()) {
      if (options.stats) print_stats(*answer);
    } else if (answer.error().code() == Code::cancelled) {
      fmt::print(stderr, "[stopped]\n");
    } else if (!is_terminal || answer.error().code() == Code::unavailable) {
      return answer.error();
    } else {
      fmt::print(stderr, "error: {}\n", answer.error().message());
    }
  }
}

}  // namespace

Status run_chat(const ChatOptions& options) {
  LocalServer local;
  const bool is_local = options.url.empty();
  if (is_local) RORQUAL_TRY(start_local(options, local));
  catch_interrupt();
  RORQUAL_TRY_ASSIGN(auto client, HttpClient::create(is_local ? local.server->url() : options.url,
                                                     is_local ? local.api_key : options.api_key, &g_stop));
  Chat chat(options, std::move(client));
  RORQUAL_TRY(chat.choose_model());
  if (is_local && local.opened.opened.is_embedded && isatty(STDERR_FILENO) == 1) {
    fmt::print(stderr, "this is the small model inside the program: a demonstration, not an assistant\n");
  }
  const auto status = options.prompt.empty() ? converse(chat, options) : ask_once(chat, options);
  if (is_local) local.server->stop_now();
  return status;
}

}  // namespace rorqual::tools
