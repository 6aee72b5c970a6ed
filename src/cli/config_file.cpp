// SPDX-License-Identifier: Apache-2.0
#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace rorqual::cli {
namespace {

constexpr size_t kMaxConfigBytes = 1u << 20;
constexpr std::string_view kBlank = " \t\r";

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

Error bad_line(int line, const std::string& what) {
  return {Code::invalid_argument, fmt::format("config line {}: {}", line, what),
          "write `option-name: value`, lists as `[a, b]` or as `- a` lines; docs/cli.md lists the options"};
}

std::string option_name(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// Cuts a comment: '#' at the start or after a blank, outside quotes.
std::string_view without_comment(std::string_view text) {
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#' && (i == 0 || kBlank.find(text[i - 1]) != std::string_view::npos)) {
      return text.substr(0, i);
    }
  }
  return text;
}

/// One scalar, quotes removed. Double quotes know \" \\ \n \t; single quotes know ''.
Result<std::string> scalar(std::string_view text, int line) {
  text = trim(text);
  if (text.empty()) return std::string();
  const char quote = text.front();
  if (quote != '"' && quote != '\'') {
    if (std::string_view("&*!|>%@`{").find(quote) != std::string_view::npos) {
      return bad_line(line, fmt::format("got '{}', expected a plain or quoted value", text));
    }
    return std::string(text);
  }
  std::string out;
  size_t i = 1;
  for (; i < text.size(); ++i) {
    const bool is_doubled = quote == '\'' && text.substr(i, 2) == "''";
    if (text[i] == quote && !is_doubled) break;
    if (is_doubled) {
      ++i;
      out += '\'';
    } else if (quote == '"' && text[i] == '\\' && i + 1 < text.size()) {
      const char escaped = text[++i];
      out += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
    } else {
      out += text[i];
    }
  }
  if (i + 1 != text.size()) return bad_line(line, fmt::format("quotes do not match in {}", text));
  return out;
}

/// `[a, "b, c"]` without the brackets.
Result<std::vector<std::string>> flow_list(std::string_view text, int line) {
  std::vector<std::string> items;
  while (!trim(text).empty()) {
    char quote = 0;
    size_t end = 0;
    for (; end < text.size() && (quote != 0 || text[end] != ','); ++end) {
      if (quote != 0) {
        if (text[end] == quote) quote = 0;
      } else if (text[end] == '"' || text[end] == '\'') {
        quote = text[end];
      }
    }
    RORQUAL_TRY_ASSIGN(auto item, scalar(text.substr(0, end), line));
    items.push_back(std::move(item));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return items;
}

Result<std::vector<ConfigEntry>> parse_yaml(std::string_view text) {
  std::vector<ConfigEntry> entries;
  bool list_is_open = false;  // the last entry had no value: `- item` lines may follow
  int line = 0;
  while (!text.empty()) {
    ++line;
    const auto newline = std::min(text.find('\n'), text.size());
    const auto raw = text.substr(0, newline);
    text.remove_prefix(std::min(newline + 1, text.size()));
    const auto content = trim(without_comment(raw));
    if (content.empty() || content == "---") continue;
    if (content.front() == '-' && (content.size() == 1 || content[1] == ' ')) {
      if (!list_is_open) return bad_line(line, "a list item without an option above it");
      RORQUAL_TRY_ASSIGN(auto item, scalar(content.substr(1), line));
      entries.back().items.push_back(std::move(item));
      continue;
    }
    const auto colon = content.find(':');
    const bool separated =
        colon != std::string_view::npos && (colon + 1 == content.size() || content[colon + 1] == ' ');
    if (!separated || colon == 0)
      return bad_line(line, fmt::format("got '{}', expected `option-name: value`", content));
    if (kBlank.find(raw.front()) != std::string_view::npos) {
      return bad_line(line, "indented options are not supported (the file is flat)");
    }
    ConfigEntry entry{option_name(trim(content.substr(0, colon))), {}, line};
    const auto value = trim(content.substr(colon + 1));
    list_is_open = value.empty();
    if (!value.empty() && value.front() == '[') {
      if (value.back() != ']') return bad_line(line, "list without closing ']'");
      RORQUAL_TRY_ASSIGN(entry.items, flow_list(value.substr(1, value.size() - 2), line));
    } else if (!value.empty()) {
      RORQUAL_TRY_ASSIGN(auto item, scalar(value, line));
      entry.items.push_back(std::move(item));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::optional<std::string> json_scalar(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number()) return value.dump();
  return std::nullopt;
}

Result<std::vector<ConfigEntry>> parse_json(std::string_view text) {
  const auto document = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!document.is_object()) {
    return Error(Code::invalid_argument, "config: not a valid JSON object",
                 "check brackets, commas and quotes");
  }
  std::vector<ConfigEntry> entries;
  for (const auto& [key, value] : document.items()) {
    ConfigEntry entry{option_name(key), {}, 0};
    for (const auto& item : value.is_array() ? value : nlohmann::ordered_json::array({value})) {
      if (item.is_null()) continue;
      auto scalar_text = json_scalar(item);
      if (!scalar_text) {
        return Error(
            Code::invalid_argument,
            fmt::format("config field '{}': got {}, expected a string, number, boolean or a list of them",
                        key, item.type_name()));
      }
      entry.items.push_back(*std::move(scalar_text));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config_text(std::string_view text) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  const auto start = text.find_first_not_of(" \t\r\n");
  const bool is_json = start != std::string_view::npos && text[start] == '{';
  auto entries = is_json ? parse_json(text) : parse_yaml(text);
  if (!entries.ok()) return entries;
  std::set<std::string_view> seen;
  for (const auto& entry : *entries) {
    if (!seen.insert(entry.name).second) {
      return Error(Code::invalid_argument, fmt::format("config: option '{}' appears twice", entry.name));
    }
  }
  return entries;
}

Result<std::vector<ConfigEntry>> read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Error(Code::not_found, fmt::format("cannot open config file '{}': {}", path, std::strerror(errno)),
                 "check the path given with --config");
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) {
    return Error(Code::io, fmt::format("cannot read config file '{}'", path));
  }
  if (text.size() > kMaxConfigBytes) {
    return Error(Code::invalid_argument,
                 fmt::format("config file '{}' is larger than {} bytes", path, kMaxConfigBytes));
  }
  auto entries = parse_config_text(text);
  if (!entries.ok()) return std::move(entries).error().at(path);
  return entries;
}

}  // namespace rorqual::cli
