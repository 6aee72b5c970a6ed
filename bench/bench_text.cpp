// SPDX-License-Identifier: Apache-2.0
// Text work of a server: the last turn of a long agent conversation from body bytes to token ids, hostile
// texts through the tokenizer, hostile outputs through the parser. Medians of CPU time, one JSON object.
//   bench_text TOKENIZER.json TEXT…       (texts: any files; they become what the agent reads)
#include <fmt/format.h>
#include <simdjson.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "api/request.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/prompt_encoder.h"

namespace {

using namespace rorqual;

/// CPU time of this thread: text work is one thread's, and other programs must not count.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using time_point = duration;

  static time_point now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
};

using Json = nlohmann::ordered_json;

constexpr int kRepeats = 31;
constexpr int kTurns = 200;
constexpr size_t kPromptTokens = 120'000;

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return std::move(out).str();
}

double ms_of(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

template <class Work>
double timed_ms(const Work& work) {
  const auto begin = Clock::now();
  work();
  return ms_of(Clock::now() - begin);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json distribution(const std::vector<double>& values) {
  return {{"median_ms", median(values)},
          {"min_ms", *std::min_element(values.begin(), values.end())},
          {"max_ms", *std::max_element(values.begin(), values.end())}};
}

/// Keeps results alive, so that no work is optimised away.
size_t g_sum = 0;

// ---- the conversation ----

Json tool(int index) {
  Json properties;
  for (const char* name : {"path", "pattern", "start_line", "end_line", "recursive"}) {
    properties[name] = {{"type", "string"},
                        {"description", std::string("The ") + name + " that tool " + std::to_string(index) +
                                            " works on; relative to the workspace, never outside of it."}};
  }
  return {{"type", "function"},
          {"function",
           {{"name", "tool_" + std::to_string(index)},
            {"description", "Reads, searches or changes files of the workspace and returns what it found."},
            {"parameters", {{"type", "object"}, {"properties", properties}, {"required", {"path"}}}}}}};
}

class Conversation {
 public:
  /// `bytes` of text per turn, from `source` over and over.
  Conversation(std::string source, size_t bytes) : source_(std::move(source)), bytes_(bytes) {
    body_["model"] = "m";
    body_["messages"] = Json::array();
    body_["messages"].push_back({{"role", "system"}, {"content", next_text(4000)}});
    body_["messages"].push_back({{"role", "user"}, {"content", "Please mend the failing test."}});
    for (int i = 0; i < 20; ++i) body_["tools"].push_back(tool(i));
    body_["stream"] = true;
  }

  /// A call with reasoning and its result. `mark` makes the turn differ from every other.
  void add_turn(const std::string& mark) {
    const std::string id = "call_" + mark;
    const Json arguments{
        {"path", "src/" + mark + ".cpp"}, {"start_line", 1}, {"text", next_text(bytes_ / 8)}};
    Json call{{"id", id},
              {"type", "function"},
              {"function",
               {{"name", "tool_3"},
                {"arguments", arguments.dump(-1, ' ', false, Json::error_handler_t::replace)}}}};
    body_["messages"].push_back({{"role", "assistant"},
                                 {"content", "I look at " + mark + "."},
                                 {"reasoning_content", next_text(bytes_ / 4)},
                                 {"tool_calls", Json::array({call})}});
    body_["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", next_text(bytes_ * 5 / 8) + mark}});
  }

  void drop_turn() { body_["messages"].erase(body_["messages"].end() - 2, body_["messages"].end()); }

  std::string body() const { return body_.dump(-1, ' ', false, Json::error_handler_t::replace); }

 private:
  std::string next_text(size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
      const size_t take = std::min(bytes - out.size(), source_.size() - at_);
      out.append(source_, at_, take);
      at_ = (at_ + take) % source_.size();
    }
    return out;
  }

  std::string source_;
  size_t bytes_;
  size_t at_ = 0;
  Json body_;
};

api::ChatRequest parse(const std::string& body) {
  auto request = api::parse_chat_request(body, api::ApiPolicy{});
  if (!request.ok()) {
    fmt::print(stderr, "refused: {}\n", request.error().message);
    std::exit(1);
  }
  return *std::move(request);
}

size_t tokens_of(const std::string& body, const text::Tokenizer& tokenizer) {
  return text::encode_chat(parse(body).conversation, tokenizer)->token_ids.size();
}

/// 200 turns of about 120,000 tokens together.
Conversation make_conversation(const std::string& source, const text::Tokenizer& tokenizer) {
  size_t bytes = 2000;
  for (int tries = 0; tries < 4; ++tries) {
    Conversation trial(source, bytes);
    for (int i = 0; i < kTurns; ++i) trial.add_turn(std::to_string(i));
    bytes = bytes * kPromptTokens / tokens_of(trial.body(), tokenizer);
  }
  Conversation out(source, bytes);
  for (int i = 0; i + 1 < kTurns; ++i) out.add_turn(std::to_string(i));
  return out;
}

Json bench_last_turn(const std::string& source, const text::Tokenizer& tokenizer) {
  Conversation conversation = make_conversation(source, tokenizer);
  text::PromptEncoder encoder(tokenizer);
  g_sum += encoder.encode(parse(conversation.body()).conversation)->token_ids.size();
  std::vector<double> total, json, request, encode, anew, strict, raw, copy;
  size_t bytes = 0, tokens = 0;
  simdjson::dom::parser raw_parser;
  for (int i = 0; i < kRepeats; ++i) {
    conversation.add_turn("new" + std::to_string(i));
    const std::string body = conversation.body();
    conversation.drop_turn();
    bytes = body.size();
    const auto begin = Clock::now();
    api::ChatRequest parsed = parse(body);
    const auto middle = Clock::now();
    const auto prompt = encoder.encode(parsed.conversation);
    total.push_back(ms_of(Clock::now() - begin));
    request.push_back(ms_of(middle - begin));
    encode.push_back(total.back() - request.back());
    tokens = prompt->token_ids.size();
    json.push_back(timed_ms([&] { g_sum += text::parse_json(body)->size(); }));
    strict.push_back(timed_ms([&] { g_sum += text::parse_json_strict(body)->size(); }));
    const simdjson::padded_string padded(body);
    raw.push_back(timed_ms([&] { g_sum += raw_parser.parse(padded).get_object().value().size(); }));
    std::string target(body.size(), ' ');
    copy.push_back(timed_ms([&] { std::memcpy(target.data(), body.data(), body.size()); }));
    g_sum += static_cast<size_t>(target.back());
    if (i % 8 == 0) {
      anew.push_back(
          timed_ms([&] { g_sum += text::encode_chat(parsed.conversation, tokenizer)->token_ids.size(); }));
    }
  }
  return {{"turns", kTurns},
          {"body_bytes", bytes},
          {"prompt_tokens", tokens},
          {"total", distribution(total)},
          {"body_to_request", distribution(request)},
          {"of_that_json_to_tree", distribution(json)},
          {"request_to_ids", distribution(encode)},
          {"limits", {{"simdjson_parse_alone", distribution(raw)}, {"copy_of_the_body", distribution(copy)}}},
          {"without",
           {{"memo_request_to_ids", distribution(anew)}, {"simdjson_json_to_tree", distribution(strict)}}},
          {"memo_bytes", encoder.memo_stats().bytes}};
}

// ---- hostile texts ----

std::string repeated(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

std::string random_letters(size_t bytes) {
  std::string out(bytes, 'a');
  uint64_t state = 1;
  for (char& c : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>('a' + (state >> 33) % 26);
  }
  return out;
}

Json bench_tokenizer(const text::Tokenizer& tokenizer) {
  Json rows = Json::array();
  const std::pair<const char*, std::string (*)(size_t)> kinds[] = {
      {"one letter, no space", [](size_t n) { return repeated("a", n); }},
      {"random letters, no space", random_letters},
      {"combining marks", [](size_t n) { return repeated("\u0301", n); }},
      {"newlines", [](size_t n) { return repeated("\n", n); }},
      {"spaces", [](size_t n) { return repeated(" ", n); }},
      {"digits", [](size_t n) { return repeated("1234567", n); }},
      {"beginnings of control tokens", [](size_t n) { return repeated("<｜", n); }},
      {"han", [](size_t n) { return repeated("世界人民", n); }},
      {"invalid UTF-8", [](size_t n) { return repeated("\xE4\xB8", n); }}};
  for (const auto& [name, make] : kinds) {
    Json row{{"text", name}};
    for (const size_t mb : {size_t{1}, size_t{5}, size_t{10}}) {
      const std::string text = make(mb * 1'000'000);
      for (const auto mode : {text::EncodeMode::plain, text::EncodeMode::with_added}) {
        const double ms = timed_ms([&] { g_sum += tokenizer.encode(text, mode).size(); });
        row[fmt::format("{}_MB{}_ms", mb, mode == text::EncodeMode::plain ? "" : "_with_added")] = ms;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// ---- hostile outputs ----

Json bench_parser(const text::Tokenizer& tokenizer) {
  const int32_t dsml = tokenizer.added_token("｜DSML｜").value_or(-1);
  const auto ids = [&](const std::string& text) {
    return tokenizer.encode(text, text::EncodeMode::with_added);
  };
  const std::string opened =
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a\" string=\"true\">";
  const auto run = [&](const char* name, const std::vector<int32_t>& output) {
    text::ParserOptions options;
    options.parse_tool_calls = true;
    options.stop = {"<STOP>"};
    size_t held_bytes = 0, given_bytes = 0;
    const double ms = timed_ms([&] {
      text::OutputParser parser(tokenizer, options);
      for (const int32_t id : output) {
        for (const auto& event : parser.push(id)) given_bytes += event.text.size();
        held_bytes = std::max(held_bytes, parser.held_bytes());
      }
      for (const auto& event : parser.finish()) given_bytes += event.text.size();
    });
    return Json{{"output", name},
                {"tokens", output.size()},
                {"ms", ms},
                {"ns_per_token", ms * 1e6 / static_cast<double>(output.size())},
                {"held_bytes_max", held_bytes},
                {"given_bytes", given_bytes}};
  };
  Json rows = Json::array();
  const std::vector<int32_t> angle = ids("<");
  for (const size_t count : {size_t{250'000}, size_t{1'000'000}}) {
    rows.push_back(run("angles, one token each", std::vector<int32_t>(count, angle.front())));
    rows.push_back(run("markup tokens", std::vector<int32_t>(count, dsml)));
  }
  for (const size_t mb : {size_t{1}, size_t{5}}) {
    rows.push_back(run("unclosed block", ids(opened + repeated("some text, ", mb * 1'000'000))));
    rows.push_back(
        run("unclosed name", ids("<｜DSML｜ calls>invoke name=\"" + repeated("name ", mb * 1'000'000))));
    rows.push_back(
        run("unclosed value without type", ids("<｜DSML｜ calls>invoke name=\"f\">parameter name=\"a\">" +
                                               repeated("[1, 2], ", mb * 1'000'000))));
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "bench_text TOKENIZER.json TEXT…\n");
    return 2;
  }
  const auto tokenizer = text::Tokenizer::from_json(read_file(argv[1]));
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message());
    return 1;
  }
  std::string source;
  for (int i = 2; i < argc; ++i) source += read_file(argv[i]);
  if (source.size() < 10'000) {
    fmt::print(stderr, "the texts have {} bytes, expected 10000 or more\n", source.size());
    return 2;
  }
  const Json out{{"schema", "rorqual.bench.text/1"},
                 {"last_turn", bench_last_turn(source, *tokenizer)},
                 {"tokenizer", bench_tokenizer(*tokenizer)},
                 {"parser", bench_parser(*tokenizer)},
                 {"checksum", g_sum}};
  fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
  return 0;
}
