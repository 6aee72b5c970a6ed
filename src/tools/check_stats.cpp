// SPDX-License-Identifier: Apache-2.0
#include "tools/check_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "kl/statistics.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFile_bytes = 16 << 20;
constexpr double kMaxRelative = 1e-12;

/// Compares numbers of one case by name.
class Numbers {
 public:
  Numbers(std::string place, CheckReport& report) : place_(std::move(place)), report_(report) {}

  void expect(std::string_view name, double got, double expected) {
    const double bound = kMaxRelative * std::max(std::abs(expected), 1e-3);
    report_.expect(std::abs(got - expected) <= bound, [&] {
      return fmt::format("{}: {} is {:.17g}, expected {:.17g}", place_, name, got, expected);
    });
  }

 private:
  std::string place_;
  CheckReport& report_;
};

/// A count of a case, as it may stand in a formula.
Result<int64_t> count(const Json& row, const char* key) {
  const auto value = row.at(key).get<int64_t>();
  if (value >= 0 && value <= (int64_t{1} << 40)) return value;
  return Error(Code::corrupt_data, fmt::format("'{}' is {}, expected a count", key, value));
}

Status check_mcnemar(const Json& row, Numbers numbers) {
  RORQUAL_TRY_ASSIGN(const int64_t b, count(row, "b"));
  RORQUAL_TRY_ASSIGN(const int64_t c, count(row, "c"));
  numbers.expect("mcnemar_exact", kl::mcnemar_exact(b, c), row.at("mcnemar_exact").get<double>());
  numbers.expect("mid_p", kl::mcnemar_mid_p(b, c), row.at("mid_p").get<double>());
  return Ok();
}

Status check_wilson(const Json& row, Numbers numbers) {
  RORQUAL_TRY_ASSIGN(const int64_t x, count(row, "x"));
  RORQUAL_TRY_ASSIGN(const int64_t n, count(row, "n"));
  if (n == 0 || x > n) return Error(Code::corrupt_data, fmt::format("{} of {} is no share", x, n));
  const kl::Share share = kl::wilson95(x, n);
  numbers.expect("wilson95[0]", share.low, row.at("wilson95").at(0).get<double>());
  numbers.expect("wilson95[1]", share.high, row.at("wilson95").at(1).get<double>());
  return Ok();
}

Status check_paired(const Json& row, Numbers numbers) {
  RORQUAL_TRY_ASSIGN(const int64_t b, count(row, "b"));
  RORQUAL_TRY_ASSIGN(const int64_t c, count(row, "c"));
  RORQUAL_TRY_ASSIGN(const int64_t n, count(row, "n"));
  if (n == 0 || b + c > n) return Error(Code::corrupt_data, fmt::format("{} and {} of {} pairs", b, c, n));
  const kl::Share share = kl::bonett_price95(b, c, n);
  const Json& expected = row.at("bonett_price95");
  numbers.expect("bonett_price95[0]", share.estimate, expected.at(0).get<double>());
  numbers.expect("bonett_price95[1]", share.low, expected.at(1).get<double>());
  numbers.expect("bonett_price95[2]", share.high, expected.at(2).get<double>());
  return Ok();
}

Status check_file(const std::string& path, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxFile_bytes));
  const Json document = Json::parse(text, nullptr, false);
  const auto damaged = [&](const std::string& what) {
    return Error(Code::corrupt_data, fmt::format("{}: {}", path, what),
                 "tests/golden/eval/README.md has the fields");
  };
  if (!document.is_object()) return damaged("not a JSON object");
  const std::pair<const char*, Status (*)(const Json&, Numbers)> kinds[] = {
      {"mcnemar", check_mcnemar}, {"wilson", check_wilson}, {"paired_diff", check_paired}};
  for (const auto& [kind, check] : kinds) {
    const auto list = document.find(kind);
    if (list == document.end()) continue;
    int64_t index = 0;
    for (const auto& row : *list) {
      try {
        const auto status = check(row, Numbers(fmt::format("{}: {}[{}]", path, kind, index), report));
        if (!status.ok()) return damaged(fmt::format("{}[{}]: {}", kind, index, status.error().message()));
      } catch (const Json::exception& error) {  // the file is input: a field may be absent or of another type
        return damaged(fmt::format("{}[{}]: {}", kind, index, error.what()));
      }
      ++index;
    }
  }
  return Ok();
}

}  // namespace

Status check_stats(const std::vector<std::string>& files, CheckReport& report) {
  for (const auto& file : files) RORQUAL_TRY(check_file(file, report));
  return Ok();
}

}  // namespace rorqual::tools
