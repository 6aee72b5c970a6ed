// SPDX-License-Identifier: Apache-2.0
// What a run of `rorqual check` found: counters and the texts of failures. It holds no files and decides no
// exit code.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace rorqual::tools {

/// One thread. Checks call pass() or add_failure() once per case; print() ends with `N passed, M failed`.
class CheckReport {
 public:
  void pass(int64_t count = 1) { passed_ += count; }

  /// `text` says where, what was got and what was expected; it may have several lines.
  void add_failure(std::string text) {
    ++failed_;
    if (failures_.size() < kMaxFailureTexts) failures_.push_back(std::move(text));
  }

  /// Case that does not apply (a file made for another model); `text` says why.
  void skip(std::string text) {
    ++skipped_;
    if (notes_.size() < kMaxFailureTexts) notes_.push_back("skipped: " + std::move(text));
  }

  /// A line for the reader, printed before the counters (statistics, measured error).
  void note(std::string text) { notes_.push_back(std::move(text)); }

  /// pass() if `ok`, else add_failure(text()): the text is only built when it is needed.
  template <class Text>
  bool expect(bool ok, const Text& text) {
    if (ok) {
      pass();
    } else {
      add_failure(text());
    }
    return ok;
  }

  int64_t passed() const { return passed_; }

  int64_t failed() const { return failed_; }

  int64_t skipped() const { return skipped_; }

  const std::vector<std::string>& failures() const { return failures_; }

  const std::vector<std::string>& notes() const { return notes_; }

  /// Failures, notes, and the last line `N passed, M failed`, with `, K skipped` if there were any.
  void print(std::ostream& out) const {
    for (const auto& text : failures_) out << "FAILED " << text << '\n';
    const auto shown = static_cast<int64_t>(failures_.size());
    if (failed_ > shown) out << "… and " << failed_ - shown << " more failures\n";
    for (const auto& text : notes_) out << text << '\n';
    out << passed_ << " passed, " << failed_ << " failed";
    if (skipped_ > 0) out << ", " << skipped_ << " skipped";
    out << '\n';
  }

 private:
  static constexpr size_t kMaxFailureTexts = 100;

  int64_t passed_ = 0;
  int64_t failed_ = 0;
  int64_t skipped_ = 0;
  std::vector<std::string> failures_;
  std::vector<std::string> notes_;
};

}  // namespace rorqual::tools
