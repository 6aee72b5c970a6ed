// SPDX-License-Identifier: Apache-2.0
#include "tools/load_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

extern "C" char** environ;

namespace rorqual::tools {
namespace {

constexpr size_t kReadBytes = 4096;
constexpr size_t kMaxLogBytes = 65536;

/// argv or environment for execve; points into the strings.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> child_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.rfind("RORQUAL_", 0) == 0 && text.rfind("RORQUAL_CPU_ISA=", 0) != 0) continue;
    kept.emplace_back(text);
  }
  kept.emplace_back("NO_COLOR=1");
  return kept;
}

/// The URL of the line "… ready  http://127.0.0.1:8000   API …", or empty.
std::string ready_url(const std::string& log) {
  const size_t ready = log.find("ready  http://");
  if (ready == std::string::npos) return {};
  const size_t begin = ready + std::strlen("ready  ");
  const size_t end = log.find(' ', begin);
  return end == std::string::npos ? std::string() : log.substr(begin, end - begin);
}

/// The error line of a server that ended, or the end of its log.
std::string last_words(const std::string& log) {
  size_t begin = log.rfind("error: ");
  if (begin == std::string::npos) {
    const size_t end = log.find_last_not_of('\n');
    if (end == std::string::npos) return "nothing";
    const size_t line = log.rfind('\n', end);
    begin = line == std::string::npos ? 0 : line + 1;
  }
  return log.substr(begin, log.find('\n', begin) - begin);
}

}  // namespace

struct LoadServer::Impl {
  pid_t pid = -1;
  int log_fd = -1;
  std::string url;
  std::thread drain;  // keeps the pipe of the log empty

  ~Impl() {
    if (pid > 0) {
      kill(pid, SIGTERM);
      waitpid(pid, nullptr, 0);
    }
    if (drain.joinable()) drain.join();
    if (log_fd >= 0) close(log_fd);
  }

  Status spawn(std::vector<std::string> arguments);
  Status wait_ready();
};

Status LoadServer::Impl::spawn(std::vector<std::string> arguments) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0)
    return Error(Code::io, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  auto environment = child_environment();
  const auto argv = pointers(arguments);
  const auto envp = pointers(environment);
  pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(fds[1], STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  close(fds[1]);
  log_fd = fds[0];
  if (pid < 0) return Error(Code::io, fmt::format("cannot start a process: {}", std::strerror(errno)));
  return Ok();
}

Status LoadServer::Impl::wait_ready() {
  std::string log;
  char block[kReadBytes];
  while (url.empty()) {
    const ssize_t count = read(log_fd, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      waitpid(pid, nullptr, 0);
      pid = -1;
      return Error(Code::unavailable, fmt::format("the server did not start: {}", last_words(log)));
    }
    log.append(block, static_cast<size_t>(count));
    url = ready_url(log);
    if (log.size() > kMaxLogBytes) log.erase(0, log.size() - kMaxLogBytes / 2);
  }
  drain = std::thread([fd = log_fd] {
    char rest[kReadBytes];
    while (true) {
      const ssize_t count = read(fd, rest, sizeof rest);
      if (count == 0 || (count < 0 && errno != EINTR)) return;
    }
  });
  return Ok();
}

LoadServer::LoadServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LoadServer::~LoadServer() = default;

const std::string& LoadServer::url() const {
  return impl_->url;
}

Result<std::unique_ptr<LoadServer>> LoadServer::start(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"rorqual", "serve"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  for (const char* const own : {"--host=127.0.0.1", "--port=0", "--log-format=text", "--no-access-log"}) {
    all.emplace_back(own);
  }
  auto impl = std::make_unique<Impl>();
  RORQUAL_TRY(impl->spawn(std::move(all)));
  RORQUAL_TRY(impl->wait_ready());
  return std::unique_ptr<LoadServer>(new LoadServer(std::move(impl)));
}

}  // namespace rorqual::tools
