// SPDX-License-Identifier: Apache-2.0
// Against what numpy itself drew (tests/golden/kl/numpy_generator.json, origin in the README there).
#include "kl/bootstrap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"

namespace rorqual::kl {
namespace {

using Json = nlohmann::json;

const Json& vectors() {
  static const Json kVectors = [] {
    auto text =
        read_text_file(std::string(RORQUAL_SOURCE_DIR) + "/tests/golden/kl/numpy_generator.json", 1 << 22);
    return text.ok() ? Json::parse(*text) : Json();
  }();
  return kVectors;
}

uint64_t number(const Json& text) {
  return std::strtoull(text.get<std::string>().c_str(), nullptr, 10);
}

double real(const Json& hex) {
  return std::strtod(hex.get<std::string>().c_str(), nullptr);
}

std::vector<double> reals(const Json& list) {
  std::vector<double> out;
  for (const auto& item : list) out.push_back(real(item));
  return out;
}

TEST(Pcg64Generator, DrawsTheSameWordsAsNumpy) {
  ASSERT_GE(vectors().at("generator").size(), 5u);
  for (const auto& row : vectors().at("generator")) {
    Pcg64 random(number(row.at("seed")));
    for (const auto& expected : row.at("raw")) EXPECT_EQ(random.next(), number(expected)) << row.at("seed");
  }
}

TEST(Pcg64Generator, DrawsTheSameIntegersAsNumpy) {
  ASSERT_GE(vectors().at("integers").size(), 9u);
  for (const auto& row : vectors().at("integers")) {
    SCOPED_TRACE(row.at("bound"));
    Pcg64 random(number(row.at("seed")));
    const auto bound = static_cast<int64_t>(number(row.at("bound")));
    for (const auto& expected : row.at("values"))
      EXPECT_EQ(static_cast<uint64_t>(random.integer(bound)), number(expected));
  }
}

TEST(Bootstrap, GivesNumpysMeansAndIntervalsBitForBit) {
  ASSERT_GE(vectors().at("bootstrap").size(), 9u);
  for (const auto& row : vectors().at("bootstrap")) {
    const auto values = reals(row.at("values"));
    SCOPED_TRACE(values.size());
    EXPECT_EQ(mean(values), real(row.at("mean")));
    const auto means = bootstrap_means(values);
    ASSERT_EQ(means.size(), 20000u);
    const auto first = reals(row.at("first_means"));
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(means[i], first[i]);
    EXPECT_EQ(mean(means), real(row.at("mean_of_means")));
    EXPECT_EQ(percentile(means, 2.5), real(row.at("low")));
    EXPECT_EQ(percentile(means, 97.5), real(row.at("high")));
  }
}

TEST(Percentiles, InterpolateAsNumpyDoes) {
  for (const auto& row : vectors().at("percentile")) {
    const auto values = reals(row.at("values"));
    for (const auto& at : row.at("at")) {
      EXPECT_EQ(percentile(values, at.at(0).get<double>()), real(at.at(1)))
          << values.size() << " values, " << at.at(0);
    }
  }
}

}  // namespace
}  // namespace rorqual::kl
