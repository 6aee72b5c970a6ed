// SPDX-License-Identifier: Apache-2.0
// A golden run passes as it is, and fails, named, once any value or choice of it is changed or not a number.
#include "tools/check_forward.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "format/safetensors.h"

namespace rorqual::tools {
namespace {

const std::string kSource = RORQUAL_SOURCE_DIR;
const std::string kGolden = kSource + "/tests/golden/forward/tiny-a/exact_L5.safetensors";

class CheckForwardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("rorqual-check-forward-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    std::ifstream file(kGolden, std::ios::binary);
    golden_ = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Copy of the golden run whose tensor has other bytes at `at` (from its end if negative).
  void write_changed(const std::string& tensor, int64_t at, const std::string& bytes) const {
    const auto file = format::open_safetensors(kGolden);
    ASSERT_TRUE(file.ok());
    const format::TensorInfo* info = (*file)->find(tensor);
    ASSERT_NE(info, nullptr) << tensor;
    std::string copy = golden_;
    const int64_t from = info->file_offset + (at < 0 ? info->size_bytes + at : at);
    ASSERT_NE(copy.substr(static_cast<size_t>(from), bytes.size()), bytes) << tensor;
    std::copy(bytes.begin(), bytes.end(), copy.begin() + from);
    std::ofstream(folder_ / (tensor + ".safetensors"), std::ios::binary) << copy;
  }

  CheckReport run(const std::string& fixtures) const {
    CheckForwardOptions options;
    options.open.model = kSource + "/tests/models/tiny-a";
    options.open.threads = 1;
    options.fixtures = {fixtures};
    CheckReport report;
    const Status status = check_forward(options, report);
    EXPECT_TRUE(status.ok()) << status.error().message();
    return report;
  }

  /// Each changed copy has a failure of its own that names it.
  void expect_all_found() const {
    const CheckReport report = run(folder_.string());
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string path = entry.path().string();
      EXPECT_TRUE(std::any_of(report.failures().begin(), report.failures().end(),
                              [&](const std::string& text) { return text.find(path) == 0; }))
          << path << " passed";
    }
  }

  std::filesystem::path folder_;
  std::string golden_;
};

TEST_F(CheckForwardTest, PassesUnchanged) {
  const CheckReport report = run(kGolden);
  EXPECT_EQ(report.failed(), 0);
  EXPECT_GT(report.passed(), 100);
}

TEST_F(CheckForwardTest, FindsOtherChoices) {
  for (const char* tensor :
       {"greedy", "draft_tokens", "hash_ids", "layers.0.router_idx", "layers.2.topk", "layers.4.topk"}) {
    write_changed(tensor, tensor == std::string("layers.0.router_idx") ? -1 : -4, "\x09");
  }
  expect_all_found();
}

TEST_F(CheckForwardTest, FindsOtherValues) {
  const std::string hundred("\x00\x00\xc8\x42", 4);
  for (const char* tensor : {"logits", "final_hidden", "layers.2.comp_kv", "layers.4.index_k",
                             "layers.7.window_kv", "layers.3.router_w", "draft_confidence"}) {
    write_changed(tensor, 0, hundred);
  }
  expect_all_found();
}

TEST_F(CheckForwardTest, FindsNanAmongGoodValues) {
  const std::string nan("\x00\x00\xc0\x7f", 4);
  for (const char* tensor :
       {"logits", "final_hidden", "layers.0.attn_out", "layers.2.comp_kv", "layers.4.index_k",
        "layers.7.window_kv", "layers.3.router_w", "taps", "draft_confidence", "draft_logits_first"}) {
    write_changed(tensor, 0, nan);
  }
  expect_all_found();
}

TEST_F(CheckForwardTest, RefusesRunsWhosePositionsLieOutside) {
  const std::string outside("\x05\x00\x00\x00", 4);  // the run has five tokens
  for (const char* tensor : {"pos", "logit_rows", "layers.2.comp_rows"}) {
    write_changed(tensor, 0, outside);
    CheckForwardOptions options;
    options.open.model = kSource + "/tests/models/tiny-a";
    options.fixtures = {(folder_ / (std::string(tensor) + ".safetensors")).string()};
    CheckReport report;
    const Status status = check_forward(options, report);
    ASSERT_FALSE(status.ok()) << tensor;
    EXPECT_EQ(status.error().code(), Code::corrupt_data) << tensor;
    EXPECT_NE(status.error().message().find(tensor), std::string::npos) << status.error().message();
  }
}

TEST_F(CheckForwardTest, RefusesRunsOfAnotherModelsShape) {
  CheckForwardOptions options;
  options.open.model = kSource + "/tests/models/tiny-b";
  options.fixtures = {kGolden};
  CheckReport report;
  const Status status = check_forward(options, report);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::corrupt_data) << status.error().message();
}

}  // namespace
}  // namespace rorqual::tools
