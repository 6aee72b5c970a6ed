// SPDX-License-Identifier: Apache-2.0
#include "prefix/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "prefix/segment_format.h"

namespace rorqual::prefix {
namespace {

namespace fs = std::filesystem;

// A folder that goes with the test.
class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "rorqual-disk-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }

  void TearDown() override { fs::remove_all(directory_); }

  DiskTierOptions options() const {
    return {.directory = directory_,
            .model_identity = "model",
            .max_bytes = 1 << 20,
            .segment_bytes = 1 << 16,
            .retry_ms = 0};
  }

  static std::unique_ptr<DiskTier> open(DiskTierOptions options) {
    auto tier = DiskTier::open(std::move(options));
    EXPECT_TRUE(tier.ok()) << (tier.ok() ? "" : tier.error().message());
    return tier.ok() ? *std::move(tier) : nullptr;
  }

  std::vector<fs::path> segments() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().extension() == ".rqp") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

  int64_t bytes_on_disk() const {
    int64_t sum = 0;
    for (const auto& file : segments()) sum += static_cast<int64_t>(fs::file_size(file));
    return sum;
  }

  std::string directory_;
};

// Page number n: everything of it follows from n.
DiskPage page_of(uint64_t n, bool has_window = false, size_t block = 300) {
  std::mt19937_64 random(n * 2 + 1);
  DiskPage page{.key = {random(), random() & ~uint64_t{1}},
                .parent = {n / 10, 1},
                .tokens = {},
                .block = {},
                .window = {}};
  page.tokens.resize(16);
  for (auto& token : page.tokens) token = static_cast<int32_t>(random() % 130000);
  page.block.resize(block);
  for (auto& byte : page.block) byte = static_cast<std::byte>(random());
  if (has_window) {
    page.window.resize(900);
    for (auto& byte : page.window) byte = static_cast<std::byte>(random());
  }
  return page;
}

bool is_equal(const DiskPage& a, const DiskPage& b) {
  return a.key == b.key && a.parent == b.parent && a.tokens == b.tokens && a.block == b.block &&
         a.window == b.window;
}

void expect_page(DiskTier& tier, const DiskPage& page) {
  const auto found = tier.read(page.key);
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_TRUE(is_equal(*found, page));
}

TEST_F(DiskTierTest, PagesAreThereAtOnceAndAfterARestart) {
  {
    const auto tier = open(options());
    for (uint64_t n = 0; n < 50; ++n) {
      EXPECT_FALSE(tier->find(page_of(n).key).is_found);
      EXPECT_TRUE(tier->write(page_of(n, n % 3 == 0)));
      EXPECT_TRUE(tier->find(page_of(n).key).is_found) << "queued or written";
      expect_page(*tier, page_of(n, n % 3 == 0));
    }
    tier->flush();
    EXPECT_EQ(tier->stats().pages, 50);
    EXPECT_EQ(tier->stats().written_pages, 50);
    EXPECT_EQ(tier->stats().bytes, bytes_on_disk());
  }
  const auto tier = open(options());
  EXPECT_EQ(tier->stats().pages, 50);
  for (uint64_t n = 0; n < 50; ++n) {
    EXPECT_EQ(tier->find(page_of(n).key).has_window, n % 3 == 0);
    expect_page(*tier, page_of(n, n % 3 == 0));
  }
  EXPECT_EQ(tier->read(page_of(99).key).error().code(), Code::not_found);
}

TEST_F(DiskTierTest, PrivateFilesOnly) {
  open(options())->write(page_of(1));
  for (const auto& file : segments()) EXPECT_EQ(fs::status(file).permissions(), fs::perms(0600));
}

TEST_F(DiskTierTest, ALaterWindowReplacesThePageWithoutOne) {
  for (const bool restarts : {false, true}) {
    const uint64_t n = restarts ? 1 : 2;
    auto tier = open(options());
    EXPECT_TRUE(tier->write(page_of(n)));
    tier->flush();
    EXPECT_TRUE(tier->write(page_of(n, true)));
    EXPECT_TRUE(tier->find(page_of(n).key).has_window);
    tier->flush();
    EXPECT_TRUE(tier->write(page_of(n)));  // does not lose the window again
    tier->flush();
    if (restarts) {
      tier.reset();
      tier = open(options());
    }
    expect_page(*tier, page_of(n, true));
  }
}

TEST_F(DiskTierTest, OneProcessAtATime) {
  auto tier = open(options());
  const auto second = DiskTier::open(options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::unavailable);
  EXPECT_NE(second.error().message().find(directory_), std::string::npos);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(DiskTier::open(options()).ok() ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another process was let in";
  tier.reset();
  EXPECT_TRUE(DiskTier::open(options()).ok());
}

TEST_F(DiskTierTest, AFolderThatCannotBeWrittenIsAnErrorWithAHint) {
  DiskTierOptions wrong = options();
  std::ofstream(directory_ + "/file") << "x";
  wrong.directory = directory_ + "/file/cache";
  for (const std::string& path : {wrong.directory, std::string("/proc/rorqual-cache")}) {
    wrong.directory = path;
    const auto tier = DiskTier::open(wrong);
    ASSERT_FALSE(tier.ok()) << path;
    EXPECT_EQ(tier.error().code(), Code::io);
    EXPECT_FALSE(tier.error().hint().empty());
  }
  if (::geteuid() == 0) return;  // root may write everywhere
  ASSERT_EQ(::chmod(directory_.c_str(), 0500), 0);
  EXPECT_EQ(DiskTier::open(options()).error().code(), Code::io);
  ASSERT_EQ(::chmod(directory_.c_str(), 0700), 0);
}

TEST_F(DiskTierTest, AnotherModelSeesNothingAndMayTakeTheSpace) {
  {
    const auto tier = open(options());
    for (uint64_t n = 0; n < 20; ++n) tier->write(page_of(n));
  }
  DiskTierOptions other = options();
  other.model_identity = "other";
  {
    const auto tier = open(other);
    EXPECT_EQ(tier->stats().pages, 0);
    EXPECT_GT(tier->stats().bytes, 0);
    EXPECT_FALSE(tier->find(page_of(1).key).is_found);
    tier->write(page_of(100));
  }
  EXPECT_EQ(open(options())->stats().pages, 20);
  other.max_bytes = 2000;
  EXPECT_EQ(open(other)->stats().pages, 1);
  EXPECT_EQ(open(options())->stats().pages, 0) << "the other model's file left first";
}

TEST_F(DiskTierTest, NeverMoreOnDiskThanAllowedAndTheOldestLeave) {
  DiskTierOptions small = options();
  small.max_bytes = 40000;
  small.segment_bytes = 8000;
  const auto tier = open(small);
  for (uint64_t n = 0; n < 400; ++n) {
    tier->write(page_of(n, n % 5 == 0));
    tier->flush();
    ASSERT_LE(bytes_on_disk(), small.max_bytes);
    ASSERT_EQ(tier->stats().bytes, bytes_on_disk());
    expect_page(*tier, page_of(n, n % 5 == 0));
  }
  EXPECT_GT(tier->stats().evicted_pages, 300);
  EXPECT_EQ(tier->stats().evicted_pages + tier->stats().pages, 400);
  EXPECT_EQ(tier->stats().dropped_pages, 0);
}

TEST_F(DiskTierTest, PagesInUseSurviveTheirFile) {
  DiskTierOptions small = options();
  small.max_bytes = 40000;
  small.segment_bytes = 8000;
  const auto tier = open(small);
  const std::vector<PageKey> hot{page_of(0).key, page_of(1).key};
  for (uint64_t n = 0; n < 400; ++n) {
    tier->write(page_of(n));
    tier->flush();
    if (n < 2) continue;
    ASSERT_EQ(tier->touch(hot), 2u) << n;
  }
  expect_page(*tier, page_of(0));
  expect_page(*tier, page_of(1));
}

TEST_F(DiskTierTest, APageLargerThanTheLimitIsDropped) {
  DiskTierOptions small = options();
  small.max_bytes = 2000;
  const auto tier = open(small);
  EXPECT_TRUE(tier->write(page_of(1)));
  tier->write(page_of(2, true, 5000));
  tier->flush();
  EXPECT_EQ(tier->stats().dropped_pages, 1);
  EXPECT_FALSE(tier->find(page_of(2).key).is_found);
  EXPECT_LE(bytes_on_disk(), 2000);
}

TEST_F(DiskTierTest, AFullQueueDropsPagesAndSaysSo) {
  DiskTierOptions slow = options();
  std::mutex gate;
  gate.lock();
  slow.max_queued_bytes = 3000;
  slow.write_at = [&](int fd, const void* bytes, size_t count, int64_t offset) {
    const std::lock_guard guard(gate);
    return ::pwrite(fd, bytes, count, offset);
  };
  const auto tier = open(slow);
  int64_t taken = 0;
  for (uint64_t n = 0; n < 20; ++n) taken += tier->write(page_of(n)) ? 1 : 0;
  EXPECT_GE(taken, 4);
  EXPECT_LE(taken, 6);
  gate.unlock();
  tier->flush();
  EXPECT_EQ(tier->stats().pages, taken);
  EXPECT_EQ(tier->stats().dropped_pages, 20 - taken);
}

// Writes fail after every number of bytes, also in the middle of a record or of a file's header.
TEST_F(DiskTierTest, AFullDiskLosesTheNewPagesAndNothingElse) {
  for (int64_t room = 0; room < 6000; room += 211) {
    DiskTierOptions full = options();
    full.directory = directory_ + "/" + std::to_string(room);
    full.segment_bytes = 1500;
    std::atomic<int64_t> left = room;
    full.write_at = [&](int fd, const void* bytes, size_t count, int64_t offset) -> ssize_t {
      const int64_t now = std::min<int64_t>(left, static_cast<int64_t>(count));
      if (now == 0) {
        errno = ENOSPC;
        return -1;
      }
      left -= now;
      return ::pwrite(fd, bytes, static_cast<size_t>(now), offset);
    };
    std::vector<std::string> changes;  // told before `flush` returns
    full.on_change = [&](const std::string& error) { changes.push_back(error); };
    std::map<uint64_t, bool> written;
    {
      const auto tier = open(full);
      for (uint64_t n = 0; n < 12; ++n) {
        tier->write(page_of(n));
        tier->flush();
        written[n] = tier->find(page_of(n).key).is_found;
      }
      EXPECT_TRUE(tier->stats().is_failing);
      ASSERT_EQ(changes.size(), 1u) << "said once, when it begins";
      EXPECT_NE(changes[0].find("No space left"), std::string::npos);
      EXPECT_NE(changes[0].find(full.directory), std::string::npos);
      EXPECT_EQ(tier->stats().pages + tier->stats().dropped_pages, 12);
      left = 1 << 20;  // space again
      tier->write(page_of(20));
      tier->flush();
      EXPECT_FALSE(tier->stats().is_failing);
      ASSERT_EQ(changes.size(), 2u);
      EXPECT_EQ(changes[1], "");
      expect_page(*tier, page_of(20));
    }
    const auto tier = open(full);
    for (const auto& [n, is_there] : written) {
      ASSERT_EQ(tier->find(page_of(n).key).is_found, is_there) << n << ", room " << room;
      if (is_there) expect_page(*tier, page_of(n));
    }
    expect_page(*tier, page_of(20));
  }
}

TEST_F(DiskTierTest, AfterAnErrorNothingIsTriedForAWhile) {
  DiskTierOptions broken = options();
  broken.retry_ms = 3600 * 1000;
  std::atomic<int> calls = 0;
  broken.write_at = [&](int, const void*, size_t, int64_t) -> ssize_t {
    ++calls;
    errno = EIO;
    return -1;
  };
  const auto tier = open(broken);
  for (uint64_t n = 0; n < 10; ++n) tier->write(page_of(n));
  tier->flush();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(tier->stats().dropped_pages, 10);
  EXPECT_TRUE(segments().empty());
}

TEST_F(DiskTierTest, DamagedPagesAreForgottenAndTheOthersStay) {
  {
    const auto tier = open(options());
    for (uint64_t n = 0; n < 10; ++n) tier->write(page_of(n));
  }
  const auto files = segments();
  ASSERT_EQ(files.size(), 1u);
  const int64_t record = record_bytes(page_of(0));
  std::mt19937_64 random(5);
  for (int64_t n = 0; n < 10; n += 3) {  // somewhere behind the header
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    const int64_t place = kSegmentHeaderBytes + n * record + kRecordHeaderBytes +
                          static_cast<int64_t>(random() % static_cast<uint64_t>(record - kRecordHeaderBytes));
    file.seekg(place);
    const char old = static_cast<char>(file.get());
    file.seekp(place);
    file.put(static_cast<char>(old ^ 0x10));
  }
  const auto tier = open(options());
  EXPECT_EQ(tier->stats().pages, 10) << "bodies are not read when the folder is opened";
  for (uint64_t n = 0; n < 10; ++n) {
    if (n % 3 != 0) {
      expect_page(*tier, page_of(n));
      continue;
    }
    EXPECT_EQ(tier->read(page_of(n).key).error().code(), Code::corrupt_data);
    EXPECT_FALSE(tier->find(page_of(n).key).is_found);
    EXPECT_EQ(tier->read(page_of(n).key).error().code(), Code::not_found);
    EXPECT_TRUE(tier->write(page_of(n)));
    tier->flush();
    expect_page(*tier, page_of(n));
  }
  EXPECT_EQ(tier->stats().damaged_pages, 4);
}

TEST_F(DiskTierTest, FilesCutAnywhereKeepWhatIsWhole) {
  {
    const auto tier = open(options());
    for (uint64_t n = 0; n < 8; ++n) tier->write(page_of(n, n % 2 == 1));
  }
  const fs::path file = segments().at(0);
  const fs::path copy = directory_ + "/copy";
  fs::copy_file(file, copy);
  const auto size = static_cast<int64_t>(fs::file_size(file));
  for (int64_t cut = 0; cut <= size; cut += 61) {
    for (const auto& old : segments()) fs::remove(old);
    fs::copy_file(copy, file);
    fs::resize_file(file, static_cast<uintmax_t>(cut));
    const auto tier = open(options());
    ASSERT_NE(tier, nullptr);
    int64_t end = kSegmentHeaderBytes, count = 0;
    for (uint64_t n = 0; n < 8; ++n) {
      end += record_bytes(page_of(n, n % 2 == 1));
      if (end > cut) break;
      ++count;
      expect_page(*tier, page_of(n, n % 2 == 1));
    }
    ASSERT_EQ(tier->stats().pages, count) << cut;
    tier->write(page_of(50));  // goes on where the whole records end
    tier->flush();
    expect_page(*tier, page_of(50));
    ASSERT_EQ(tier->stats().bytes, bytes_on_disk());
  }
}

TEST_F(DiskTierTest, RestartsContinueTheLastFile) {
  for (uint64_t n = 0; n < 30; ++n) open(options())->write(page_of(n));
  EXPECT_EQ(segments().size(), 1u);
  EXPECT_EQ(open(options())->stats().pages, 30);
}

TEST_F(DiskTierTest, FullFilesOpenByTheirIndexAndWithoutItTheSame) {
  DiskTierOptions small = options();
  small.segment_bytes = 6000;
  const auto write_all = [&] {
    const auto tier = open(small);
    for (uint64_t n = 0; n < 60; ++n) tier->write(page_of(n, n % 4 == 0));
    for (uint64_t n = 0; n < 60; n += 6) tier->write(page_of(n, true));
  };
  write_all();
  ASSERT_GT(segments().size(), 5u);
  for (const bool has_index : {true, false}) {
    auto full = segments();
    full.pop_back();  // the last one is still open and has none
    for (const auto& file : full) {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(-64, std::ios::end);  // the magic of the index's last part
      EXPECT_EQ(stream.get(), 'R');
      stream.seekp(-64, std::ios::end);
      if (!has_index) stream.put('?');
    }
    const auto tier = open(small);
    EXPECT_EQ(tier->stats().pages, 60);
    EXPECT_EQ(tier->stats().bytes, bytes_on_disk());
    for (uint64_t n = 0; n < 60; ++n) expect_page(*tier, page_of(n, n % 4 == 0 || n % 6 == 0));
  }
}

TEST_F(DiskTierTest, StrangeFilesAreLeftAlone) {
  std::ofstream(directory_ + "/notes.txt") << "mine";
  std::ofstream(directory_ + "/" + segment_name(3)) << std::string(5000, 'x');
  fs::create_directory(directory_ + "/" + segment_name(4));
  ASSERT_EQ(::mkfifo((directory_ + "/" + segment_name(5)).c_str(), 0600), 0);
  const auto tier = open(options());
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(tier->stats().pages, 0);
  for (uint64_t n = 0; n < 20; ++n) tier->write(page_of(n));
  tier->flush();
  EXPECT_EQ(tier->stats().dropped_pages, 0);
  for (uint64_t n = 0; n < 20; ++n) expect_page(*tier, page_of(n));
  EXPECT_TRUE(fs::exists(directory_ + "/notes.txt"));
  EXPECT_TRUE(fs::exists(directory_ + "/" + segment_name(3))) << "there is room";
}

TEST_F(DiskTierTest, ChildrenAreFoundByTheirParentNewestFirst) {
  auto tier = open(options());
  for (uint64_t n = 0; n < 20; ++n) tier->write(page_of(n));
  tier->flush();
  for (const bool is_restarted : {false, true}) {
    if (is_restarted) {
      tier.reset();
      tier = open(options());
    }
    const auto children = tier->children(page_of(10).parent, 3);
    ASSERT_EQ(children.size(), 3u);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(children[i].key, page_of(19 - i).key);
      EXPECT_EQ(children[i].tokens, page_of(19 - i).tokens);
    }
    EXPECT_TRUE(tier->children({77, 1}, 3).empty());
  }
}

TEST_F(DiskTierTest, TouchTellsTheFirstMissingPage) {
  const auto tier = open(options());
  std::vector<PageKey> keys;
  for (uint64_t n = 0; n < 6; ++n) {
    keys.push_back(page_of(n).key);
    if (n != 4) tier->write(page_of(n));
  }
  EXPECT_EQ(tier->touch(keys), 4u);
  EXPECT_EQ(tier->touch(std::span(keys).first(4)), 4u);
}

// Any history of writes, reads, restarts and evictions against a map of what was ever written.
TEST_F(DiskTierTest, RandomHistoriesServeOnlyWhatWasWritten) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  DiskTierOptions small = options();
  small.max_bytes = 60000;
  small.segment_bytes = 9000;
  auto tier = open(small);
  std::map<uint64_t, bool> windows;  // of pages ever written: with a window at last
  for (int step = 0; step < 3000; ++step) {
    const uint64_t n = random() % 150;
    switch (random() % 10) {
      case 0:
        if (random() % 20 == 0) {
          tier.reset();
          tier = open(small);
        }
        break;
      case 1:
        tier->flush();
        break;
      case 2:
        tier->touch(std::vector<PageKey>{page_of(n).key});
        break;
      case 3:
      case 4:
      case 5: {
        const bool has_window = random() % 3 == 0;
        if (tier->write(page_of(n, has_window))) windows[n] = windows[n] || has_window;
        break;
      }
      default: {
        const DiskTier::Entry entry = tier->find(page_of(n).key);
        const auto page = tier->read(page_of(n).key);
        if (!page.ok()) {
          ASSERT_EQ(page.error().code(), Code::not_found) << page.error().message();
          break;
        }
        ASSERT_TRUE(windows.contains(n));
        ASSERT_TRUE(is_equal(*page, page_of(n, !page->window.empty())));
        ASSERT_TRUE(page->window.empty() || windows[n]);
        ASSERT_TRUE(!entry.has_window || !page->window.empty());
      }
    }
  }
  tier->flush();
  EXPECT_EQ(tier->stats().damaged_pages, 0);
  EXPECT_LE(bytes_on_disk(), small.max_bytes);
}

TEST_F(DiskTierTest, ManyThreadsMayReadAndWriteAtOnce) {
  DiskTierOptions small = options();
  small.max_bytes = 60000;
  small.segment_bytes = 9000;
  const auto tier = open(small);
  std::atomic<int64_t> read = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 500; ++i) {
        const uint64_t n = random() % 200;
        if (random() % 2 == 0) tier->write(page_of(n, n % 2 == 0));
        const auto page = tier->read(page_of(n).key);
        if (!page.ok()) continue;
        EXPECT_TRUE(is_equal(*page, page_of(n, n % 2 == 0)));
        ++read;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(read, 500);
  EXPECT_EQ(tier->stats().damaged_pages, 0);
}

}  // namespace
}  // namespace rorqual::prefix
