// SPDX-License-Identifier: Apache-2.0
// The golden operator vectors pass on every tier, and a vector that is changed in one place fails with the
// place named.
#include "tools/check_ops.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "kernels/operators.h"

namespace rorqual::tools {
namespace {

const std::string kGolden = std::string(RORQUAL_SOURCE_DIR) + "/tests/golden/ops/";

std::string printed(const CheckReport& report) {
  std::ostringstream text;
  report.print(text);
  return text.str();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class CheckOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("rorqual-check-ops-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Copy of a golden file with one bit of one byte of one tensor changed.
  std::string changed_copy(const std::string& topic, const std::string& tensor, int64_t byte, char mask,
                           const std::string& new_name) const {
    std::string bytes = read_file(kGolden + topic + ".safetensors");
    const auto file = format::open_safetensors(kGolden + topic + ".safetensors");
    EXPECT_TRUE(file.ok());
    const format::TensorInfo* info = (*file)->find(tensor);
    EXPECT_NE(info, nullptr) << tensor;
    char& target = bytes[static_cast<size_t>(info->file_offset + byte)];
    target = static_cast<char>(target ^ mask);
    const std::string path = (folder_ / new_name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::filesystem::path folder_;
};

class CheckOpsGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(CheckOpsGolden, PassesOnEveryTier) {
  CheckReport report;
  const Status status = check_ops({kGolden + GetParam() + ".safetensors"}, report);
  ASSERT_TRUE(status.ok()) << status.error().message();
  EXPECT_EQ(report.failed(), 0) << printed(report);
  EXPECT_GE(report.passed(), static_cast<int64_t>(kernels::available_operators().size()));
  EXPECT_EQ(report.passed() % static_cast<int64_t>(kernels::available_operators().size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Topics, CheckOpsGolden,
                         ::testing::Values("tables", "weights", "activations", "linear", "norm", "hyper",
                                           "rope", "compressor", "hashing", "mlp", "attention"),
                         [](const auto& topic) { return std::string(topic.param); });

TEST_F(CheckOpsTest, FindsOneWrongCodeUnderAnotherFileName) {
  // The name no longer tells the topic; the tensors do.
  const std::string path = changed_copy("activations", "fp4_e4m3.code", 100, 1, "unseen.safetensors");
  CheckReport report;
  ASSERT_TRUE(check_ops({path}, report).ok());
  EXPECT_EQ(report.failed(), static_cast<int64_t>(kernels::available_operators().size())) << printed(report);
  ASSERT_FALSE(report.failures().empty());
  EXPECT_NE(report.failures()[0].find("fp4_e4m3.code: index 100"), std::string::npos) << report.failures()[0];
}

TEST_F(CheckOpsTest, FindsAWrongSignInEverySwigluVariant) {
  for (const char* tensor :
       {"limit0", "limit4", "limit10", "limit0.weighted", "limit4.weighted", "limit10.weighted"}) {
    CheckReport report;
    ASSERT_TRUE(
        check_ops({changed_copy("mlp", tensor, 4 * 7 + 3, '\x80', "swiglu.safetensors")}, report).ok());
    EXPECT_EQ(report.failed(), static_cast<int64_t>(kernels::available_operators().size())) << tensor;
  }
}

TEST_F(CheckOpsTest, AllowsASumToRoundTheOtherWayButNoFurther) {
  // Byte 2 of an F32 begins with the last bit of its BF16 half.
  CheckReport one_step;
  ASSERT_TRUE(
      check_ops({changed_copy("linear", "fp8.official", 4 * 7 + 2, 0x01, "one.safetensors")}, one_step).ok());
  EXPECT_EQ(one_step.failed(), 0) << printed(one_step);
  CheckReport two_steps;
  ASSERT_TRUE(
      check_ops({changed_copy("linear", "fp8.official", 4 * 7 + 2, 0x02, "two.safetensors")}, two_steps)
          .ok());
  EXPECT_EQ(two_steps.failed(), static_cast<int64_t>(kernels::available_operators().size()));
  EXPECT_NE(printed(two_steps).find("fp8.official: 1 of 120 values outside the bound; index 7"),
            std::string::npos)
      << printed(two_steps);
}

TEST_F(CheckOpsTest, FindsAWrongChoiceOfTheRouter) {
  const std::string path = changed_copy("mlp", "router.idx", 0, 0x04, "mlp.safetensors");
  CheckReport report;
  ASSERT_TRUE(check_ops({path}, report).ok());
  EXPECT_GT(report.failed(), 0);
  EXPECT_NE(printed(report).find("router.idx"), std::string::npos) << printed(report);
}

TEST_F(CheckOpsTest, NamesAFileThatIsNoVectorFile) {
  CheckReport report;
  const Status missing = check_ops({(folder_ / "none.safetensors").string()}, report);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message().find("none.safetensors"), std::string::npos);
}

TEST(CheckReport, EndsWithTheCounters) {
  CheckReport report;
  report.pass(3);
  report.expect(false, [] { return std::string("x: got 1, expected 2"); });
  EXPECT_EQ(printed(report), "FAILED x: got 1, expected 2\n3 passed, 1 failed\n");
  report.skip("made for another model");
  EXPECT_NE(printed(report).find("3 passed, 1 failed, 1 skipped\n"), std::string::npos);
}

}  // namespace
}  // namespace rorqual::tools
