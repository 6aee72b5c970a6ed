// SPDX-License-Identifier: Apache-2.0
// Model folders, good and hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "format/safetensors.h"
#include "format/safetensors_writer.h"
#include "format/tensor_source.h"

namespace rorqual::format {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ =
        fs::temp_directory_path() / ("rorqual-checkpoint-" + std::to_string(::getpid()) + "-" + info->name());
    folder_ = root_ / "model";
    fs::create_directories(folder_);
    for (int shard = 1; shard <= 5; ++shard) {
      contents_.push_back(
          {shard_file_name(shard, 5), {{"w" + std::to_string(shard), tensor::DType::u8, {1000}}}});
      write_shard(contents_.back());
    }
    ASSERT_TRUE(write_shard_index(folder_.string(), contents_).ok());
    ASSERT_TRUE(write_text_file((folder_ / "config.json").string(), "{}").ok());
  }

  void TearDown() override { fs::remove_all(root_); }

  void write_shard(const ShardContents& shard) {
    auto writer = SafetensorsWriter::create((folder_ / shard.file_name).string(), shard.tensors);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    std::vector<std::byte> bytes(1000, static_cast<std::byte>(shard.tensors[0].name.back()));
    for (const auto& tensor : shard.tensors) ASSERT_TRUE(writer->append_tensor(tensor.name, bytes).ok());
    ASSERT_TRUE(writer->finish().ok());
  }

  fs::path shard(int number) const { return folder_ / shard_file_name(number, 5); }

  void write_index(const std::string& text) {
    ASSERT_TRUE(write_text_file((folder_ / std::string(kIndexFileName)).string(), text).ok());
  }

  /// Error of opening the folder; its message is one line and names the folder.
  Error error() const {
    auto source = open_checkpoint(folder_.string());
    if (source.ok()) return Error(Code::internal, "(opened)");
    EXPECT_THAT(source.error().message(), HasSubstr(folder_.string()));
    EXPECT_EQ(source.error().message().find('\n'), std::string::npos);
    return source.error();
  }

  std::string message() const { return error().message(); }

  fs::path root_, folder_;
  std::vector<ShardContents> contents_;
};

TEST_F(CheckpointFolder, reads_any_part_of_any_tensor) {
  const auto source = open_checkpoint(folder_.string());
  ASSERT_TRUE(source.ok()) << source.error().message();
  EXPECT_EQ((*source)->tensors().size(), 5U);
  EXPECT_EQ((*source)->name(), folder_.string());
  const TensorInfo* info = (*source)->find("w3");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->file, shard_file_name(3, 5));
  std::byte last{};
  ASSERT_TRUE((*source)->read(*info, 999, std::span(&last, 1)).ok());
  EXPECT_EQ(last, std::byte{'3'});
  EXPECT_TRUE((*source)->read(*info, 1000, {}).ok());
  EXPECT_EQ(*(*source)->read_text("config.json"), "{}");
}

TEST_F(CheckpointFolder, tells_a_missing_side_file_by_name) {
  const auto source = open_checkpoint(folder_.string());
  ASSERT_TRUE(source.ok());
  const auto text = (*source)->read_text("tokenizer.json");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code(), Code::not_found);
  EXPECT_THAT(text.error().message(), HasSubstr("has no tokenizer.json"));
  EXPECT_EQ((*source)->read_text("../model/config.json").error().code(), Code::not_found);
  EXPECT_EQ((*source)->read_text("/etc/passwd").error().code(), Code::not_found);
}

TEST_F(CheckpointFolder, lists_all_bad_shards_at_once) {
  const auto begin = std::chrono::steady_clock::now();
  fs::remove(shard(1));
  fs::resize_file(shard(2), 0);
  ASSERT_TRUE(write_text_file(shard(3).string(),
                              "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n")
                  .ok());
  fs::resize_file(shard(4), fs::file_size(shard(4)) - 1);
  fs::remove(shard(5));
  const Error all = error();
  EXPECT_EQ(all.code(), Code::corrupt_data);
  EXPECT_THAT(all.message(), HasSubstr("5 of 5 shards cannot be used"));
  EXPECT_THAT(all.message(), HasSubstr("model-00001-of-00005.safetensors: missing"));
  EXPECT_THAT(all.message(), HasSubstr("model-00002-of-00005.safetensors: the file is empty"));
  EXPECT_THAT(all.message(), HasSubstr("model-00003-of-00005.safetensors: it is a Git LFS pointer"));
  EXPECT_THAT(
      all.message(),
      HasSubstr("model-00004-of-00005.safetensors: tensor 'w4': data ends at byte 1000, the file has 999 "
                "bytes of data (1 missing)"));
  EXPECT_THAT(all.message(), HasSubstr("model-00005-of-00005.safetensors: missing"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(CheckpointFolder, shards_that_are_only_missing_are_not_found) {
  fs::remove(shard(2));
  fs::remove(shard(4));
  EXPECT_EQ(error().code(), Code::not_found);
  EXPECT_THAT(message(), HasSubstr("2 of 5 shards cannot be used"));
  fs::resize_file(shard(3), 0);
  EXPECT_EQ(error().code(), Code::corrupt_data);
}

TEST_F(CheckpointFolder, names_the_missing_bytes_of_a_truncated_shard) {
  const auto size = fs::file_size(shard(2));
  for (const uintmax_t cut : {uintmax_t{1}, uintmax_t{1000}, size / 2}) {
    fs::resize_file(shard(2), size - cut);
    EXPECT_THAT(message(), HasSubstr("1 of 5 shards cannot be used: model-00002-of-00005.safetensors: "))
        << cut;
    if (cut <= 1000) {
      EXPECT_THAT(message(), HasSubstr("(" + std::to_string(cut) + " missing)"));
    }
  }
}

TEST_F(CheckpointFolder, refuses_an_index_that_leads_elsewhere) {
  for (const char* file :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", ".", "", "a\\\\b.safetensors",
        "x.bin", "model.pt", "a\\u0000.safetensors", "a\\n.safetensors"}) {
    write_index(R"({"weight_map": {"w1": ")" + std::string(file) + R"("}})");
    EXPECT_THAT(message(), HasSubstr("tensor 'w1' is said to be in '")) << file;
  }
}

TEST_F(CheckpointFolder, refuses_links_out_of_the_folder_but_follows_those_inside) {
  fs::rename(shard(1), root_ / "outside.safetensors");
  fs::create_symlink("../outside.safetensors", shard(1));
  EXPECT_THAT(message(),
              HasSubstr("model-00001-of-00005.safetensors: it is a link that leads out of the folder"));
  fs::remove(shard(1));
  fs::rename(root_ / "outside.safetensors", folder_ / "real");
  fs::create_symlink("real", shard(1));
  EXPECT_EQ(message(), "(opened)");
  fs::remove(shard(1));
  fs::create_symlink("nowhere", shard(1));
  EXPECT_THAT(message(), HasSubstr("model-00001-of-00005.safetensors: cannot open"));
}

TEST_F(CheckpointFolder, follows_the_links_of_a_hugging_face_cache) {
  const fs::path snapshot = root_ / "models--x" / "snapshots" / "abc";
  fs::create_directories(snapshot);
  fs::create_directories(root_ / "models--x" / "blobs");
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const fs::path name = entry.path().filename();
    fs::rename(entry.path(), root_ / "models--x" / "blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  const auto source = open_checkpoint(snapshot.string());
  ASSERT_TRUE(source.ok()) << source.error().message();
  EXPECT_TRUE((*source)->read_text("config.json").ok());
}

TEST_F(CheckpointFolder, never_blocks_on_a_fifo_or_opens_a_device) {
  fs::remove(shard(1));
  ASSERT_EQ(::mkfifo(shard(1).c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("it is a FIFO, expected a regular file"));
  fs::remove(shard(1));
  fs::create_symlink("/dev/zero", shard(1));
  EXPECT_THAT(message(), HasSubstr("it is a device"));
  fs::remove(shard(1));
  fs::create_directory(shard(1));
  EXPECT_THAT(message(), HasSubstr("it is a folder"));
  const fs::path index = folder_ / std::string(kIndexFileName);
  fs::remove(index);
  ASSERT_EQ(::mkfifo(index.c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("it is a FIFO"));
}

TEST_F(CheckpointFolder, refuses_an_index_that_does_not_match_the_shards) {
  const std::string f1 = shard_file_name(1, 5);
  const std::string f2 = shard_file_name(2, 5);
  write_index(R"({"weight_map": {"w1": ")" + f1 + R"(", "ghost": ")" + f2 + R"("}})");
  EXPECT_THAT(message(), HasSubstr("tensor 'w2' of " + f2 + " is not in the index"));
  EXPECT_THAT(message(), HasSubstr("tensor 'ghost' is not in " + f2));
  write_index(R"({"weight_map": {"w1": ")" + f2 + R"(", "w2": ")" + f1 + R"("}})");
  EXPECT_THAT(message(), HasSubstr("tensor 'w1' is in " + f1 + ", the index says " + f2));
  write_index(R"({"metadata": {"total_size": 999}, "weight_map": {"w1": ")" + f1 + R"("}})");
  EXPECT_THAT(message(), HasSubstr("total_size is 999, the shards hold 1000 bytes"));
  write_index(R"({"weight_map": {"w1": ")" + f1 + R"(", "w1": ")" + f1 + R"("}})");
  EXPECT_THAT(message(), HasSubstr("tensor 'w1' is given twice"));
}

TEST_F(CheckpointFolder, refuses_a_tensor_that_is_in_two_shards) {
  write_shard({shard_file_name(2, 5), {{"w1", tensor::DType::u8, {1000}}}});
  write_index(R"({"weight_map": {"w1": ")" + shard_file_name(1, 5) + R"(", "w2": ")" + shard_file_name(2, 5) +
              R"("}})");
  EXPECT_THAT(
      message(),
      HasSubstr(
          "tensor 'w1' is in model-00001-of-00005.safetensors and in model-00002-of-00005.safetensors"));
}

TEST_F(CheckpointFolder, refuses_a_broken_index) {
  for (const char* text :
       {"", "x", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": 5})", R"({"weight_map": {"a": 5}})",
        R"({"weight_map": {"": "a.safetensors"}})", R"({"weight_map": {"a": "a.safetensors"}} x)",
        R"({"weight_map": {"a": "a.safetensors"}, "weight_map": {"a": "a.safetensors"}})",
        R"({"metadata": {"total_size": -1}, "weight_map": {"a": "a.safetensors"}})",
        R"({"metadata": {"total_size": "x"}, "weight_map": {"a": "a.safetensors"}})"}) {
    write_index(text);
    const Error got = error();
    EXPECT_EQ(got.code(), Code::corrupt_data) << text;
    EXPECT_THAT(got.message(), HasSubstr("model.safetensors.index.json: ")) << text;
    EXPECT_THAT(got.hint(), HasSubstr("fetch the index again")) << text;
  }
  write_index(std::string(1'000'000, '{'));
  EXPECT_THAT(message(), HasSubstr("not a JSON object"));
  std::string many = R"({"weight_map": {)";
  for (int i = 0; i < 5000; ++i) {
    many += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  }
  write_index(many + "}}");
  EXPECT_THAT(message(), HasSubstr("5000 shards, expected at most 4096"));
}

TEST_F(CheckpointFolder, opens_a_single_file_without_an_index) {
  for (int i = 2; i <= 5; ++i) fs::remove(shard(i));
  fs::remove(folder_ / std::string(kIndexFileName));
  const Error no_index = error();
  EXPECT_EQ(no_index.code(), Code::not_found);
  EXPECT_THAT(no_index.hint(), HasSubstr("index is missing beside the shards"));
  fs::rename(shard(1), folder_ / std::string(kSingleFileName));
  EXPECT_EQ(message(), "(opened)");
  fs::resize_file(folder_ / std::string(kSingleFileName), 900);
  EXPECT_THAT(message(), HasSubstr("model.safetensors: tensor 'w1': data ends"));
}

TEST_F(CheckpointFolder, ignores_pickles_and_other_files) {
  for (const char* name : {"pytorch_model.bin", "evil.pt", "evil.pkl", "spare.safetensors"}) {
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);  // opening one would fail the test
  }
  EXPECT_EQ(message(), "(opened)");
}

TEST_F(CheckpointFolder, reports_a_shard_that_shrinks_while_open) {
  const auto source = open_checkpoint(folder_.string());
  ASSERT_TRUE(source.ok());
  fs::resize_file(shard(4), 500);
  const auto bytes = read_tensor(**source, "w4");
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code(), Code::corrupt_data);
  EXPECT_THAT(bytes.error().message(), HasSubstr("tensor 'w4': "));
  EXPECT_THAT(bytes.error().message(), HasSubstr("ends at byte 500"));
  EXPECT_TRUE(read_tensor(**source, "w3").ok());  // the others still work
}

TEST_F(CheckpointFolder, keeps_reading_the_old_file_when_it_is_replaced) {
  const auto source = open_checkpoint(folder_.string());
  ASSERT_TRUE(source.ok());
  write_shard({shard_file_name(1, 5), {{"x9", tensor::DType::u8, {1000}}}});  // renamed over the open one
  const auto bytes = read_tensor(**source, "w1");
  ASSERT_TRUE(bytes.ok()) << bytes.error().message();
  EXPECT_EQ(bytes->front(), std::byte{'1'});
}

TEST(Checkpoint, tells_a_wrong_path_in_one_line) {
  const auto missing = open_checkpoint("/nowhere/model");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::not_found);
  EXPECT_EQ(missing.error().message(), "cannot open model '/nowhere/model': no such folder");
  EXPECT_THAT(missing.error().hint(), HasSubstr("config.json"));
  const auto file = open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/models/mini/config.json");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), Code::invalid_argument);
  EXPECT_EQ(open_checkpoint("").error().code(), Code::not_found);
}

TEST(Checkpoint, opens_the_models_of_the_repository_with_their_declared_sizes) {
  const std::string root = RORQUAL_SOURCE_DIR;

  const struct {
    const char* path;
    size_t tensors;
  } models[] = {{"/tests/models/tiny-a", 934},
                {"/tests/models/tiny-b", 912},
                {"/tests/models/tiny-c", 346},
                {"/models/mini", 1194}};

  for (const auto& [path, tensors] : models) {
    const auto source = open_checkpoint(root + path);
    ASSERT_TRUE(source.ok()) << source.error().message();
    EXPECT_EQ((*source)->tensors().size(), tensors) << path;
  }
}

TEST(Checkpoint, reads_the_same_from_memory_as_from_disk) {
  const std::string root = std::string(RORQUAL_SOURCE_DIR) + "/tests/models/tiny-c";
  std::vector<std::string> texts;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    auto text = read_text_file(entry.path().string(), 1 << 28);
    ASSERT_TRUE(text.ok());
    texts.push_back(*std::move(text));
    names.push_back(entry.path().filename().string());
  }
  std::vector<MemoryFile> files;
  for (size_t i = 0; i < texts.size(); ++i) files.push_back({names[i], std::as_bytes(std::span(texts[i]))});
  const auto memory = open_checkpoint_in_memory("built-in", files);
  const auto disk = open_checkpoint(root);
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  ASSERT_TRUE(disk.ok());
  EXPECT_EQ((*memory)->name(), "built-in");
  ASSERT_EQ((*memory)->tensors().size(), (*disk)->tensors().size());
  for (const TensorInfo& tensor : (*disk)->tensors()) {
    EXPECT_EQ(*read_tensor(**memory, tensor.name), *read_tensor(**disk, tensor.name)) << tensor.name;
  }
  EXPECT_EQ(*(*memory)->read_text("config.json"), *(*disk)->read_text("config.json"));
  EXPECT_EQ((*memory)->read_text("none").error().code(), Code::not_found);
  EXPECT_EQ(open_checkpoint_in_memory("empty", {}).error().code(), Code::not_found);
}

}  // namespace
}  // namespace rorqual::format
