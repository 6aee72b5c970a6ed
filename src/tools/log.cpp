// SPDX-License-Identifier: Apache-2.0
#include "tools/log.h"

#include <fmt/format.h>
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace rorqual::tools {
namespace {

/// %* : the message as a JSON string.
class JsonMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    out.push_back('"');
    for (const char c : std::string_view(message.payload.data(), message.payload.size())) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (byte < 0x20) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
      } else {
        out.push_back(c);
      }
    }
    out.push_back('"');
  }

  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

/// %* : the level in five columns, with colour marks around it.
class LevelColumn : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const auto name = spdlog::level::to_string_view(message.level);
    const std::string_view shown =
        message.level == spdlog::level::warn ? "warn" : std::string_view(name.data(), name.size());
    fmt::format_to(std::back_inserter(out), "{:<5}", shown);
  }

  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelColumn>(); }
};

std::unique_ptr<spdlog::formatter> make_formatter(bool as_json) {
  if (as_json) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
    formatter->add_flag<JsonMessage>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%*})");
    return formatter;
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::local);
  formatter->add_flag<LevelColumn>('*').set_pattern("%H:%M:%S.%e %^%*%$ %v");
  return formatter;
}

/// Keeps messages until it is released, then passes them on to the sink behind it.
class HoldingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit HoldingSink(spdlog::sink_ptr target) : target_(std::move(target)) {}

  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    for (const auto& message : kept_) target_->log(message);
    kept_.clear();
    target_->flush();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (is_held_) {
      kept_.emplace_back(message);
    } else {
      target_->log(message);
    }
  }

  void flush_() override {
    if (!is_held_) target_->flush();
  }

  void set_pattern_(const std::string& pattern) override { target_->set_pattern(pattern); }

  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    target_->set_formatter(std::move(formatter));
  }

 private:
  spdlog::sink_ptr target_;
  std::vector<spdlog::details::log_msg_buffer> kept_;
  bool is_held_ = true;
};

spdlog::color_mode color_mode(const LogOptions& options) {
  if (options.color == "always") return spdlog::color_mode::always;
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_forbidden = no_color != nullptr && *no_color != '\0';
  return options.color == "never" || is_forbidden ? spdlog::color_mode::never : spdlog::color_mode::automatic;
}

}  // namespace

Status set_up_log(const LogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(color_mode(options));
  } else {
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    } catch (const spdlog::spdlog_ex& error) {
      return Error(Code::io, fmt::format("cannot open log file '{}': {}", options.file, error.what()),
                   "check the folder and its permissions, or leave out --log-file");
    }
  }
  if (options.is_held) sink = std::make_shared<HoldingSink>(std::move(sink));
  auto logger = std::make_shared<spdlog::logger>("rorqual", std::move(sink));
  logger->set_formatter(make_formatter(options.format == "json"));
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return Ok();
}

void release_log() {
  for (const spdlog::sink_ptr& sink : spdlog::default_logger()->sinks()) {
    if (auto* holding = dynamic_cast<HoldingSink*>(sink.get())) holding->release();
  }
}

}  // namespace rorqual::tools
