// SPDX-License-Identifier: Apache-2.0
// Property: outputs with tool calls, cut anywhere and ended anywhere, leak no markup.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/test_text.h"

namespace rorqual::text {
namespace {

/// One output and what must come of it.
struct Sample {
  std::string text;
  std::string reasoning, content;  // of the complete output
  std::vector<ParsedOutput::Call> calls;
};

class SampleMaker {
 public:
  explicit SampleMaker(uint64_t seed) : random_(seed) {}

  size_t below(size_t bound) { return static_cast<size_t>(random_() % bound); }

  /// Text without markup tokens; all else that looks like a beginning of one.
  std::string prose() {
    static const char* kParts[] = {"<",  "｜",      "<｜", "\n",   "</", "think>",         "DSML",
                                   "a",  " calls>", "\"",  "é",    "世", "invoke name=\"", "parameter",
                                   "\\", "{",       "}",   "&lt;", "\t", "\U0001F600"};
    static const char* kMarkers[] = {"<think>", "</think>", "｜DSML｜"};
    while (true) {
      std::string out;
      for (size_t i = below(8); i > 0; --i) out += kParts[below(std::size(kParts))];
      const auto is_in = [&out](const char* marker) { return out.find(marker) != std::string::npos; };
      if (std::none_of(std::begin(kMarkers), std::end(kMarkers), is_in)) return out;
    }
  }

  /// Prose that does not end in what belongs to the block after it.
  std::string closed_prose() { return prose() + "."; }

  Sample make() {
    static const char* kBlocks[] = {" calls", "tool_calls", "function_calls", " tool_calls"};
    const size_t dialect = below(std::size(kBlocks));
    const std::string space = below(2) == 0 ? " " : "";
    Sample out;
    out.reasoning = closed_prose();
    out.reasoning.erase(0, out.reasoning.find_first_not_of('\n'));
    out.content = below(3) == 0 ? "" : closed_prose();
    out.content.erase(0, std::min(out.content.find_first_not_of('\n'), out.content.size()));
    out.text = out.reasoning + "</think>" + out.content + std::string(below(4), '\n');
    out.text += std::string("<｜DSML｜") + kBlocks[dialect] + ">\n";
    for (size_t i = 1 + below(3); i > 0; --i) out.calls.push_back(append_call(space, out.text));
    out.text += std::string("</｜DSML｜") + kBlocks[dialect] + ">";
    return out;
  }

 private:
  ParsedOutput::Call append_call(const std::string& space, std::string& text) {
    ParsedOutput::Call call{"tool_" + std::to_string(below(100)), "{"};
    text += "<｜DSML｜" + space + "invoke name=\"" + call.name + "\">\n";
    const size_t count = below(4);
    for (size_t i = 0; i < count; ++i) {
      const std::string key = "k" + std::to_string(i);
      const bool is_string = below(2) == 0;
      const std::string value = is_string ? prose() + "." : "[1, {\"a\": \"<\"}, 1e308]";
      text += "<｜DSML｜" + space + "parameter name=\"" + key + "\" string=\"" +
              (is_string ? "true" : "false") + "\">" + value + "</｜DSML｜" + space + "parameter>\n";
      call.arguments += (i > 0 ? ", \"" : "\"") + key + "\": " + (is_string ? json_quote(value) : value);
    }
    call.arguments += "}";
    text += "</｜DSML｜" + space + "invoke>\n";
    return call;
  }

  std::mt19937_64 random_;
};

ParserOptions thinking_with_tools() {
  ParserOptions options;
  options.initial_stage = InitialStage::reasoning;
  options.parse_tool_calls = true;
  return options;
}

/// Ids with token borders at random bytes; control tokens stay whole.
std::vector<int32_t> cut_ids(const std::string& text, SampleMaker& random) {
  std::vector<int32_t> out;
  for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::with_added)) {
    const std::string_view bytes = mini_tokenizer().token_bytes(id);
    if (mini_tokenizer().is_added(id) || bytes.size() < 2 || random.below(3) != 0) {
      out.push_back(id);
      continue;
    }
    const size_t at = 1 + random.below(bytes.size() - 1);
    mini_tokenizer().append_ids(bytes.substr(0, at), EncodeMode::plain, out);
    mini_tokenizer().append_ids(bytes.substr(at), EncodeMode::plain, out);
  }
  return out;
}

/// Arguments of an output that ended there: a beginning of `whole`, at most with the angle (and slash) of the
/// closing tag whose marker never came, which may as well be the value's own.
bool is_cut_of(std::string cut, const std::string& whole) {
  if (whole.starts_with(cut)) return true;
  if (cut.ends_with('/')) cut.pop_back();
  if (cut.ends_with('<')) cut.pop_back();
  return whole.starts_with(cut);
}

/// Whole calls at the front are those of `expected`; the last one may be cut.
void expect_prefix(const ParsedOutput& got, const Sample& expected, const std::string& place) {
  ASSERT_LE(got.calls.size(), expected.calls.size()) << place;
  for (size_t i = 0; i < got.calls.size(); ++i) {
    const auto& want = expected.calls[i];
    ASSERT_EQ(got.calls[i].name, want.name) << place;
    ASSERT_TRUE(is_cut_of(got.calls[i].arguments, want.arguments)) << place << got.calls[i].arguments;
  }
}

TEST(OutputSplits, TenThousandRandomSplitsLeakNoMarkup) {
  const uint64_t seed = test_seed();
  std::printf("seed %llu (RORQUAL_TEST_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  SampleMaker random(seed);
  for (int round = 0; round < 10'000; ++round) {
    const Sample sample = random.make();
    const std::string place =
        "seed " + std::to_string(seed) + " round " + std::to_string(round) + "\n" + sample.text + "\n";
    const bool by_ids = random.below(2) == 0;
    const bool is_whole = random.below(2) == 0;
    OutputParser parser(mini_tokenizer(), thinking_with_tools());
    ParsedOutput got;
    if (by_ids) {
      std::vector<int32_t> ids = cut_ids(sample.text, random);
      if (!is_whole) ids.resize(random.below(ids.size()));
      for (const int32_t id : ids) accumulate(parser.push(id), got);
    } else {
      std::string_view rest = sample.text;
      if (!is_whole) rest = rest.substr(0, random.below(rest.size()));
      while (!rest.empty()) {
        const size_t size = 1 + random.below(12);
        accumulate(parser.push_text(rest.substr(0, size)), got);
        rest.remove_prefix(std::min(size, rest.size()));
      }
    }
    accumulate(parser.finish(), got);
    ASSERT_NO_FATAL_FAILURE(expect_prefix(got, sample, place));
    if (is_whole) {
      ASSERT_EQ(got.reasoning.value_or(""), sample.reasoning) << place;
      ASSERT_EQ(got.content, sample.content) << place;
      ASSERT_EQ(got.calls.size(), sample.calls.size()) << place;
      ASSERT_EQ(got.calls.back().arguments, sample.calls.back().arguments) << place;
      continue;
    }
    // Cut: what follows the prose is at most newlines and the angle whose marker never came.
    const std::string prose = got.calls.empty() && got.content.empty() ? "" : got.content;
    const size_t same = std::min(prose.size(), sample.content.size());
    ASSERT_EQ(prose.substr(0, same), sample.content.substr(0, same)) << place;
    ASSERT_EQ(prose.find_first_not_of("\n", same),
              prose.size() > same && prose.back() == '<' ? prose.size() - 1 : std::string::npos)
        << place << prose;
  }
}

}  // namespace
}  // namespace rorqual::text
