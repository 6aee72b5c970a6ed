// SPDX-License-Identifier: Apache-2.0
// Masks of constrained output: what they cost per step of many streams, and what compiling a constraint
// costs. Every stream follows a document that its constraint allows, each at another place of it.
//   bench_constraint TOKENIZER.json [--streams N] [--steps N]      prints JSON, times in milliseconds
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "text/tokenizer.h"

namespace {

using namespace rorqual;
using grammar::ConstraintPlace;
using grammar::ConstraintSpec;
using Json = nlohmann::ordered_json;

constexpr double kStepMs = 20;  // of a decode step that the masks are compared with

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

struct Case {
  std::string name;
  ConstraintSpec spec;
  ConstraintPlace place;
  std::string document;
};

std::string person_schema() {
  return R"({"type":"object","properties":{"name":{"type":"string","maxLength":60},"age":{"type":"integer","minimum":0,"maximum":150},
    "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":8},
    "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
    "required":["street","city","zip"],"additionalProperties":false},"score":{"type":"number","minimum":0,"maximum":1},
    "kind":{"enum":["customer","supplier","employee"]},"note":{"type":["string","null"]}},
    "required":["name","age","tags","address","kind"],"additionalProperties":false})";
}

std::string person() {
  return R"({"name": "Ingrid Solheim", "age": 41, "email": "ingrid@solheim.example", "tags": ["north", "early", "rail"], "address": {"street":
 "Kirkegata 5", "city": "Trondheim", "zip": "70110"}, "score": 0.75, "kind": "customer", "note": "Prefers letters to telephone calls; pays late but surely."})";
}

std::string tools(int count) {
  Json list = Json::array();
  for (int i = 0; i < count; ++i) {
    Json parameters{
        {"type", "object"},
        {"properties",
         Json{{"path", Json{{"type", "string"}}},
              {"old_text", Json{{"type", "string"}}},
              {"new_text", Json{{"type", "string"}}},
              {"count", Json{{"type", "integer"}, {"minimum", 1}}},
              {"mode", Json{{"enum", {"first", "all", "last"}}}},
              {"options", Json{{"type", "object"}, {"additionalProperties", Json{{"type", "boolean"}}}}},
              {"ranges", Json{{"type", "array"},
                              {"items", Json{{"type", "array"}, {"items", Json{{"type", "integer"}}}}}}}}},
        {"required", {"path", "old_text"}}};
    list.push_back(
        Json{{"type", "function"},
             {"function", Json{{"name", fmt::format("edit_file_{}", i)}, {"parameters", parameters}}}});
  }
  return list.dump();
}

std::string call() {
  return "Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"edit_file_3\">\n<｜DSML｜ parameter "
         "name=\"path\" string=\"true\">src/server/chat_route.cpp"
         "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"old_text\" string=\"true\">int main() {\n  "
         "return 0;\n}\n</｜DSML｜ parameter>\n"
         "<｜DSML｜ parameter name=\"new_text\" string=\"true\">int main(int argc, char** argv) {\n  return "
         "run(argc, argv) ? 0 : 1;\n}\n"
         "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"count\" string=\"false\">1</｜DSML｜ parameter>\n"
         "<｜DSML｜ parameter name=\"ranges\" string=\"false\">[[1, 20], [40, 60]]</｜DSML｜ "
         "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}

std::vector<Case> cases() {
  using Kind = ConstraintSpec::Kind;
  std::string wide = R"({"type":"object","properties":{)";
  std::string wide_document = "{";
  for (int i = 0; i < 100; ++i) {
    wide += fmt::format("{}\"field_{}\":{{\"type\":\"string\",\"maxLength\":40}}", i > 0 ? "," : "", i);
    if (i % 5 == 0) wide_document += fmt::format("{}\"field_{}\": \"value of {}\"", i > 0 ? ", " : "", i, i);
  }
  wide += "}}";
  wide_document += "}";
  return {{"any object", {Kind::json, ""}, {}, person()},
          {"schema of 8 properties", {Kind::json, person_schema()}, {}, person()},
          {"schema of 100 optional properties", {Kind::json, wide}, {}, wide_document},
          {"regex",
           {Kind::regex, "([A-Z][a-z]+ ){2,5}[A-Z][a-z]+, [0-9]{4}(-[0-9]{2}){2}"},
           {},
           "Ingrid Maria Solheim, 1984-05-17"},
          {"20 tools, optional", {Kind::tools, tools(20)}, {}, call()},
          {"20 tools, required after thinking",
           {Kind::tools, tools(20)},
           {true, ConstraintPlace::Calls::required},
           "First I think about it.</think>" + call().substr(call().find("\n\n"))}};
}

struct Options {
  std::string tokenizer;
  size_t streams = 16;
  size_t steps = 2000;
};

Json summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return times[std::min(times.size() - 1, static_cast<size_t>(q * static_cast<double>(times.size())))];
  };
  return Json{{"median", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", times.back()}};
}

/// Exits on errors: a bench has nobody to return them to.
template <class T>
T need(Result<T> result) {
  if (result.ok()) return *std::move(result);
  fmt::print(stderr, "{}\n", result.error().message());
  std::exit(1);
}

Json measure(const Case& c, const text::Tokenizer& tokenizer, const Options& options) {
  grammar::ConstraintCompiler compiler(tokenizer, tokenizer.vocab_size(), 1);
  const auto begin = std::chrono::steady_clock::now();
  const auto constraint = need(compiler.compile(c.spec, c.place));
  const double compile_ms = milliseconds_since(begin);

  const auto document = tokenizer.encode(c.document, text::EncodeMode::with_added);

  struct Stream {
    std::shared_ptr<runtime::TokenConstraint> masks;
    size_t at = 0;
  };

  std::vector<Stream> streams(options.streams);
  for (size_t i = 0; i < streams.size(); ++i)
    streams[i] = {constraint.for_reply(), i * document.size() / streams.size()};
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32);
  std::vector<double> steps;
  const auto run = [&](size_t count, bool is_measured) {
    for (size_t step = 0; step < count; ++step) {
      double sum = 0;
      for (Stream& stream : streams) {
        std::fill(mask.begin(), mask.end(), ~uint32_t{0});
        const auto start = std::chrono::steady_clock::now();
        stream.masks->mask({document.data(), stream.at}, mask);
        sum += milliseconds_since(start);
        const auto next = static_cast<size_t>(document[stream.at]);
        if ((mask[next / 32] >> (next % 32) & 1) == 0) {
          fmt::print(stderr, "{}: the document leaves the grammar at token {}\n", c.name, stream.at);
          std::exit(1);
        }
        stream.at = stream.at + 1 < document.size() ? stream.at + 1 : 0;
        if (stream.at == 0) stream.masks = constraint.for_reply();
      }
      if (is_measured) steps.push_back(sum);
    }
  };
  run(document.size(), false);
  run(options.steps, true);
  const Json times = summary(steps);
  return Json{{"constraint", c.name},
              {"compile_ms", compile_ms},
              {"compiled_bytes", compiler.stats().bytes},
              {"document_tokens", document.size()},
              {"step_ms", times},
              {"share_of_step", times["median"].get<double>() / kStepMs}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--streams" && i + 1 < argc) {
      options.streams = std::stoul(argv[++i]);
    } else if (argument == "--steps" && i + 1 < argc) {
      options.steps = std::stoul(argv[++i]);
    } else {
      options.tokenizer = argument;
    }
  }
  std::ifstream file(options.tokenizer);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const text::Tokenizer tokenizer = need(text::Tokenizer::from_json(json));
  const auto begin = std::chrono::steady_clock::now();
  const grammar::ConstraintCompiler table(tokenizer, tokenizer.vocab_size(), 1);
  Json out{{"vocab_size", tokenizer.vocab_size()},
           {"streams", options.streams},
           {"steps", options.steps},
           {"threads", 1},
           {"step_compared_with_ms", kStepMs},
           {"token_table_ms", milliseconds_since(begin)},
           {"constraints", Json::array()}};
  for (const Case& c : cases()) out["constraints"].push_back(measure(c, tokenizer, options));
  fmt::print("{}\n", out.dump(1));
  return 0;
}
