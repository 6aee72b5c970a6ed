// SPDX-License-Identifier: Apache-2.0
// What the replay trim changes: exact answers to rendered prompts are forced behind trimmed prompts. Per
// number of rows: answers that stay identical, forced tokens that stay the best, KL of the distributions.
//   bench_replay_trim MODEL_DIR PROMPTS.jsonl…      (bench/prompts)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "format/tensor_source.h"
#include "model/model.h"
#include "runtime/logprobs.h"
#include "text/token_map.h"
#include "text/tokenizer.h"

namespace {

using namespace rorqual;

constexpr int64_t kRows[] = {64, 128, 256};
constexpr int64_t kAnswer = 64;  // most tokens of an answer

std::vector<double> logprobs_of(const std::vector<float>& logits) {
  const double normalizer = runtime::log_sum_exp(logits);
  std::vector<double> out;
  for (const float value : logits) out.push_back(value - normalizer);
  return out;
}

int32_t best_of(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Total {
  int64_t prompts = 0, longer = 0, identical = 0, tokens = 0, agree = 0;
  double kl = 0, worst = 0;
};

/// Exits on errors: a bench has nobody to return them to.
template <class T>
T need(Result<T> result) {
  if (result.ok()) return *std::move(result);
  fmt::print(stderr, "{}\n", result.error().message());
  std::exit(1);
}

class Bench {
 public:
  explicit Bench(model::Model& model) : model_(model), logits_(static_cast<size_t>(model.vocab_size())) {}

  void add(const std::vector<int32_t>& prompt) {
    std::vector<std::vector<double>> exact;
    std::vector<int32_t> answer;
    model::SequenceId id = open(prompt, 0);
    while (static_cast<int64_t>(answer.size()) < kAnswer) {
      exact.push_back(logprobs_of(logits_));
      answer.push_back(best_of(logits_));
      if (answer.back() == model_.config().eos_token_id) break;
      run(id, {answer.back()}, {});
    }
    model_.close_sequence(id);
    for (size_t n = 0; n < std::size(kRows); ++n) {
      Total& total = totals_[n];
      id = open(prompt, kRows[n]);
      bool is_identical = true;
      for (size_t i = 0; i < answer.size(); ++i) {
        is_identical = compare(exact[i], answer[i], total) && is_identical;
        if (i + 1 < answer.size()) run(id, {answer[i]}, {});
      }
      model_.close_sequence(id);
      total.prompts += 1;
      total.longer += static_cast<int64_t>(prompt.size()) > kRows[n] ? 1 : 0;
      total.identical += is_identical ? 1 : 0;
    }
  }

  void print(const std::string& name) const {
    for (size_t n = 0; n < std::size(kRows); ++n) {
      const Total& t = totals_[n];
      fmt::print(
          "{}: {} rows: {} of {} prompts are longer; {} answers identical; {} of {} forced tokens agree; KL "
          "{:.2e}, largest {:.2e}\n",
          name, kRows[n], t.longer, t.prompts, t.identical, t.agree, t.tokens,
          t.kl / static_cast<double>(std::max<int64_t>(t.tokens, 1)), t.worst);
    }
  }

 private:
  bool compare(const std::vector<double>& exact, int32_t token, Total& total) const {
    const std::vector<double> got = logprobs_of(logits_);
    double kl = 0;
    for (size_t v = 0; v < got.size(); ++v) kl += std::exp(exact[v]) * (exact[v] - got[v]);
    const bool is_best = best_of(logits_) == token;
    total.kl += kl;
    total.worst = std::max(total.worst, kl);
    total.tokens += 1;
    total.agree += is_best ? 1 : 0;
    return is_best;
  }

  /// A sequence with its prompt done, and the logits of the last row.
  model::SequenceId open(const std::vector<int32_t>& prompt, int64_t trim_rows) {
    model::SequenceStart start;
    start.trim_rows = trim_rows;
    const model::SequenceId id = need(model_.open_sequence(start));
    if (!model_.reserve(id, static_cast<int64_t>(prompt.size()) + kAnswer)) std::exit(1);
    const auto end = static_cast<int64_t>(prompt.size());
    run(id, prompt, {&end, 1});
    return id;
  }

  void run(model::SequenceId id, const std::vector<int32_t>& tokens, std::span<const int64_t> targets) {
    const auto last = static_cast<int32_t>(tokens.size() - 1);
    model::StepSlice slice;
    slice.sequence = id;
    slice.tokens = tokens;
    slice.logit_offsets = std::span(&last, 1);
    slice.window_targets = targets;
    const Status status = model_.forward(std::span(&slice, 1), logits_);
    if (status.ok()) return;
    fmt::print(stderr, "{}\n", status.error().message());
    std::exit(1);
  }

  model::Model& model_;
  std::vector<float> logits_;
  Total totals_[std::size(kRows)];
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "bench_replay_trim MODEL_DIR PROMPTS.jsonl…\n");
    return 2;
  }
  const auto source = need(format::open_checkpoint(argv[1]));
  const model::Config config = need(model::parse_config(need(source->read_text("config.json"))));
  const text::Tokenizer tokenizer =
      need(text::Tokenizer::from_json(need(source->read_text("tokenizer.json"))));
  model::ModelOptions options;
  options.num_threads = 2;
  options.with_drafts = false;
  options.max_step_rows = options.max_model_len = 4096;
  options.max_sequences = 1;
  const auto model =
      need(model::Model::load(*source, config, text::engram_token_map(tokenizer).compressed, options));
  for (int i = 2; i < argc; ++i) {
    Bench bench(*model);
    std::ifstream file(argv[i]);
    std::string line;
    while (std::getline(file, line)) {
      const auto prompt = nlohmann::json::parse(line).at("prompt").get<std::string>();
      bench.add(tokenizer.encode(prompt, text::EncodeMode::with_added));
    }
    bench.print(argv[i]);
  }
  return 0;
}
