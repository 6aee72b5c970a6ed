// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "base/units.h"
#include "model/switches.h"
#include "tools/bench_model.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The prompt of one sequence in steps as the scheduler cuts it, then the answer token by token.
class ContextRun {
 public:
  ContextRun(model::Model& model, const BenchContextOptions& options)
      : model_(model), options_(options), random_(model.vocab_size()) {
    logits_.resize(static_cast<size_t>(model.vocab_size()));
  }

  Status run() {
    RORQUAL_TRY_ASSIGN(sequence_, model_.open_sequence());
    const Status status = run_open();
    model_.close_sequence(sequence_);
    return status;
  }

  /// Times and the digest of all rows of logits.
  Json result() {
    return {{"prefill_seconds", prefill_s_},
            {"prefill_tokens_per_second", static_cast<double>(options_.prompt_tokens) / prefill_s_},
            {"decode_seconds", decode_s_},
            {"decode_tokens_per_second",
             static_cast<double>(options_.generate_tokens) / std::max(decode_s_, 1e-9)},
            {"parts", parts_},
            {"logits_sha256", digest_.hex()}};
  }

 private:
  Status run_open() {
    const int64_t end = options_.prompt_tokens;
    if (!model_.reserve(sequence_, end + options_.generate_tokens)) {
      return Error(Code::out_of_memory, "the KV cache does not hold the prompt", "raise --max-model-len");
    }
    const double start = seconds_now();
    double part_start = start;
    int64_t part_begin = 0;
    for (int64_t done = 0; done < end;) {
      const int64_t count = std::min(model_.max_step_rows(), end - done);
      RORQUAL_TRY(prefill(done, count));
      done += count;
      if (done % options_.part_tokens >= count && done < end) continue;
      const double now = seconds_now();
      parts_.push_back({{"begin", part_begin},
                        {"end", done},
                        {"seconds", now - part_start},
                        {"tokens_per_second", static_cast<double>(done - part_begin) / (now - part_start)}});
      part_begin = done;
      part_start = now;
    }
    prefill_s_ = seconds_now() - start;
    for (int64_t i = 0; i < options_.generate_tokens; ++i) RORQUAL_TRY(decode());
    decode_s_ = seconds_now() - start - prefill_s_;
    return Ok{};
  }

  Status prefill(int64_t begin, int64_t count) {
    const int64_t end = options_.prompt_tokens;
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = random_.next();
    const auto last = static_cast<int32_t>(count - 1);
    model::StepSlice slice;
    slice.sequence = sequence_;
    slice.tokens = tokens;
    if (begin + count == end) slice.logit_offsets = std::span(&last, 1);
    if (options_.skips_unread_rows) slice.window_targets = std::span(&end, 1);
    return forward(slice);
  }

  Status decode() {
    const int32_t token = random_.next(), only_row = 0;
    model::StepSlice slice;
    slice.sequence = sequence_;
    slice.tokens = std::span(&token, 1);
    slice.logit_offsets = std::span(&only_row, 1);
    return forward(slice);
  }

  Status forward(const model::StepSlice& slice) {
    const std::span<float> rows = std::span(logits_).first(slice.logit_offsets.size() * logits_.size());
    RORQUAL_TRY(model_.forward(std::span(&slice, 1), rows));
    digest_.update(std::as_bytes(rows));
    return Ok{};
  }

  model::Model& model_;
  const BenchContextOptions& options_;
  RandomTokens random_;
  model::SequenceId sequence_ = 0;
  std::vector<float> logits_;
  Json parts_ = Json::array();
  double prefill_s_ = 0, decode_s_ = 0;
  Sha256 digest_;
};

void print_report(const Json& report) {
  fmt::print("model     {}\n", report["model"].get<std::string>());
  fmt::print("run       prompt {}, answer {}, steps of {} tokens, {} threads, {} numerics{}\n",
             report["prompt_tokens"].get<int64_t>(), report["generate_tokens"].get<int64_t>(),
             report["max_num_batched_tokens"].get<int64_t>(), report["threads"].get<int>(),
             report["numerics"].get<std::string>(),
             report["skips_unread_rows"].get<bool>() ? "" : ", every row through every layer");
  fmt::print("memory    peak {}; planned {}, ratio {:.3f}\n",
             format_bytes(report["memory"]["rss_peak_bytes"].get<int64_t>()),
             format_bytes(report["memory"]["planned_bytes"].get<int64_t>()),
             report["memory"]["planned_to_measured_ratio"].get<double>());
  for (const Json& part : report["parts"]) {
    fmt::print("{:>9} to {:>9}  {:>9.1f} s  {:>9.1f} tok/s\n", part["begin"].get<int64_t>(),
               part["end"].get<int64_t>(), part["seconds"].get<double>(),
               part["tokens_per_second"].get<double>());
  }
  fmt::print("prefill   {:.1f} s, {:.1f} tok/s\ndecode    {:.1f} tok/s\nlogits    {}\n",
             report["prefill_seconds"].get<double>(), report["prefill_tokens_per_second"].get<double>(),
             report["decode_tokens_per_second"].get<double>(), report["logits_sha256"].get<std::string>());
}

}  // namespace

Status run_bench_context(const BenchContextOptions& options) {
  OpenOptions open = options.open;
  open.max_num_seqs = 1;
  RORQUAL_TRY_ASSIGN(const PlannedModel planned,
                     open_planned(open, options.prompt_tokens + options.generate_tokens));
  model::Model& model = *planned.model;
  ContextRun run(model, options);
  RORQUAL_TRY(run.run());
  const int64_t planned_bytes = planned.plan.now.of(plan::Tier::ram).needed_bytes;
  const int64_t peak = peak_resident_bytes();
  Json report{{"schema", "rorqual.bench.context/1"},
              {"model", planned.opened.name},
              {"numerics", open.numerics},
              {"switches", model::describe_switches(open.switches)},
              {"threads", model.num_threads()},
              {"prompt_tokens", options.prompt_tokens},
              {"generate_tokens", options.generate_tokens},
              {"max_num_batched_tokens", open.max_num_batched_tokens},
              {"skips_unread_rows", options.skips_unread_rows},
              {"memory",
               {{"rss_peak_bytes", peak},
                {"planned_bytes", planned_bytes},
                {"planned_to_measured_ratio",
                 static_cast<double>(planned_bytes) / static_cast<double>(std::max<int64_t>(peak, 1))}}}};
  report.update(run.result());
  if (options.as_json) {
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_report(report);
  }
  return Ok{};
}

}  // namespace rorqual::tools
