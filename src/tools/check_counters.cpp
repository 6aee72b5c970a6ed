// SPDX-License-Identifier: Apache-2.0
#include "tools/check_counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tools/load_counters.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFile_bytes = 16 << 20;
constexpr double kMaxRelative = 1e-12;

void expect(CheckReport& report, const std::string& place, double got, double expected) {
  const double bound = kMaxRelative * std::max(std::abs(expected), 1.0);
  report.expect(std::abs(got - expected) <= bound,
                [&] { return fmt::format("{} is {:.17g}, expected {:.17g}", place, got, expected); });
}

/// One run; its rate goes to `rates`.
Status check_run(const Json& run, const std::string& place, CheckReport& report, std::vector<double>& rates) {
  std::vector<CounterSample> samples;
  bool has_fall = false;
  for (const Json& pair : run.at("samples")) {
    samples.push_back({.time_s = pair.at(0).get<double>(), .value = pair.at(1).get<double>()});
    const size_t count = samples.size();
    has_fall = has_fall || (count > 1 && samples[count - 1].value < samples[count - 2].value);
  }
  const Json& window = run.at("window");
  RORQUAL_TRY_ASSIGN(const CounterWindow got,
                     counter_window(samples, window.at(0).get<double>(), window.at(1).get<double>()));
  expect(report, place + ": c_start", got.begin, run.at("c_start").get<double>());
  expect(report, place + ": c_end", got.end, run.at("c_end").get<double>());
  expect(report, place + ": tokens", got.delta(), run.at("tokens").get<double>());
  expect(report, place + ": rate", got.rate(), run.at("rate").get<double>());
  report.expect(got.has_restart == has_fall, [&] {
    return fmt::format("{}: restart is {}, expected {}", place, got.has_restart, has_fall);
  });
  rates.push_back(got.rate());
  const double last_s = samples.back().time_s;
  report.expect(!counter_window(samples, samples.front().time_s, last_s + 1).ok(),
                [&] { return fmt::format("{}: a window beyond the samples is not refused", place); });
  return Ok();
}

Status check_document(const Json& document, const std::string& path, CheckReport& report) {
  std::vector<double> rates;
  for (const Json& run : document.at("runs")) {
    RORQUAL_TRY(check_run(run, fmt::format("{}: runs[{}]", path, rates.size()), report, rates));
  }
  if (rates.empty()) return Error(Code::corrupt_data, "'runs' is empty");
  const Spread spread = spread_of(rates);
  expect(report, path + ": mean", spread.mean, document.at("mean").get<double>());
  if (spread.sample_sd) {
    expect(report, path + ": sample_std", *spread.sample_sd, document.at("sample_std").get<double>());
    expect(report, path + ": cv_pct", 100 * *spread.sample_sd / spread.mean,
           document.at("cv_pct").get<double>());
  }
  return Ok();
}

}  // namespace

Status check_counters(const std::vector<std::string>& files, CheckReport& report) {
  for (const std::string& path : files) {
    RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxFile_bytes));
    const Json document = Json::parse(text, nullptr, false);
    const auto damaged = [&](const std::string& what) {
      return Error(Code::corrupt_data, fmt::format("{}: {}", path, what),
                   "tests/golden/eval/README.md has the fields");
    };
    if (!document.is_object()) return damaged("not a JSON object");
    try {
      const auto status = check_document(document, path, report);
      if (!status.ok()) return damaged(status.error().message());
    } catch (const Json::exception& error) {  // the file is input: a field may be absent or of another type
      return damaged(error.what());
    }
  }
  return Ok();
}

}  // namespace rorqual::tools
