// SPDX-License-Identifier: Apache-2.0
// The real server over the scripted engine, for black-box tests: scripted_server TOKENIZER SCRIPT [name=value
// …]. Lines of the script may give "text" instead of "tokens"; control tokens are recognised in it. Prints
// "listening PORT" when it accepts connections; with routes=1, then a line with all routes. SIGTERM
// stops it gracefully, a second one at once.
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "runtime/scripted_engine.h"
#include "server/server.h"
#include "text/tokenizer.h"

namespace {

using namespace rorqual;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Replaces "text" by "tokens" in each line.
std::string with_tokens(const std::string& script, const text::Tokenizer& tokenizer) {
  std::istringstream lines(script);
  std::string line, out;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    auto json = nlohmann::json::parse(line);
    if (json.contains("text")) {
      json["tokens"] = tokenizer.encode(json["text"].get<std::string>(), text::EncodeMode::with_added);
      json.erase("text");
    }
    out += json.dump() + "\n";
  }
  return out;
}

int fail(const Error& error) {
  std::cerr << "error: " << error.message() << "\n";
  return 1;
}

server::ServerOptions server_options(const std::map<std::string, std::string>& arguments) {
  server::ServerOptions options;
  options.port = 0;
  options.version = "0.0.0-test";
  options.commit = "0123456789abcdef";
  const auto text = [&](const char* name, auto set) {
    if (const auto it = arguments.find(name); it != arguments.end()) set(it->second);
  };
  const auto milliseconds = [&](const char* name, std::chrono::milliseconds& value) {
    text(name, [&](const std::string& v) { value = std::chrono::milliseconds(std::stoll(v)); });
  };
  text("host", [&](const std::string& v) { options.host = v; });
  text("port", [&](const std::string& v) { options.port = static_cast<uint16_t>(std::stoi(v)); });
  text("allow_no_key", [&](const std::string& v) { options.allows_no_key = v == "1"; });
  text("allowed_host", [&](const std::string& v) { options.allowed_hosts.push_back(v); });
  text("key", [&](const std::string& v) { options.api_keys.push_back(v); });
  text("key2", [&](const std::string& v) { options.api_keys.push_back(v); });
  text("max_queued", [&](const std::string& v) { options.max_num_queued_reqs = std::stoll(v); });
  text("usage_extension", [&](const std::string& v) { options.usage_extension = v == "1"; });
  text("origin", [&](const std::string& v) { options.allowed_origins.push_back(v); });
  text("max_logprobs", [&](const std::string& v) { options.max_logprobs = std::stoi(v); });
  text("demonstration", [&](const std::string& v) { options.is_demonstration = v == "1"; });
  text("model", [&](const std::string& v) { options.served_model_names.push_back(v); });
  text("alias", [&](const std::string& v) { options.served_model_names.push_back(v); });
  text("keep_alive_lines", [&](const std::string& v) { options.keep_alive_lines = v == "1"; });
  text("usage_chunk", [&](const std::string& v) { options.openai_usage_chunk = v == "openai"; });
  text("reasoning_alias", [&](const std::string& v) { options.reasoning_alias = v == "1"; });
  text("stream_interval", [&](const std::string& v) { options.stream_interval = std::stoll(v); });
  milliseconds("keep_alive_ms", options.keep_alive_interval);
  milliseconds("shutdown_ms", options.shutdown_timeout);
  milliseconds("header_ms", options.header_timeout);
  milliseconds("body_ms", options.body_timeout);
  milliseconds("write_ms", options.write_timeout);
  text("max_connections", [&](const std::string& v) { options.max_connections = std::stoull(v); });
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("test"));
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts: they inherit it

  if (argc < 3)
    return fail(Error(Code::invalid_argument, "usage: scripted_server TOKENIZER SCRIPT [name=value …]"));
  std::map<std::string, std::string> arguments;
  for (int i = 3; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    arguments[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  auto tokenizer = text::Tokenizer::from_json(read_file(argv[1]));
  if (!tokenizer.ok()) return fail(tokenizer.error());

  runtime::EngineInfo info;
  info.model_name = "rorqual-mini";
  info.numerics = "reference";
  info.kernels = "scripted";
  info.vocab_size = tokenizer->vocab_size();
  info.max_drafts = 5;
  info.max_model_len = arguments.contains("max_model_len") ? std::stoll(arguments["max_model_len"]) : 16384;
  runtime::ScriptedOptions engine_options;
  engine_options.max_logprobs = -1;
  if (arguments.contains("max_queued"))
    engine_options.max_num_queued_reqs = std::stoll(arguments["max_queued"]);
  auto engine =
      runtime::make_scripted_engine(with_tokens(read_file(argv[2]), *tokenizer), info, engine_options);
  if (!engine.ok()) return fail(engine.error());

  auto server = server::Server::start(server_options(arguments));
  if (!server.ok()) return fail(server.error());
  const bool stays_loading = arguments.contains("loading");
  if (stays_loading) {
    (*server)->set_load_progress(0.25);
  } else {
    (*server)->attach(**engine, *tokenizer);
  }
  std::cout << "listening " << (*server)->port() << std::endl;
  if (arguments.contains("routes")) {
    std::string line = "routes";
    for (const std::string& route : (*server)->routes()) line += "\t" + route;
    std::cout << line << std::endl;
  }

  int signal = 0;
  sigwait(&signals, &signal);
  std::thread hurry([&] {  // a second signal
    sigwait(&signals, &signal);
    (*server)->stop_now();
  });
  const bool clean = (*server)->stop();
  std::cout << "stopped " << (clean ? "clean" : "cancelled") << std::endl;
  pthread_kill(hurry.native_handle(), SIGTERM);
  hurry.join();
  server->reset();
  return 0;
}
