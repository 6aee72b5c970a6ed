// SPDX-License-Identifier: Apache-2.0
#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/units.h"

namespace rorqual::tools {
namespace {

constexpr int kWidth = 24;
constexpr std::chrono::milliseconds kRedraw{100};
constexpr double kQuiet_s = 1.0;  // small models are loaded before a line would help

}  // namespace

ProgressBar::ProgressBar(bool interactive)
    : interactive_(interactive), start_(std::chrono::steady_clock::now()), last_draw_(start_ - kRedraw) {}

bool ProgressBar::is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

void ProgressBar::update(int64_t done_bytes, int64_t total_bytes) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (interactive_) {
    if (now - last_draw_ < kRedraw && done_bytes < total_bytes) return;
    last_draw_ = now;
    draw(done_bytes, total_bytes, seconds);
    return;
  }
  const int tenths =
      total_bytes > 0
          ? static_cast<int>(10.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes))
          : 10;
  if (tenths <= tenths_logged_ || seconds < kQuiet_s) return;
  tenths_logged_ = tenths;
  spdlog::info("load   {} % of {}, {:.1f} s", tenths * 10, format_bytes(total_bytes), seconds);
}

void ProgressBar::draw(int64_t done_bytes, int64_t total_bytes, double seconds) {
  const double ratio =
      total_bytes > 0
          ? std::clamp(static_cast<double>(done_bytes) / static_cast<double>(total_bytes), 0.0, 1.0)
          : 1.0;
  const int filled = static_cast<int>(ratio * kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  const auto rate = seconds > 0.05 ? static_cast<int64_t>(static_cast<double>(done_bytes) / seconds) : 0;
  const double left = ratio > 0 ? seconds * (1 - ratio) / ratio : 0;
  fmt::print(stderr, "\rloading   {}  {:3.0f} %  {} / {}   {}/s   {:.0f} s left \x1b[K", bar, 100 * ratio,
             format_bytes(done_bytes), format_bytes(total_bytes), format_bytes(rate), left);
  std::fflush(stderr);
  is_drawn_ = true;
}

void ProgressBar::finish() {
  if (is_drawn_) fmt::print(stderr, "\n");
  is_drawn_ = false;
}

}  // namespace rorqual::tools
