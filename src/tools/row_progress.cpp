// SPDX-License-Identifier: Apache-2.0
#include "tools/row_progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "base/units.h"
#include "tools/progress_bar.h"

namespace rorqual::tools {
namespace {

constexpr int kWidth = 24;
constexpr std::chrono::milliseconds kRedraw{200};
constexpr double kQuiet_s = 10;  // no lines for short runs

}  // namespace

RowProgress::RowProgress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      is_interactive_(ProgressBar::is_terminal()),
      start_(std::chrono::steady_clock::now()),
      last_draw_(start_ - kRedraw) {}

std::string RowProgress::line(int64_t done, int64_t total, double seconds) const {
  const double ratio = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  const auto fresh = static_cast<double>(done - first_done_);
  std::string rest = "…";
  if (fresh > 0 && seconds > 0) {
    const double rate = fresh / seconds;
    const double left = static_cast<double>(total - done) / rate;
    rest = fmt::format("{:.{}f} {}/s   {:.0f} s left", rate, rate < 10 ? 1 : 0, unit_, left);
  }
  return fmt::format("{:3.0f} %  {} / {} {}   {}", 100 * ratio, format_count(done), format_count(total),
                     unit_, rest);
}

void RowProgress::update(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (first_done_ < 0) {
    first_done_ = done;
    start_ = now;
  }
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (is_interactive_) {
    if (now - last_draw_ < kRedraw && done < total) return;
    last_draw_ = now;
    const auto filled = total > 0 ? done * kWidth / total : kWidth;
    std::string bar;
    for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
    fmt::print(stderr, "\r{}   {}  {} \x1b[K", label_, bar, line(done, total, seconds));
    std::fflush(stderr);
    is_drawn_ = true;
    return;
  }
  const int64_t tenths = total > 0 ? 10 * done / total : 10;
  if (tenths <= tenths_shown_) return;
  tenths_shown_ = tenths;
  if (seconds < kQuiet_s) return;
  fmt::print(stderr, "{}   {}\n", label_, line(done, total, seconds));
}

void RowProgress::finish() {
  if (is_drawn_) fmt::print(stderr, "\n");
  is_drawn_ = false;
}

}  // namespace rorqual::tools
