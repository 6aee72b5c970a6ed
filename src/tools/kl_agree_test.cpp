// SPDX-License-Identifier: Apache-2.0
// Agreement over the demonstration model: a configuration agrees with itself whatever runs beside it, and a
// lossy switch is measured.
#include "tools/kl_agree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "kl/agree.h"
#include "kl/panel.h"
#include "kl/panel_prompts.h"

namespace rorqual::tools {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCases = 12;
constexpr int64_t kMaxTokens = 20;

KlEngineOptions engine_with(const model::Switches& switches, int64_t streams) {
  KlEngineOptions options;
  options.open.threads = 1;
  options.open.switches = switches;
  options.streams = streams;
  return options;
}

/// The panel of the embedded model in reference numerics, made once.
const kl::Panel& panel() {
  static const kl::Panel kPanel = [] {
    auto engine = open_kl_engine(engine_with({}, 4), 512);
    EXPECT_TRUE(engine.ok()) << engine.error().message();
    auto made = kl::make_panel(engine->engine(), *engine->local.opened.tokenizer,
                               kl::panel_prompts().first(kCases), {kMaxTokens, 4});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }();
  return kPanel;
}

kl::Agreement agreement_with(const model::Switches& switches, int64_t streams) {
  auto engine = open_kl_engine(engine_with(switches, streams), 512);
  EXPECT_TRUE(engine.ok()) << engine.error().message();
  auto agreement = kl::agree(engine->engine(), panel(), {streams, true});
  EXPECT_TRUE(agreement.ok()) << agreement.error().message();
  return *std::move(agreement);
}

class PanelFile {
 public:
  PanelFile()
      : path_(std::filesystem::temp_directory_path() / ("agree-" + std::to_string(getpid()) + ".json")) {
    EXPECT_TRUE(kl::write_panel(path_.string(), panel()).ok());
  }

  ~PanelFile() { std::filesystem::remove(path_); }

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(KlAgree, AConfigurationAgreesWithItselfEntirelyAloneAndBesideOthers) {
  for (const int64_t streams : {1, 8}) {
    const auto agreement = agreement_with({}, streams);
    EXPECT_EQ(agreement.identical, static_cast<int64_t>(kCases)) << streams;
    EXPECT_EQ(agreement.matches, agreement.tokens) << streams;
    EXPECT_GT(agreement.tokens, 50);
    EXPECT_EQ(agreement.mean_logprob_delta, 0.0) << "forced tokens have the bits of A's own run";
  }
}

TEST(KlAgree, TheFp8HeadAgreesWidelyAndItsLogProbabilitiesAreNotThoseOfA) {
  model::Switches fp8;
  fp8.lm_head = model::HeadFormat::fp8;
  const auto agreement = agreement_with(fp8, 4);
  EXPECT_GE(agreement.forced_share(), 0.95);
  EXPECT_NE(agreement.mean_logprob_delta, 0.0);
  EXPECT_LT(std::abs(agreement.mean_logprob_delta), 0.02);
  const auto again = agreement_with(fp8, 1);
  EXPECT_EQ(again.matches, agreement.matches);
  EXPECT_EQ(again.identical, agreement.identical);
  EXPECT_EQ(again.mean_logprob_delta, agreement.mean_logprob_delta);
}

TEST(KlAgree, PrintsOneJsonObjectAndMeetsOrMissesWhatIsRequired) {
  const PanelFile file;
  KlAgreeOptions options;
  options.panel = file.path();
  options.engine = engine_with({}, 4);
  options.as_json = true;
  options.require = "identical";
  testing::internal::CaptureStdout();
  EXPECT_TRUE(run_kl_agree(options).ok());
  const auto report = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(report["schema"], "rorqual.kl.agree/1");
  EXPECT_EQ(report["identical"]["share"], 1.0);
  EXPECT_EQ(report["forced"]["disagreements"], 0);
  EXPECT_EQ(report["panel"]["sha256"], panel().sha256);

  options.engine.open.numerics = "exact";
  testing::internal::CaptureStdout();
  const auto missed = run_kl_agree(options);
  const auto other = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  ASSERT_FALSE(missed.ok());
  EXPECT_EQ(missed.error().code(), Code::gate);
  EXPECT_EQ(other["engine"]["numerics"], "exact");
  EXPECT_LT(other["identical"]["cases"], kCases);
  EXPECT_EQ(other["forced"]["items"].size(), other["forced"]["disagreements"]);
}

TEST(KlAgree, RefusesARequirementThatCannotBeReadOrMeasured) {
  KlAgreeOptions options;
  options.panel = "unused.json";
  for (const std::string text : {"all", "101%", "-1", "%", "99,5%", "nan"}) {
    options.require = text;
    const auto status = run_kl_agree(options);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code(), Code::invalid_argument) << text;
    EXPECT_THAT(status.error().message(), HasSubstr("--require"));
  }
  options.require = "99%";
  options.engine.remote.url = "http://127.0.0.1:1";
  EXPECT_THAT(run_kl_agree(options).error().message(), HasSubstr("cannot be forced through --url"));
  options.engine.remote.url.clear();
  EXPECT_EQ(run_kl_agree(options).error().code(), Code::not_found);
}

}  // namespace
}  // namespace rorqual::tools
