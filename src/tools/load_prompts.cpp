// SPDX-License-Identifier: Apache-2.0
#include "tools/load_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFile_bytes = int64_t{1} << 30;
constexpr int kPrefixWords = 24;

constexpr const char* kWords[] = {
    "the",    "a",     "and",   "of",      "to",      "in",     "is",     "it",    "for",     "that",
    "with",   "on",    "as",    "was",     "at",      "by",     "an",     "be",    "this",    "from",
    "or",     "one",   "had",   "but",     "not",     "all",    "were",   "when",  "we",      "there",
    "can",    "you",   "said",  "use",     "each",    "which",  "she",    "do",    "how",     "their",
    "if",     "will",  "up",    "other",   "about",   "out",    "many",   "then",  "them",    "these",
    "so",     "some",  "her",   "would",   "make",    "like",   "him",    "into",  "time",    "has",
    "look",   "two",   "more",  "write",   "go",      "see",    "number", "no",    "way",     "could",
    "people", "my",    "than",  "first",   "water",   "been",   "call",   "who",   "its",     "now",
    "find",   "long",  "down",  "day",     "did",     "get",    "come",   "made",  "may",     "part",
    "over",   "new",   "sound", "take",    "only",    "little", "work",   "know",  "place",   "year",
    "live",   "me",    "back",  "give",    "most",    "very",   "after",  "thing", "our",     "just",
    "name",   "good",  "man",   "think",   "say",     "great",  "where",  "help",  "through", "much",
    "before", "line",  "right", "too",     "mean",    "old",    "any",    "same",  "tell",    "boy",
    "follow", "came",  "want",  "show",    "also",    "around", "form",   "three", "small",   "set",
    "put",    "end",   "does",  "another", "well",    "large",  "must",   "big",   "even",    "such",
    "here",   "why",   "ask",   "went",    "men",     "read",   "need",   "land",  "home",    "us",
    "move",   "try",   "kind",  "hand",    "picture", "again",  "change", "off",   "play",    "air",
    "away",   "house", "point", "page",    "letter",  "answer", "found",  "study", "still",   "learn"};

/// A word that is one token almost everywhere, to find out what a tokenizer adds to every text.
constexpr std::string_view kProbe = " the";

Error bad_row(const std::string& path, int64_t line, const std::string& what) {
  return {Code::corrupt_data, fmt::format("{}:{}: {}", path, line, what),
          R"(a row is {"prompt": "…"} or {"messages": […]})"};
}

std::optional<int64_t> take_count(Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number_integer() || found->get<int64_t>() < 1) return std::nullopt;
  const auto value = found->get<int64_t>();
  row.erase(found);
  return value;
}

Result<LoadPrompt> prompt_of(Json row, const std::string& path, int64_t line) {
  if (!row.is_object()) return bad_row(path, line, "not a JSON object");
  LoadPrompt prompt;
  prompt.output_tokens = take_count(row, "output_tokens_count");
  prompt.max_tokens = take_count(row, "max_tokens");
  if (row.contains("messages")) {
    if (!row["messages"].is_array() || row["messages"].empty())
      return bad_row(path, line, "'messages' is no list");
    prompt.is_chat = true;
    prompt.fields = row.dump();
    return prompt;
  }
  const auto text = row.find("prompt");
  if (text == row.end() || !(text->is_string() || text->is_array()) || text->empty()) {
    return bad_row(path, line, "has neither 'prompt' nor 'messages'");
  }
  prompt.fields = Json{{"prompt", *text}}.dump();
  return prompt;
}

Status put_prefix(Json& body, const std::string& prefix) {
  Json* text = nullptr;
  if (body.contains("messages")) {
    text = &body["messages"].front()["content"];
  } else {
    text = &body["prompt"];
  }
  if (!text->is_string()) {
    return Error(Code::invalid_argument, "a unique prefix needs prompts of text",
                 "leave --unique-prefix out, or give texts");
  }
  // After the control tokens that open a rendered prompt.
  const auto& whole = text->get_ref<const std::string&>();
  const std::string_view bos = "<｜begin▁of▁sentence｜>";
  const size_t place = whole.rfind(bos, 0) == 0 ? bos.size() : 0;
  *text = whole.substr(0, place) + prefix + whole.substr(place);
  return Ok();
}

}  // namespace

uint64_t load_random(uint64_t seed, uint64_t place) {
  uint64_t x = seed * 0x9E3779B97F4A7C15U + place * 0xD1B54A32D192ED03U + 0x8CB92BA72F3D8DD7U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

Result<std::vector<LoadPrompt>> read_load_prompts(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxFile_bytes));
  std::vector<LoadPrompt> prompts;
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++line;
    const auto row_text = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (row_text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json row = Json::parse(row_text, nullptr, false);
    if (row.is_discarded()) return bad_row(path, line, "not JSON");
    RORQUAL_TRY_ASSIGN(auto prompt, prompt_of(std::move(row), path, line));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return Error(Code::corrupt_data, fmt::format("{}: holds no prompt", path));
  return prompts;
}

Result<RandomPrompts> RandomPrompts::create(int64_t tokens, uint64_t seed, const TokenCounter& count) {
  RORQUAL_TRY_ASSIGN(const int64_t once, count(kProbe));
  RORQUAL_TRY_ASSIGN(const int64_t twice, count(fmt::format("{}{}", kProbe, kProbe)));
  const int64_t added = 2 * once - twice;  // by the tokenizer to every text
  RandomPrompts prompts;
  prompts.seed_ = seed;
  prompts.tokens_ = tokens - added;
  for (const char* const word : kWords) {
    const std::string text = fmt::format(" {}", word);
    RORQUAL_TRY_ASSIGN(const int64_t with_added, count(text));
    const int64_t own = with_added - added;
    if (own < 1) continue;
    prompts.words_.push_back({.text = text, .tokens = own});
    if (own == 1) prompts.single_.push_back(prompts.words_.back());
  }
  if (prompts.single_.size() < 8 || prompts.tokens_ < 1) {
    return Error(Code::unsupported,
                 fmt::format("no random prompts of {} tokens with this tokenizer: {} words of one token, {} "
                             "tokens added to every text",
                             tokens, prompts.single_.size(), added),
                 "give --prompts FILE");
  }
  RORQUAL_TRY_ASSIGN(const int64_t got, count(prompts.text(0)));
  if (got != tokens) {
    return Error(
        Code::unsupported,
        fmt::format("a random prompt has {} tokens, expected {}: the tokenizer joins words", got, tokens),
        "give --prompts FILE");
  }
  return prompts;
}

std::string RandomPrompts::text(uint64_t index) const {
  std::string text;
  uint64_t place = 0;
  const uint64_t stream = load_random(seed_, index);
  for (int64_t left = tokens_; left > 0;) {
    const uint64_t random = load_random(stream, place++);
    const Word& any = words_[random % words_.size()];
    const Word& word = any.tokens <= left ? any : single_[random % single_.size()];
    text += word.text;
    left -= word.tokens;
  }
  return text;
}

std::string unique_prefix(uint64_t seed, uint64_t index) {
  std::string text;
  const uint64_t stream = load_random(seed ^ 0x5DEECE66DU, index);
  for (uint64_t i = 0; i < kPrefixWords; ++i) {
    text += kWords[load_random(stream, i) % std::size(kWords)];
    text += ' ';
  }
  return text;
}

Result<std::string> load_body(const LoadBody& fields, const LoadPrompt& prompt, const std::string& prefix) {
  Json body;
  body["model"] = fields.model;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const auto exact = prompt.output_tokens ? prompt.output_tokens : fields.output_tokens;
  const auto most = exact ? exact : prompt.max_tokens ? prompt.max_tokens : fields.max_tokens;
  if (most) body["max_tokens"] = *most;
  if (exact) {
    body["min_tokens"] = *exact;
    body["ignore_eos"] = true;
  }
  if (fields.temperature) body["temperature"] = *fields.temperature;
  if (fields.seed) body["seed"] = *fields.seed;
  body.update(Json::parse(prompt.fields));
  if (!prefix.empty()) RORQUAL_TRY(put_prefix(body, prefix));
  if (!fields.extra.empty()) {
    const Json extra = Json::parse(fields.extra, nullptr, false);
    if (!extra.is_object()) {
      return Error(Code::invalid_argument,
                   fmt::format("--body: got '{}', expected a JSON object", fields.extra));
    }
    body.update(extra);
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace rorqual::tools
