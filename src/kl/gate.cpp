// SPDX-License-Identifier: Apache-2.0
#include "kl/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/check.h"

namespace rorqual::kl {
namespace {

constexpr int64_t kMaxApart_s = 24 * 3600;

double allowance(double old_kl, double relative, double absolute) {
  return std::max(relative * old_kl, absolute);
}

/// The largest value that passes, by the formula of the rule.
double limit_of(double old_value, double relative, double absolute) {
  return std::max((1 + relative) * old_value, old_value + absolute);
}

/// Whether a second old run is within the allowance, by the formulas of the limits and not by a difference:
/// what passes as a change must not count as noise because of its last bit.
bool agrees(double again, double old_value, const GateLimits& limits) {
  const double low = std::min((1 - limits.relative) * old_value, old_value - limits.absolute);
  return low <= again && again <= limit_of(old_value, limits.relative, limits.absolute);
}

std::string percent(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:+.1f} %", 100 * ratio) : "from 0";
}

/// Empty if the tail keeps to the limits that were asked for.
std::string tail_fault(const GateNumbers& numbers, const GateLimits& limits) {
  if (!numbers.old_tail || !numbers.new_tail) return {};
  const Tail &before = *numbers.old_tail, &after = *numbers.new_tail;
  if (limits.tail_relative > 0) {
    for (const auto& [name, old_value, new_value] :
         {std::tuple("p95", before.p95, after.p95), std::tuple("p99", before.p99, after.p99)}) {
      const double limit = limit_of(old_value, limits.tail_relative, limits.absolute);
      if (!(new_value <= limit))
        return fmt::format("{} {:.4f} is above {:.4f} (old {:.4f})", name, new_value, limit, old_value);
    }
  }
  if (limits.max_kl > 0 && !(after.max <= limits.max_kl))
    return fmt::format("the largest position has {:.4f}, above {:.4f}", after.max, limits.max_kl);
  return {};
}

Tail tail_of(const Summary& summary) {
  return {summary.p95, summary.p99, summary.max};
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  return verdict == Verdict::passed ? "passed" : verdict == Verdict::failed ? "failed" : "undecided";
}

GateCorpus judge(const GateNumbers& numbers, const GateLimits& limits) {
  GateCorpus out;
  out.numbers = numbers;
  const double old_kl = numbers.old_kl, new_kl = numbers.new_kl;
  out.limit = limit_of(old_kl, limits.relative, limits.absolute);
  out.relative_change = new_kl == old_kl ? 0
                        : old_kl > 0     ? (new_kl - old_kl) / old_kl
                                         : std::numeric_limits<double>::infinity();
  const double allowed = allowance(old_kl, limits.relative, limits.absolute);
  const double apart = numbers.old_again_kl ? std::abs(*numbers.old_again_kl - old_kl) : 0;
  if (!std::isfinite(old_kl) || !std::isfinite(new_kl) || !std::isfinite(apart)) {
    out.verdict = Verdict::failed;
    out.reason = "a divergence is not finite";
  } else if (numbers.old_again_kl && !agrees(*numbers.old_again_kl, old_kl, limits)) {
    out.verdict = Verdict::undecided;
    out.reason = fmt::format("two runs of the old side differ by {:.4f}, more than the allowance of {:.4f}",
                             apart, allowed);
  } else if (numbers.old_is_nondeterministic && !numbers.old_again_kl) {
    out.verdict = Verdict::undecided;
    out.reason = "the old side may differ from run to run and was captured once";
  } else if (!(new_kl <= out.limit)) {
    out.verdict = Verdict::failed;
    out.reason = fmt::format("KL {:.4f} is above {:.4f} (old {:.4f}, {})", new_kl, out.limit, old_kl,
                             percent(out.relative_change));
  } else if (const std::string fault = tail_fault(numbers, limits); !fault.empty()) {
    out.verdict = Verdict::failed;
    out.reason = fault;
  } else {
    out.reason = fmt::format("KL {:.4f} is within {:.4f} (old {:.4f}, {})", new_kl, out.limit, old_kl,
                             percent(out.relative_change));
  }
  return out;
}

Verdict worst(const std::vector<GateCorpus>& corpora) {
  if (corpora.empty()) return Verdict::undecided;
  Verdict verdict = Verdict::passed;
  for (const auto& corpus : corpora) verdict = std::max(verdict, corpus.verdict);
  return verdict;
}

Result<GateNumbers> measure(const GateDumps& dumps) {
  RORQUAL_CHECK(dumps.reference != nullptr && dumps.old_side != nullptr && dumps.new_side != nullptr);
  CompareOptions options;
  if (dumps.old_again != nullptr) options.also.push_back(dumps.old_again);
  RORQUAL_TRY_ASSIGN(const Paired paired,
                     compare_paired(*dumps.reference, *dumps.new_side, *dumps.old_side, options));
  GateNumbers numbers;
  numbers.corpus = dumps.reference->info.corpus;
  numbers.old_kl = paired.b.summary.mean_kl;
  numbers.new_kl = paired.a.summary.mean_kl;
  numbers.old_tail = tail_of(paired.b.summary);
  numbers.new_tail = tail_of(paired.a.summary);
  numbers.relative_ci = paired.relative_ci;
  if (dumps.old_again != nullptr) {
    options.also = {dumps.old_side, dumps.new_side};
    RORQUAL_TRY_ASSIGN(const Comparison again, compare(*dumps.reference, *dumps.old_again, options));
    numbers.old_again_kl = again.summary.mean_kl;
  }
  return numbers;
}

std::optional<int64_t> parse_utc(std::string_view text) {
  const std::string copy(text);
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, length = 0;
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &year, &month, &day, &hour, &minute, &second,
                  &length) != 6)
    return std::nullopt;
  auto rest = text.substr(static_cast<size_t>(length));
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') rest.remove_prefix(1);
  }
  if (rest != "Z" && rest != "+00:00") return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
    return std::nullopt;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return ((days * 24 + hour) * 60 + minute) * 60 + second;
}

Status check_pair(const RunRecord& old_side, const RunRecord& new_side) {
  const auto refuse = [](std::string_view what, const std::string& before, const std::string& after) {
    return Error(
        Code::invalid_argument,
        fmt::format("not a pair: {} is '{}' on the old side, '{}' on the new one", what, before, after),
        "capture both sides on the same day with the same build, machine and settings, or give "
        "--force-pair");
  };
  const auto yes_no = [](bool value) { return std::string(value ? "on" : "off"); };
  const std::tuple<std::string_view, std::string, std::string> fields[] = {
      {"the version", old_side.version, new_side.version},
      {"the commit", old_side.commit, new_side.commit},
      {"the machine", old_side.machine, new_side.machine},
      {"max_model_len", std::to_string(old_side.max_model_len), std::to_string(new_side.max_model_len)},
      {"the prompt switches", old_side.prompt_compat, new_side.prompt_compat},
      {"speculation", yes_no(old_side.speculation), yes_no(new_side.speculation)},
      {"the prefix cache", yes_no(old_side.prefix_cache), yes_no(new_side.prefix_cache)}};
  for (const auto& [name, before, after] : fields) {
    if (before != after) return refuse(name, before, after);
  }
  const auto before = parse_utc(old_side.started_at), after = parse_utc(new_side.started_at);
  if (!before || !after) return refuse("the time of capture", old_side.started_at, new_side.started_at);
  if (std::abs(*after - *before) > kMaxApart_s) {
    return Error(Code::invalid_argument,
                 fmt::format("not a pair: captured {:.1f} hours apart, expected at most 24",
                             static_cast<double>(std::abs(*after - *before)) / 3600),
                 "capture both sides on the same day, or give --force-pair");
  }
  return Ok();
}

std::string changes(const RunRecord& old_side, const RunRecord& new_side) {
  std::string out;
  const auto add = [&](std::string_view name, const std::string& before, const std::string& after) {
    if (before == after) return;
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("none") : value; };
    out += fmt::format("{}{} {} -> {}", out.empty() ? "" : ", ", name, shown(before), shown(after));
  };
  add("switches", old_side.switches, new_side.switches);
  add("numerics", old_side.numerics, new_side.numerics);
  add("kernels", old_side.kernels, new_side.kernels);
  add("model", old_side.model_sha256.substr(0, 12), new_side.model_sha256.substr(0, 12));
  add("threads", std::to_string(old_side.threads), std::to_string(new_side.threads));
  add("streams", std::to_string(old_side.streams), std::to_string(new_side.streams));
  return out;
}

}  // namespace rorqual::kl
