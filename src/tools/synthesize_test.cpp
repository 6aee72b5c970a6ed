// SPDX-License-Identifier: Apache-2.0
#include "tools/synthesize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "format/tensor_source.h"
#include "model/config.h"
#include "model/manifest.h"
#include "model/synthetic.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kKeys =
    "layers=0,1,2,3,20,24&drafts=1&experts=6&hidden=64&heads=8&vocab=1792&engram-rows=50&seed=11";

class Synthesize : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("rorqual-synthesize-" + std::to_string(getpid()))).string();
    fs::remove_all(folder_);
  }

  void TearDown() override { fs::remove_all(folder_); }

  /// A model with every role and tensor kind and the tokenizer of a miniature, in small shards.
  SynthesizeOptions small_model() const {
    SynthesizeOptions options;
    auto spec = model::parse_synthetic(std::string("synthetic:v41?") + kKeys);
    if (!spec.ok()) ADD_FAILURE() << spec.error().message();
    options.spec = *spec;
    options.spec.tokenizer = RORQUAL_SOURCE_DIR "/tests/models/tiny-a";
    options.output = folder_;
    options.num_threads = 2;
    options.shard_bytes = 3'000'000;
    return options;
  }

  std::string folder_;
};

std::vector<std::byte> read_all(const format::TensorSource& source, const format::TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<size_t>(info.size_bytes));
  const Status status = source.read(info, 0, bytes);
  EXPECT_TRUE(status.ok()) << status.error().message();
  return bytes;
}

TEST_F(Synthesize, BytesOnDiskAreThoseInMemory) {
  const SynthesizeOptions options = small_model();
  const Status status = run_synthesize(options, nullptr);
  ASSERT_TRUE(status.ok()) << status.error().message();
  const auto disk = format::open_checkpoint(folder_);
  ASSERT_TRUE(disk.ok()) << disk.error().message();
  const auto config = model::parse_config(*(*disk)->read_text("config.json"));
  ASSERT_TRUE(config.ok()) << config.error().message();
  const Status complete = model::check_manifest(**disk, model::manifest(*config));
  EXPECT_TRUE(complete.ok()) << complete.error().message();

  const auto memory = model::open_synthetic(std::string("synthetic:v41?") + kKeys + "&compressed-vocab=" +
                                            std::to_string(config->engram_compressed_vocab_size));
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  ASSERT_EQ((*disk)->tensors().size(), (*memory)->tensors().size());
  for (const format::TensorInfo& info : (*disk)->tensors()) {
    const auto* twin = (*memory)->find(info.name);
    ASSERT_NE(twin, nullptr) << info.name;
    ASSERT_EQ(read_all(**disk, info), read_all(**memory, *twin)) << info.name;
  }
  EXPECT_EQ(*(*disk)->read_text("config.json"), *(*memory)->read_text("config.json"));
}

TEST_F(Synthesize, ExpertsStayWholeAndEngramTablesComeLast) {
  ASSERT_TRUE(run_synthesize(small_model(), nullptr).ok());
  const auto disk = format::open_checkpoint(folder_);
  ASSERT_TRUE(disk.ok()) << disk.error().message();
  std::map<std::string, std::set<std::string>> files_of_expert;
  std::set<std::string> files, engram_files;
  std::map<std::string, int> tensors_in_file;
  for (const format::TensorInfo& info : (*disk)->tensors()) {
    files.insert(info.file);
    ++tensors_in_file[info.file];
    const size_t expert = info.name.find(".experts.");
    if (expert != std::string::npos) {
      files_of_expert[info.name.substr(0, info.name.find('.', expert + 9))].insert(info.file);
    }
    if (info.name.find(".engram.") != std::string::npos) engram_files.insert(info.file);
  }
  EXPECT_GE(files.size(), 3u);
  for (const auto& [expert, where] : files_of_expert) EXPECT_EQ(where.size(), 1u) << expert;
  ASSERT_EQ(engram_files.size(), 1u) << "one Engram layer, one shard";
  EXPECT_EQ(*engram_files.begin(), *files.rbegin());
  EXPECT_EQ(tensors_in_file[*engram_files.begin()], 6);
}

TEST_F(Synthesize, TheTokenizerIsCopiedAndSetsTheEngramMap) {
  ASSERT_TRUE(run_synthesize(small_model(), nullptr).ok());
  const std::string tiny = RORQUAL_SOURCE_DIR "/tests/models/tiny-a";
  for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
    EXPECT_EQ(*read_text_file(folder_ + name, 1 << 24), *read_text_file(tiny + name, 1 << 24)) << name;
  }
  const auto own = model::parse_config(*read_text_file(folder_ + "/config.json", 1 << 20));
  const auto theirs = model::parse_config(*read_text_file(tiny + "/config.json", 1 << 20));
  ASSERT_TRUE(own.ok() && theirs.ok());
  EXPECT_EQ(own->engram_compressed_vocab_size, theirs->engram_compressed_vocab_size);
}

TEST_F(Synthesize, ATokenizerOfAnotherSizeIsRefused) {
  SynthesizeOptions options = small_model();
  options.spec.vocab = 2000;
  const Status status = run_synthesize(options, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::invalid_argument);
  EXPECT_THAT(status.error().message(), HasSubstr("1,792"));
  EXPECT_THAT(status.error().message(), HasSubstr("2,000"));
  EXPECT_THAT(status.error().hint(), HasSubstr("--vocab 1792"));
  EXPECT_FALSE(fs::exists(folder_)) << "nothing may be written";
}

TEST_F(Synthesize, AMissingTokenizerIsNotFound) {
  SynthesizeOptions options = small_model();
  options.spec.tokenizer = folder_ + "/nowhere";
  const Status status = run_synthesize(options, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::not_found);
}

TEST_F(Synthesize, AFolderThatIsNotEmptyIsOnlyReplacedByForce) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/notes.txt") << "mine";
  std::ofstream(folder_ + "/model-00001-of-00099.safetensors") << "old";
  std::ofstream(folder_ + "/model-00002-of-00099.safetensors.tmp-7-0") << "of a run that was killed";
  std::ofstream(folder_ + "/config.json") << "{}";
  SynthesizeOptions options = small_model();
  const Status refused = run_synthesize(options, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().hint(), HasSubstr("--force"));
  EXPECT_EQ(*read_text_file(folder_ + "/config.json", 100), "{}");

  options.force = true;
  const Status replaced = run_synthesize(options, nullptr);
  ASSERT_TRUE(replaced.ok()) << replaced.error().message();
  EXPECT_TRUE(fs::exists(folder_ + "/notes.txt"));
  EXPECT_FALSE(fs::exists(folder_ + "/model-00001-of-00099.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ + "/model-00002-of-00099.safetensors.tmp-7-0"));
  EXPECT_TRUE(format::open_checkpoint(folder_).ok());
}

TEST_F(Synthesize, AModelThatDoesNotFitTheDiskIsRefusedBeforeWriting) {
  if (fs::space(fs::temp_directory_path()).available > uintmax_t{4'000'000'000'000}) {
    GTEST_SKIP() << "this disk has room for the largest synthetic model of one layer";
  }
  SynthesizeOptions options;
  options.output = folder_;
  options.spec.layers = {0};
  options.spec.hidden = 65536;
  options.spec.vocab = 16'777'216;  // embedding and head: 4.4 TB
  const Status status = run_synthesize(options, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::io);
  EXPECT_THAT(status.error().message(), HasSubstr("the disk of"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Synthesize, DryRunWritesNothing) {
  SynthesizeOptions options = small_model();
  options.dry_run = true;
  ASSERT_TRUE(run_synthesize(options, nullptr).ok());
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Synthesize, AnotherFamilyIsUnknown) {
  SynthesizeOptions options = small_model();
  options.family = "v4";
  const Status status = run_synthesize(options, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("expected v41"));
}

}  // namespace
}  // namespace rorqual::tools
