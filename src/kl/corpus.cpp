// SPDX-License-Identifier: Apache-2.0
#include "kl/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "kl/panel.h"

namespace rorqual::kl {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr int64_t kMinContext = 4;

template <class T>
void add_value(Sha256& hash, const T& value) {
  hash.update(std::as_bytes(std::span(&value, 1)));
}

}  // namespace

int64_t Corpus::scored_positions() const {
  return std::accumulate(windows.begin(), windows.end(), int64_t{0}, [](int64_t sum, const Window& window) {
    return sum + static_cast<int64_t>(window.ids.size()) - window.first_scored;
  });
}

Result<Corpus> cut_ids(int32_t bos, std::span<const int32_t> ids, std::string name, std::string_view text,
                       const CutOptions& options) {
  if (options.context < kMinContext || options.max_windows < 1) {
    return Error(Code::invalid_argument,
                 fmt::format("windows of {} tokens, at most {} of them: expected at least {} and 1",
                             options.context, options.max_windows, kMinContext),
                 "correct --context or --windows");
  }
  const int64_t body = options.context - 1;
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t count = std::min(options.max_windows, length / body);
  if (count == 0) {
    return Error(Code::invalid_argument,
                 fmt::format("corpus '{}' has {} tokens, one window of context {} needs {}", name, length,
                             options.context, body),
                 "take a longer text or a smaller --context");
  }
  Corpus corpus;
  corpus.name = std::move(name);
  corpus.sha256 = sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
  corpus.context = options.context;
  for (int64_t i = 0; i < count; ++i) {
    Window& window = corpus.windows.emplace_back();
    window.first_scored = options.context / 2;
    window.ids.reserve(static_cast<size_t>(options.context));
    window.ids.push_back(bos);
    const auto part = ids.subspan(static_cast<size_t>(i * body), static_cast<size_t>(body));
    window.ids.insert(window.ids.end(), part.begin(), part.end());
  }
  return corpus;
}

Result<Corpus> cut_windows(const text::Tokenizer& tokenizer, std::string name, std::string_view text,
                           const CutOptions& options) {
  const auto bos = tokenizer.added_token(kBos);
  if (!bos) {
    return Error(Code::unsupported, fmt::format("the tokenizer has no token '{}'", kBos),
                 "windows begin with it; use the model's own tokenizer.json");
  }
  const std::vector<int32_t> ids = tokenizer.encode(text, text::EncodeMode::with_added);
  return cut_ids(*bos, ids, std::move(name), text, options);
}

Result<Corpus> corpus_of(const Dump& dump) {
  const auto num_windows = static_cast<size_t>(dump.info.num_windows);
  if (dump.window_ids.empty() || dump.window_begin.size() != num_windows + 1 ||
      dump.window_first_scored.size() != num_windows) {
    return Error(
        Code::unsupported,
        fmt::format("the capture of corpus '{}' does not hold the tokens of its windows", dump.info.corpus),
        "use the text that it was made of, or a capture in .safetensors form");
  }
  Corpus corpus;
  corpus.name = dump.info.corpus;
  corpus.sha256 = dump.info.corpus_sha256;
  corpus.context = dump.info.context;
  for (size_t w = 0; w < num_windows; ++w) {
    Window& window = corpus.windows.emplace_back();
    window.ids.assign(dump.window_ids.begin() + dump.window_begin[w],
                      dump.window_ids.begin() + dump.window_begin[w + 1]);
    window.first_scored = dump.window_first_scored[w];
  }
  return corpus;
}

std::string windows_sha256(const Corpus& corpus) {
  Sha256 hash;
  for (const Window& window : corpus.windows) {
    add_value(hash, static_cast<int64_t>(window.ids.size()));
    add_value(hash, window.first_scored);
    hash.update(std::as_bytes(std::span(window.ids)));
  }
  return hash.hex();
}

Result<Corpus> read_panel(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const Panel panel, read_panel_file(path));
  Corpus corpus = panel_corpus(panel);
  if (corpus.windows.empty()) {
    return Error(Code::invalid_argument, fmt::format("panel '{}' has no case with a continuation", path),
                 "make one with `rorqual kl panel`");
  }
  return corpus;
}

}  // namespace rorqual::kl
