// SPDX-License-Identifier: Apache-2.0
#include "kl/run_record.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace rorqual::kl {
namespace {

TEST(RunRecords, ReadBackWhatWasWritten) {
  const std::string dump = testing::TempDir() + "run_record_test.npz";
  RunRecord record;
  record.version = "0.1.0";
  record.commit = "abc";
  record.engine = "local";
  record.numerics = "exact";
  record.switches = "lm-head=fp8";
  record.machine = "a \"quoted\" CPU";
  record.threads = 2;
  record.streams = 8;
  record.max_model_len = 4097;
  record.started_at = "2026-11-30T10:00:00Z";
  record.seconds = 1.5;
  record.dump_sha256 = "00ff";
  ASSERT_TRUE(write_run_record(dump, record).ok());
  const auto read = read_run_record(dump);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->machine, record.machine);
  EXPECT_EQ(read->switches, record.switches);
  EXPECT_EQ(read->max_model_len, 4097);
  EXPECT_EQ(read->seconds, 1.5);
  EXPECT_FALSE(read->speculation);
  EXPECT_EQ(read->dump_sha256, "00ff");
  std::filesystem::remove(run_record_path(dump));
  EXPECT_EQ(read_run_record(dump).error().code(), Code::not_found);
}

TEST(RunRecords, RefuseAnotherSchemaMissingFieldsAndWhatIsNotJson) {
  const std::string dump = testing::TempDir() + "run_record_bad.npz";
  for (const char* text :
       {"", "[]", "{", R"({"schema":"rorqual.kl.run/2"})", R"({"schema":"rorqual.kl.run/1"})",
        R"({"schema":"rorqual.kl.run/1","version":7})"}) {
    ASSERT_TRUE(write_text_file(run_record_path(dump), text).ok());
    const auto read = read_run_record(dump);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code(), Code::corrupt_data) << text;
  }
  std::filesystem::remove(run_record_path(dump));
}

}  // namespace
}  // namespace rorqual::kl
