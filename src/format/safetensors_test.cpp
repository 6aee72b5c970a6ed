// SPDX-License-Identifier: Apache-2.0
// Hostile headers: every one must give an error that says what is wrong, without reading or allocating beyond
// the file.
#include "format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>

#include "base/file.h"
#include "format/safetensors_writer.h"

namespace rorqual::format {
namespace {

using ::testing::HasSubstr;

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

/// A whole file: length, header, data.
std::string file_of(const std::string& header, size_t data_bytes) {
  return little_endian(header.size()) + header + std::string(data_bytes, 'd');
}

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("rorqual-safetensors-" + std::to_string(::getpid()) + "-" + info->name());
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& bytes) {
    const std::string path = (folder_ / "x.safetensors").string();
    EXPECT_TRUE(write_text_file(path, bytes).ok());
    return path;
  }

  /// The error of opening a file with these bytes.
  std::string error_of(const std::string& bytes, EmptyTensors empty = EmptyTensors::refused) {
    const auto file = open_safetensors(write(bytes), empty);
    if (file.ok()) return "(opened)";
    EXPECT_EQ(file.error().code(), Code::corrupt_data) << file.error().message();
    EXPECT_THAT(file.error().message(), HasSubstr("x.safetensors"));
    EXPECT_EQ(file.error().message().find('\n'), std::string::npos);
    EXPECT_LT(file.error().message().size(), 1000U);
    return file.error().message();
  }

  std::filesystem::path folder_;
};

TEST_F(Safetensors, refuses_impossible_header_lengths) {
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 6,
        ~uint64_t{0} - 7, ~uint64_t{0} - 8, uint64_t{100'000'001}}) {
    EXPECT_THAT(error_of(little_endian(length) + "{}      "), HasSubstr("header length is")) << length;
  }
  EXPECT_THAT(error_of(little_endian(17) + std::string(16, ' ')),
              HasSubstr("only 16 bytes follow (1 missing)"));
  EXPECT_THAT(error_of(little_endian(100'000'000) + "{}"), HasSubstr("header length is 100000000"));
  EXPECT_THAT(error_of(little_endian(2)), HasSubstr("header length is 2"));
  EXPECT_THAT(error_of(""), HasSubstr("the file is empty"));
  for (size_t size = 1; size < 8; ++size) EXPECT_THAT(error_of(std::string(size, 'x')), HasSubstr("too few"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
              HasSubstr("Git LFS pointer"));
}

struct BadHeader {
  const char* header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsHeaders : public Safetensors, public ::testing::WithParamInterface<BadHeader> {};

TEST_P(SafetensorsHeaders, are_refused_with_the_reason) {
  EXPECT_THAT(error_of(file_of(GetParam().header, GetParam().data_bytes)), HasSubstr(GetParam().message))
      << GetParam().header;
}

#define ENTRY(dtype, shape, offsets) \
  "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define MAX64 "18446744073709551615"

const BadHeader kBadHeaders[] = {
    // Offsets.
    {ENTRY("F32", "[1]", "[]"), 4, "tensor 't': data_offsets has 0 values"},
    {ENTRY("F32", "[1]", "[5]"), 8, "tensor 't': data_offsets has 1 values"},
    {ENTRY("F32", "[1]", "[0,4,8]"), 8, "tensor 't': data_offsets has more than 2 values"},
    {ENTRY("F32", "[1]", "[9,3]"), 12, "tensor 't': data_offsets run backwards: [9, 3]"},
    {ENTRY("F32", "[1]", "[-8,8]"), 8, "tensor 't': data_offsets has -8"},
    {ENTRY("F32", "[1]", "[0," MAX64 "]"), 8, "tensor 't': data_offsets has " MAX64},
    {ENTRY("F32", "[1]", "[" MAX64 ",3]"), 8, "tensor 't': data_offsets has " MAX64},
    {ENTRY("F32", "[1]", "[0,9223372036854775807]"), 8, "tensor 't': data ends at byte 9223372036854775807"},
    {ENTRY("F32", "[1]", "[0,4.0]"), 4, "tensor 't': data_offsets has 4.0"},
    {ENTRY("F32", "[1]", "[0,\"4\"]"), 4, "tensor 't': data_offsets has \"4\""},
    {ENTRY("F32", "[1]", "[0,null]"), 4, "tensor 't': data_offsets has null"},
    {ENTRY("F32", "[1]", "4"), 4, "field 'data_offsets' is not a list"},
    {ENTRY("F32", "[1]", "[0,4]"), 3, "data ends at byte 4, the file has 3 bytes of data (1 missing)"},
    {ENTRY("F32", "[1024]", "[0,4096]"), 0, "(4096 missing)"},
    // Shape against bytes.
    {ENTRY("F32", "[32,8]", "[0,65536]"), 65536, "F32 [32, 8] needs 1024 bytes, data_offsets give 65536"},
    {ENTRY("BF16", "[3]", "[0,4]"), 4, "BF16 [3] needs 6 bytes, data_offsets give 4"},
    {ENTRY("U8", "[]", "[0,2]"), 2, "U8 [] needs 1 bytes, data_offsets give 2"},
    // Shapes.
    {ENTRY("F32", "[4294967296,4294967296]", "[0,4]"), 4, "needs over 2^63 bytes"},
    {ENTRY("F32", "[9223372036854775807]", "[0,4]"), 4, "needs over 2^63 bytes"},
    {ENTRY("U8", "[4294967296,4294967296,2]", "[0,0]"), 0, "needs over 2^63 bytes"},
    {ENTRY("U8", "[-1]", "[0,1]"), 1, "shape has -1"},
    {ENTRY("U8", "[0]", "[0,0]"), 0, "shape [0] has a zero dimension"},
    {ENTRY("U8", "[1.0]", "[0,1]"), 1, "shape has 1.0"},
    {ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "shape has more than 8 values"},
    {ENTRY("U8", "\"1\"", "[0,1]"), 1, "field 'shape' is not a list"},
    // Types.
    {ENTRY("F7", "[1]", "[0,1]"), 1, "unknown dtype 'F7'"},
    {ENTRY("f32", "[1]", "[0,4]"), 4, "unknown dtype 'f32'"},
    {ENTRY("F7", "[1]", "[0,99999]"), 1, "data ends at byte 99999"},
    {ENTRY("F7", "[1]", "[5,2]"), 6, "data_offsets run backwards"},
    {"{\"t\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "field 'dtype' is not a string"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "field 'dtype' is missing"},
    {"{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "field 'shape' is missing"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "field 'data_offsets' is missing"},
    {"{\"t\":5}", 0, "tensor 't': entry is not an object"},
    {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "'dtype' is given twice"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
     "'shape' is given twice"},
    // Layout.
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[2,4]}}",
     4, "tensor 'a': the name is given twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[2,6]}}",
     6, "tensor 'b': data overlaps that of tensor 'a' by 2 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}",
     4, "overlaps that of tensor"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[5,7]}}",
     7, "tensor 'b': 3 bytes before its data belong to no tensor"},
    {ENTRY("U8", "[2]", "[1,3]"), 3, "tensor 't': 1 bytes before its data"},
    {ENTRY("U8", "[2]", "[0,2]"), 9, "the last 7 bytes of the file belong to no tensor"},
    {"{}", 3, "the last 3 bytes of the file belong to no tensor"},
    // JSON.
    {"{t:1}", 0, "not valid JSON"},
    {"[1]     ", 0, "does not start with '{'"},
    {"   {}", 0, "does not start with '{'"},
    {"{\"t\":{}", 0, "not valid JSON"},
    {"{} x", 0, "not valid JSON"},
    {"{\"t\":NaN}", 0, "not valid JSON"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor name '' is empty"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "control characters"},
    {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor name 'a?b'"},
    {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON"},
    {"{\"__metadata__\":5}", 0, "'__metadata__' is not an object"},
    {"{\"__metadata__\":{\"a\":5}}", 0, "'__metadata__' value of 'a' is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "'__metadata__' is given twice"},
};

INSTANTIATE_TEST_SUITE_P(Safetensors, SafetensorsHeaders, ::testing::ValuesIn(kBadHeaders));

TEST_F(Safetensors, survives_deep_nesting_and_giant_names) {
  std::string deep = "{\"t\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "{\"t\":";
  EXPECT_THAT(error_of(file_of(deep, 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(
      error_of(file_of("{\"t\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", 0)),
      HasSubstr("not valid JSON"));
  const std::string name(1'000'000, 'n');
  EXPECT_THAT(
      error_of(file_of("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1)),
      HasSubstr("(1000000 bytes)"));
}

TEST_F(Safetensors, names_the_missing_bytes_of_a_truncated_file) {
  const std::string whole = file_of(ENTRY("U8", "[4000]", "[0,4000]"), 4000);
  EXPECT_EQ(error_of(whole), "(opened)");
  for (const size_t cut : {size_t{1}, size_t{1000}, size_t{2000}}) {
    EXPECT_THAT(error_of(whole.substr(0, whole.size() - cut)),
                HasSubstr("tensor 't': data ends at byte 4000, the file has " + std::to_string(4000 - cut) +
                          " bytes of data (" + std::to_string(cut) + " missing)"));
  }
}

TEST_F(Safetensors, never_crashes_on_damaged_headers) {
  const std::string whole = file_of(ENTRY("F32", "[2,3]", "[0,24]"), 24);
  const auto seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    const size_t flips = 1 + random() % 4;
    for (size_t i = 0; i < flips; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto span = std::as_bytes(std::span(bytes));
    const auto file_bytes = static_cast<int64_t>(bytes.size());
    const auto length = safetensors_header_bytes(span.first(std::min<size_t>(8, span.size())), file_bytes);
    if (!length.ok()) {
      ++refused;
      continue;
    }
    const auto header = parse_safetensors_header(
        std::string_view(bytes).substr(8, static_cast<size_t>(*length)), file_bytes, EmptyTensors::refused);
    refused += header.ok() ? 0 : 1;
    if (!header.ok()) continue;
    for (const TensorInfo& tensor : header->tensors) {
      EXPECT_GE(tensor.file_offset, 8) << "seed " << seed;
      EXPECT_LE(tensor.file_offset + tensor.size_bytes, file_bytes) << "seed " << seed;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(Safetensors, allows_empty_tensors_only_where_asked) {
  const std::string bytes = file_of(ENTRY("I32", "[1,0]", "[0,0]"), 0);
  EXPECT_THAT(error_of(bytes), HasSubstr("zero dimension"));
  const auto file = open_safetensors(write(bytes), EmptyTensors::allowed);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->tensors().at(0).size_bytes, 0);
}

TEST_F(Safetensors, gives_back_what_the_writer_wrote) {
  const std::string path = (folder_ / "w.safetensors").string();
  std::vector<TensorDeclaration> tensors = {{"z.\"quoted\"\\", tensor::DType::f32, {2, 3}},
                                            {"a.weight", tensor::DType::bf16, {5}},
                                            {"empty", tensor::DType::u8, {0, 4}},
                                            {"m\xc3\xa9", tensor::DType::i64, {}}};
  std::vector<std::byte> data(24 + 10 + 8);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  auto writer = SafetensorsWriter::create(path, tensors, {{"format", "pt"}, {"note", "a\nb"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message();
  const auto bytes = std::span<const std::byte>(data);
  ASSERT_TRUE(writer->append(bytes.first(7)).ok());
  ASSERT_TRUE(writer->append(bytes.subspan(7, 17)).ok());
  ASSERT_TRUE(writer->append_tensor("a.weight", bytes.subspan(24, 10)).ok());
  ASSERT_TRUE(writer->append_tensor("empty", {}).ok());
  ASSERT_TRUE(writer->append_tensor("m\xc3\xa9", bytes.subspan(34)).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), writer->file_bytes());

  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->tensors().size(), 4U);
  EXPECT_EQ((*file)->metadata("note"), "a\nb");
  EXPECT_EQ((*file)->metadata("absent"), "");
  size_t offset = 0;
  for (const auto& declared : tensors) {
    const TensorInfo* info = (*file)->find(declared.name);
    ASSERT_NE(info, nullptr) << declared.name;
    EXPECT_EQ(info->shape, declared.shape);
    EXPECT_EQ(info->dtype, declared.dtype);
    const auto read = read_tensor(**file, declared.name);
    ASSERT_TRUE(read.ok());
    EXPECT_TRUE(std::equal(read->begin(), read->end(), data.begin() + static_cast<std::ptrdiff_t>(offset)));
    offset += read->size();
  }
  EXPECT_EQ((*file)->find("absent"), nullptr);
  EXPECT_EQ(read_tensor(**file, "absent").error().code(), Code::not_found);
}

TEST_F(Safetensors, leaves_nothing_behind_when_a_writer_stops_early) {
  const std::string path = (folder_ / "w.safetensors").string();
  {
    auto writer = SafetensorsWriter::create(path, {{"t", tensor::DType::u8, {100}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(std::vector<std::byte>(50)).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(Safetensors, writer_refuses_double_names_and_impossible_shapes) {
  const std::string path = (folder_ / "w.safetensors").string();
  const TensorDeclaration tensor = {"t", tensor::DType::u8, {1}};
  EXPECT_EQ(SafetensorsWriter::create(path, {tensor, tensor}).error().code(), Code::invalid_argument);
  EXPECT_EQ(SafetensorsWriter::create(path, {{"", tensor::DType::u8, {1}}}).error().code(),
            Code::invalid_argument);
  EXPECT_EQ(SafetensorsWriter::create(path, {{"t", tensor::DType::u8, {-1}}}).error().code(),
            Code::invalid_argument);
  EXPECT_EQ(SafetensorsWriter::create(path, {{"t", tensor::DType::f32, {int64_t{1} << 62}}}).error().code(),
            Code::invalid_argument);
}

TEST_F(Safetensors, opens_only_regular_files) {
  EXPECT_EQ(open_safetensors((folder_ / "absent").string()).error().code(), Code::not_found);
  EXPECT_EQ(open_safetensors(folder_.string()).error().code(), Code::invalid_argument);
  EXPECT_EQ(open_safetensors("/dev/zero").error().code(), Code::invalid_argument);
}

TEST_F(Safetensors, reports_a_file_that_shrinks_while_open) {
  const std::string path = write(file_of(ENTRY("U8", "[4000]", "[0,4000]"), 4000));
  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 1000);
  const auto bytes = read_tensor(**file, "t");
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code(), Code::corrupt_data);
  EXPECT_THAT(bytes.error().message(), HasSubstr("ends at byte 1000"));
}

}  // namespace
}  // namespace rorqual::format
