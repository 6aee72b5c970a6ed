// SPDX-License-Identifier: Apache-2.0
// Kills a process that writes the prefix cache's disk tier at random moments, again and again in one folder,
// and checks after each kill: the folder opens, every page that can be read is byte for byte what was written
// under its name, nothing else is there, and what had been reported as flushed is not lost.
//   disk_kill --rounds N --seed S    exit 0 = all rounds passed; prints one line, or what went wrong
//   disk_kill --write FOLDER S       the process that is killed
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "prefix/disk_tier.h"

namespace {

using namespace rorqual;
using prefix::DiskPage;
using prefix::DiskTier;

constexpr uint64_t kPages = 600;
constexpr int64_t kMaxBytes = int64_t{6} << 20;

// Everything of page n follows from n; two of three have a window, at the second writing at the latest.
DiskPage page_of(uint64_t n, bool has_window) {
  std::mt19937_64 random(n * 2 + 1);
  DiskPage page{.key = {random(), random() & ~uint64_t{1}},
                .parent = {n / 16, 1},
                .tokens = {},
                .block = {},
                .window = {}};
  page.tokens.resize(64);
  for (auto& token : page.tokens) token = static_cast<int32_t>(random() % 129280);
  page.block.resize(2000 + random() % 4000);
  for (auto& byte : page.block) byte = static_cast<std::byte>(random());
  if (has_window) {
    page.window.resize(20000 + random() % 20000);
    for (auto& byte : page.window) byte = static_cast<std::byte>(random());
  }
  return page;
}

bool is_equal(const DiskPage& a, const DiskPage& b) {
  return a.key == b.key && a.parent == b.parent && a.tokens == b.tokens && a.block == b.block &&
         a.window == b.window;
}

std::unique_ptr<DiskTier> open_tier(const std::string& directory) {
  auto tier = DiskTier::open({.directory = directory,
                              .model_identity = "kill test",
                              .max_bytes = kMaxBytes,
                              .segment_bytes = 400000,
                              .max_queued_bytes = 4 << 20});
  if (tier.ok()) return *std::move(tier);
  std::fprintf(stderr, "cannot open: %s\n", tier.error().message().c_str());
  return nullptr;
}

// Writes and reads for ever. After a flush the number of the page written last, if it is new, goes to
// standard output.
int write_until_killed(const std::string& directory, uint64_t seed) {
  const std::unique_ptr<DiskTier> tier = open_tier(directory);
  if (!tier) return 1;
  std::mt19937_64 random(seed);
  for (uint64_t count = 1;; ++count) {
    const uint64_t n = random() % kPages;
    const DiskPage page = page_of(n, random() % 3 != 0);
    if (random() % 4 == 0) static_cast<void>(tier->read(page.key));
    const bool is_new = !tier->find(page.key).is_found;  // an old one may be in the file that goes next
    const bool is_taken = tier->write(page);
    if (count % 8 != 0 || !is_taken || !is_new) continue;
    tier->flush();
    const std::string line = std::to_string(n) + "\n";
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return 1;
  }
}

struct Victim {
  pid_t pid = -1;
  int reports = -1;
};

Victim start(const std::string& program, const std::string& directory, uint64_t seed) {
  int pipe_ends[2] = {-1, -1};
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return {};
  const std::string number = std::to_string(seed);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::execl(program.c_str(), program.c_str(), "--write", directory.c_str(), number.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  return {.pid = pid, .reports = pipe_ends[0]};
}

// Lets it run until its first report and some random time more, then kills it. Returns the number of the last
// page reported as flushed, -1 = it ended by itself.
int64_t kill_at_random(const Victim& victim, std::mt19937_64& random) {
  using clock = std::chrono::steady_clock;
  std::string text;
  const bool is_early = random() % 8 == 0;  // perhaps before it has opened the folder
  auto end = clock::now() + std::chrono::microseconds(random() % 60000);
  bool has_reported = is_early;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - clock::now()).count();
    if (has_reported && left <= 0) break;
    pollfd source{.fd = victim.reports, .events = POLLIN, .revents = 0};
    if (::poll(&source, 1, has_reported ? static_cast<int>(left) : 60000) <= 0) {
      if (has_reported) continue;
      break;
    }
    char buffer[4096];
    const ssize_t count = ::read(victim.reports, buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
    if (!has_reported) end = clock::now() + std::chrono::microseconds(random() % 60000);
    has_reported = true;
  }
  ::kill(victim.pid, SIGKILL);
  int status = 0;
  ::waitpid(victim.pid, &status, 0);
  char buffer[4096];
  for (ssize_t count; (count = ::read(victim.reports, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  ::close(victim.reports);
  if (!WIFSIGNALED(status)) return -1;
  const size_t last_end = text.rfind('\n');
  if (last_end == std::string::npos) return is_early ? static_cast<int64_t>(kPages) : -1;
  const size_t line = text.rfind('\n', last_end - 1);
  return std::stoll(text.substr(line == std::string::npos ? 0 : line + 1));
}

struct Totals {
  int64_t pages = 0, damaged = 0;
};

// What is wrong after a kill; empty = nothing.
std::string check(const std::string& directory, int64_t flushed, Totals& totals) {
  const std::unique_ptr<DiskTier> tier = open_tier(directory);
  if (!tier) return "the folder does not open";
  int64_t found = 0;
  for (uint64_t n = 0; n < kPages; ++n) {
    const prefix::PageKey key = page_of(n, false).key;
    if (!tier->find(key).is_found) continue;
    ++found;
    const auto page = tier->read(key);
    if (!page.ok()) {
      ++totals.damaged;
      continue;
    }
    if (!is_equal(*page, page_of(n, !page->window.empty()))) return "page " + std::to_string(n) + " is wrong";
  }
  const prefix::DiskTierStats stats = tier->stats();
  if (stats.pages + stats.damaged_pages != found) return "there are pages that were never written";
  if (stats.bytes > kMaxBytes) return "more bytes than allowed";
  totals.pages += found;
  const bool is_known = flushed < static_cast<int64_t>(kPages);
  if (is_known && !tier->find(page_of(static_cast<uint64_t>(flushed), false).key).is_found) {
    return "page " + std::to_string(flushed) + " was flushed and is lost";
  }
  return "";
}

int drive(const std::string& program, int64_t rounds, uint64_t seed) {
  std::string directory = (std::filesystem::temp_directory_path() / "rorqual-kill-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  std::mt19937_64 random(seed);
  Totals totals;
  std::string problem;
  int64_t round = 0;
  for (; round < rounds && problem.empty(); ++round) {
    const Victim victim = start(program, directory, random());
    const int64_t flushed = kill_at_random(victim, random);
    problem = flushed < 0 ? "the writer ended by itself" : check(directory, flushed, totals);
  }
  if (problem.empty() && totals.damaged > 0) problem = "pages were damaged by a kill";
  if (problem.empty() && totals.pages == 0) problem = "nothing was written";
  std::printf("%lld kills, seed %llu: %lld pages read back, %lld damaged%s%s\n",
              static_cast<long long>(round), static_cast<unsigned long long>(seed),
              static_cast<long long>(totals.pages), static_cast<long long>(totals.damaged),
              problem.empty() ? "" : "; FAILED: ", problem.c_str());
  if (problem.empty()) std::filesystem::remove_all(directory);
  return problem.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "--write") {
    return write_until_killed(arguments[1], std::strtoull(arguments[2].c_str(), nullptr, 10));
  }
  if (arguments.size() != 4 || arguments[0] != "--rounds" || arguments[2] != "--seed") {
    std::fprintf(stderr, "usage: disk_kill --rounds N --seed S\n");
    return 2;
  }
  return drive("/proc/self/exe", std::strtoll(arguments[1].c_str(), nullptr, 10),
               std::strtoull(arguments[3].c_str(), nullptr, 10));
}
