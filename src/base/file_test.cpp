// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

namespace rorqual {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("rorqual-file-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }

  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST_F(FileTest, reads_exactly_what_was_written) {
  ASSERT_TRUE(write_text_file(path("a"), "hello world").ok());
  const auto file = File::open(path("a"));
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->size_bytes(), 11);
  std::string part(5, ' ');
  ASSERT_TRUE(file->read(6, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "world");
  const auto beyond = file->read(7, std::as_writable_bytes(std::span(part)));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::corrupt_data);
  EXPECT_THAT(beyond.error().message(), HasSubstr("ends at byte 11, 1 more bytes expected"));
  EXPECT_EQ(*read_text_file(path("a"), 11), "hello world");
  EXPECT_EQ(read_text_file(path("a"), 10).error().code(), Code::corrupt_data);
}

TEST_F(FileTest, refuses_everything_but_regular_files_without_blocking) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  const int socket_fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path("socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  for (const std::string& name : {path("fifo"), path("socket"), folder_.string(), std::string("/dev/zero")}) {
    const auto file = File::open(name);
    ASSERT_FALSE(file.ok()) << name;
    EXPECT_EQ(file.error().code(), Code::invalid_argument) << name;
    EXPECT_THAT(file.error().message(), HasSubstr("expected a regular file"));
  }
  ::close(socket_fd);
  EXPECT_EQ(File::open(path("absent")).error().code(), Code::not_found);
  EXPECT_EQ(File::open(std::string("a\0b", 3)).error().code(), Code::not_found);
  EXPECT_EQ(File::open(path("fifo/x")).error().code(), Code::not_found);
}

TEST_F(FileTest, tells_where_a_link_leads) {
  ASSERT_TRUE(write_text_file(path("target"), "x").ok());
  fs::create_symlink("target", path("link"));
  const auto file = File::open(path("link"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->real_path(), fs::canonical(path("target")).string());
}

TEST_F(FileTest, gives_a_written_file_its_name_only_when_complete) {
  ASSERT_TRUE(write_text_file(path("a"), "old").ok());
  {
    auto file = AtomicFile::create(path("a"));
    ASSERT_TRUE(file.ok());
    const std::string text = "new";
    ASSERT_TRUE(file->append(std::as_bytes(std::span(text))).ok());
    EXPECT_EQ(*read_text_file(path("a"), 10), "old");
    EXPECT_EQ(file->size_bytes(), 3);
    ASSERT_TRUE(file->commit().ok());
    EXPECT_EQ(*read_text_file(path("a"), 10), "new");
  }
  { ASSERT_TRUE(AtomicFile::create(path("b")).ok()); }  // given up
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, reports_an_unwritable_place_and_a_write_that_stops_midway) {
  const auto file = AtomicFile::create(path("no/such/folder"));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), Code::io);
  EXPECT_THAT(file.error().message(), HasSubstr("No such file or directory"));

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto status = write_text_file(path("big"), std::string(5000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::io);
  EXPECT_THAT(status.error().message(), HasSubstr("at byte 1000: File too large"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace rorqual
