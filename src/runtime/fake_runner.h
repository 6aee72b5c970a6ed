// SPDX-License-Identifier: Apache-2.0
// Test double of a model: a FakeNetwork whose windows and entries live in real pages, and which computes only
// the rows that the contract promises; everything else is noise that never repeats. It checks the contract of
// model::Runner on every call, so a scheduler that breaks it fails loudly or gives wrong tokens. Not part of
// the program.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/runner.h"
#include "prefix/fake_pages.h"
#include "runtime/fake_network.h"

namespace rorqual::runtime {

struct FakeRunnerOptions {
  int64_t vocab_size = 61;
  int64_t max_model_len = 4096;
  int64_t max_step_rows = 4096;
  int64_t page_tokens = 4;
  int64_t blocks = 1024;
  int64_t prefix_windows = 64;  // window pages beyond those of running sequences
  int64_t max_sequences = 64;
  int64_t layers = 3, window = 4;
  int64_t max_drafts = 7;
  int draft_percent = 70;  // drafts that are the best token of the true distribution
  uint64_t salt = 0;       // another model
};

class FakeRunner : public model::Runner {
 public:
  explicit FakeRunner(FakeRunnerOptions options)
      : options_(options),
        network_{options.vocab_size, options.layers, 1, options.window, options.salt},
        pages_({.page_tokens = options.page_tokens,
                .blocks = options.blocks,
                .windows = options.max_sequences * windows_per_sequence() + options.prefix_windows,
                .block_bytes = options.page_tokens * 8,
                .window_bytes = options.page_tokens * options.layers * 8}) {}

  int64_t vocab_size() const override { return options_.vocab_size; }

  int64_t max_model_len() const override { return options_.max_model_len; }

  int64_t max_step_rows() const override { return options_.max_step_rows; }

  prefix::FakePages& pages() override { return pages_; }

  const prefix::FakePages& pages() const override { return pages_; }

  int64_t window_pages() const override { return pages_for(options_.window); }

  int64_t replay_rows() const override { return network_.rows_needed(0); }

  int64_t replay_cost() const override {
    int64_t rows = 0;
    for (int64_t l = 0; l < options_.layers; ++l) rows += network_.rows_needed(l);
    return (rows + options_.layers - 1) / options_.layers;
  }

  int64_t max_drafts() const override { return options_.max_drafts; }

  Result<model::SequenceId> open_sequence(const model::SequenceStart& start = {}) override;
  void close_sequence(model::SequenceId sequence) override;

  int64_t sequence_length(model::SequenceId sequence) const override { return get(sequence).length(); }

  model::PageId page_at(model::SequenceId sequence, model::PageKind kind, int64_t index) const override;
  bool reserve(model::SequenceId sequence, int64_t num_tokens) override;
  void truncate(model::SequenceId sequence, int64_t length) override;
  int64_t image_bytes(model::SequenceId sequence) const override;
  void save_image(model::SequenceId sequence, std::span<std::byte> image) const override;
  Result<model::SequenceId> open_image(std::span<const std::byte> image) override;
  Status forward(std::span<const model::StepSlice> slices, std::span<float> logits) override;
  Status draft(std::span<const model::DraftSlice> slices, int64_t count, std::span<int32_t> tokens,
               std::span<float> confidence) override;

  int num_threads() const override { return 1; }

  void parallel_for(int64_t count, const std::function<void(int64_t, int)>& f) override {
    for (int64_t i = 0; i < count; ++i) f(i, 0);
  }

  // What tests ask.

  /// The logits after `prefix`, computed without any cache.
  std::vector<float> logits_after(std::span<const int32_t> prefix) const {
    std::vector<float> row(static_cast<size_t>(options_.vocab_size));
    network_.write_logits(network_.after(prefix).output, row);
    return row;
  }

  const FakeNetwork& network() const { return network_; }

  /// Holds of pages by open sequences, counted one by one.
  int64_t holds(model::PageKind kind) const {
    int64_t holds = 0;
    for (const auto& [id, s] : sequences_) {
      holds += static_cast<int64_t>(kind == model::PageKind::block ? s.blocks.size() : s.windows.size());
    }
    return holds;
  }

  int64_t num_open() const { return static_cast<int64_t>(sequences_.size()); }

  int64_t num_steps = 0, num_replay_rows = 0;
  /// Called first in every forward: may fail or throw in its place, or move a virtual clock.
  std::function<Status(std::span<const model::StepSlice>)> before_forward;
  std::function<Status(std::span<const model::DraftSlice>, int64_t count)> before_draft;

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<model::PageId> blocks;
    std::map<int64_t, model::PageId> windows;  // by page number
    int64_t replay_end = 0;                    // tokens of the blocks that it was opened with
    int64_t trim_rows = 0;
    std::array<int64_t, 2> clip{};  // first visible window position, in layers up to the source and above

    int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  };

  /// Window records and layer inputs of the rows [base, end) while a slice runs.
  struct Rows {
    int64_t base = 0, begin = 0, end = 0;
    std::vector<std::vector<uint64_t>> records;  // [layer][position - base]
    std::vector<uint64_t> entries;               // running sums inside a page, [position - begin]

    uint64_t& record(int64_t layer, int64_t position) {
      return records[static_cast<size_t>(layer)][static_cast<size_t>(position - base)];
    }
  };

  static constexpr int64_t kSlack = 8;

  int64_t pages_for(int64_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }

  int64_t windows_per_sequence() const { return pages_for(options_.window + kSlack) + 2; }

  Sequence& get(model::SequenceId id) {
    const auto found = sequences_.find(id);
    RORQUAL_CHECK_NOTE(found != sequences_.end(), "a sequence that is not open");
    return found->second;
  }

  const Sequence& get(model::SequenceId id) const { return const_cast<FakeRunner*>(this)->get(id); }

  uint64_t noise() { return FakeNetwork::mix(0x5EED0000u + ++num_noises_); }

  std::vector<uint64_t> read_page(model::PageKind kind, model::PageId page) const {
    std::vector<uint64_t> words(static_cast<size_t>(pages_.page_bytes(kind) / 8));
    pages_.read(kind, page, std::as_writable_bytes(std::span(words)));
    return words;
  }

  void write_page(model::PageKind kind, model::PageId page, const std::vector<uint64_t>& words) {
    RORQUAL_CHECK_NOTE(pages_.holders(kind, page) == 1, "a shared page is written");
    pages_.write(kind, page, std::as_bytes(std::span(words)));
  }

  void check_slice(const Sequence& s, const model::StepSlice& slice) const;
  Rows load_rows(const Sequence& s, const model::StepSlice& slice);
  uint64_t entries_before(const Sequence& s, int64_t position) const;
  void run_slice(Sequence& s, const model::StepSlice& slice, std::span<float> logits);
  void store_entries(Sequence& s, const Rows& rows);
  void store_windows(Sequence& s, Rows& rows, std::span<const int64_t> targets);
  void drop_windows(Sequence& s, const std::set<int64_t>& kept);
  bool take_window(Sequence& s, int64_t index, bool is_extra);
  std::set<int64_t> tail_pages(int64_t length) const;

  FakeRunnerOptions options_;
  FakeNetwork network_;
  prefix::FakePages pages_;
  std::map<model::SequenceId, Sequence> sequences_;
  model::SequenceId next_id_ = 1;
  uint64_t num_noises_ = 0;
};

inline Result<model::SequenceId> FakeRunner::open_sequence(const model::SequenceStart& start) {
  if (num_open() >= options_.max_sequences) return Error(Code::unavailable, "all sequences are open");
  const int64_t cached = static_cast<int64_t>(start.blocks.size()) * options_.page_tokens;
  RORQUAL_CHECK(static_cast<int64_t>(start.tokens.size()) == cached);
  RORQUAL_CHECK(start.length >= 0 && start.length <= cached);
  Sequence s;
  s.tokens.assign(start.tokens.begin(), start.tokens.begin() + static_cast<std::ptrdiff_t>(start.length));
  s.blocks.assign(start.blocks.begin(), start.blocks.end());
  s.replay_end = cached;
  s.trim_rows = start.trim_rows;
  if (start.trim_rows > 0) s.clip = {start.length, start.length};
  if (start.windows.empty()) {
    RORQUAL_CHECK_NOTE(start.length == 0 || start.length < cached, "a start without windows or a replay");
  } else {
    RORQUAL_CHECK_NOTE(start.length == cached, "windows before a replay");
    const auto count = static_cast<int64_t>(start.windows.size());
    RORQUAL_CHECK_NOTE(count >= std::min(window_pages(), cached / options_.page_tokens), "too few windows");
    for (int64_t i = 0; i < count; ++i) {
      s.windows[cached / options_.page_tokens - count + i] = start.windows[static_cast<size_t>(i)];
    }
  }
  for (const model::PageId page : s.blocks) pages_.retain(model::PageKind::block, page);
  for (const auto& [index, page] : s.windows) pages_.retain(model::PageKind::window, page);
  sequences_.emplace(next_id_, std::move(s));
  return next_id_++;
}

inline void FakeRunner::close_sequence(model::SequenceId sequence) {
  Sequence& s = get(sequence);
  for (const model::PageId page : s.blocks) pages_.release(model::PageKind::block, page);
  for (const auto& [index, page] : s.windows) pages_.release(model::PageKind::window, page);
  sequences_.erase(sequence);
}

inline model::PageId FakeRunner::page_at(model::SequenceId sequence, model::PageKind kind,
                                         int64_t index) const {
  const Sequence& s = get(sequence);
  if (kind == model::PageKind::block) {
    return index < static_cast<int64_t>(s.blocks.size()) ? s.blocks[static_cast<size_t>(index)]
                                                         : model::kNoPage;
  }
  const auto found = s.windows.find(index);
  return found == s.windows.end() ? model::kNoPage : found->second;
}

inline bool FakeRunner::reserve(model::SequenceId sequence, int64_t num_tokens) {
  Sequence& s = get(sequence);
  const int64_t more = pages_for(num_tokens) - static_cast<int64_t>(s.blocks.size());
  if (more > pages_.pages_free(model::PageKind::block)) return false;
  for (int64_t i = 0; i < more; ++i) s.blocks.push_back(*pages_.allocate(model::PageKind::block));
  return true;
}

inline void FakeRunner::truncate(model::SequenceId sequence, int64_t length) {
  Sequence& s = get(sequence);
  RORQUAL_CHECK_NOTE(length >= 0 && length <= s.length() && s.length() - length <= kSlack,
                     "truncate too far");
  s.tokens.resize(static_cast<size_t>(length));
}

inline int64_t FakeRunner::image_bytes(model::SequenceId sequence) const {
  const Sequence& s = get(sequence);
  const int64_t blocks = std::max(pages_for(s.length()), pages_for(s.replay_end));
  return 8 * (8 + static_cast<int64_t>(s.tokens.size()) + static_cast<int64_t>(s.windows.size())) +
         blocks * pages_.page_bytes(model::PageKind::block) +
         static_cast<int64_t>(s.windows.size()) * pages_.page_bytes(model::PageKind::window);
}

inline void FakeRunner::save_image(model::SequenceId sequence, std::span<std::byte> image) const {
  const Sequence& s = get(sequence);
  RORQUAL_CHECK(static_cast<int64_t>(image.size()) == image_bytes(sequence));
  const int64_t blocks = std::max(pages_for(s.length()), pages_for(s.replay_end));
  std::vector<uint64_t> words = {s.tokens.size(),
                                 static_cast<uint64_t>(blocks),
                                 s.windows.size(),
                                 static_cast<uint64_t>(s.replay_end),
                                 static_cast<uint64_t>(s.trim_rows),
                                 static_cast<uint64_t>(s.clip[0]),
                                 static_cast<uint64_t>(s.clip[1]),
                                 0};
  const auto append = [&](const std::vector<uint64_t>& more) {
    words.insert(words.end(), more.begin(), more.end());
  };
  for (const int32_t token : s.tokens) words.push_back(static_cast<uint64_t>(token));
  for (int64_t i = 0; i < blocks; ++i) {
    append(read_page(model::PageKind::block, s.blocks[static_cast<size_t>(i)]));
  }
  for (const auto& [index, page] : s.windows) {
    words.push_back(static_cast<uint64_t>(index));
    append(read_page(model::PageKind::window, page));
  }
  RORQUAL_CHECK(words.size() * 8 == image.size());
  std::memcpy(image.data(), words.data(), image.size());
}

inline Result<model::SequenceId> FakeRunner::open_image(std::span<const std::byte> image) {
  std::vector<uint64_t> words(image.size() / 8);
  std::memcpy(words.data(), image.data(), words.size() * 8);
  if (num_open() >= options_.max_sequences) return Error(Code::unavailable, "all sequences are open");
  if (static_cast<int64_t>(words[1]) > pages_.pages_free(model::PageKind::block)) {
    return Error(Code::unavailable, "no blocks for the image");
  }
  Sequence s;
  s.replay_end = static_cast<int64_t>(words[3]);
  s.trim_rows = static_cast<int64_t>(words[4]);
  s.clip = {static_cast<int64_t>(words[5]), static_cast<int64_t>(words[6])};
  size_t at = 8;
  for (uint64_t i = 0; i < words[0]; ++i) s.tokens.push_back(static_cast<int32_t>(words[at++]));
  const auto take = [&](model::PageKind kind) {
    const size_t size = static_cast<size_t>(pages_.page_bytes(kind) / 8);
    const auto page = pages_.allocate(kind);
    RORQUAL_CHECK_NOTE(page.has_value(), "a page that is guaranteed");
    write_page(kind, *page,
               {words.begin() + static_cast<std::ptrdiff_t>(at),
                words.begin() + static_cast<std::ptrdiff_t>(at + size)});
    at += size;
    return *page;
  };
  for (uint64_t i = 0; i < words[1]; ++i) s.blocks.push_back(take(model::PageKind::block));
  for (uint64_t i = 0; i < words[2]; ++i) {
    const auto index = static_cast<int64_t>(words[at++]);
    s.windows[index] = take(model::PageKind::window);
  }
  sequences_.emplace(next_id_, std::move(s));
  return next_id_++;
}

inline void FakeRunner::check_slice(const Sequence& s, const model::StepSlice& slice) const {
  RORQUAL_CHECK_NOTE(!slice.tokens.empty(), "an empty slice");
  const int64_t end = s.length() + static_cast<int64_t>(slice.tokens.size());
  RORQUAL_CHECK_NOTE(end <= static_cast<int64_t>(s.blocks.size()) * options_.page_tokens,
                     "room was not reserved");
  RORQUAL_CHECK(end <= options_.max_model_len);
  for (size_t i = 0; i < slice.window_targets.size(); ++i) {
    const int64_t before = i == 0 ? s.length() : slice.window_targets[i - 1];
    RORQUAL_CHECK_NOTE(slice.window_targets[i] > before, "targets not ascending or not above the slice");
  }
  if (slice.is_replay) {
    RORQUAL_CHECK_NOTE(slice.logit_offsets.empty(), "logits of a replay");
    RORQUAL_CHECK_NOTE(!slice.window_targets.empty() && slice.window_targets.back() <= s.replay_end,
                       "a replay beyond its blocks");
    RORQUAL_CHECK_NOTE(end <= s.replay_end, "a replay beyond its blocks");
  } else {
    RORQUAL_CHECK_NOTE(s.length() >= s.replay_end, "a replay is due");
  }
}

inline uint64_t FakeRunner::entries_before(const Sequence& s, int64_t position) const {
  uint64_t sum = 0;
  for (int64_t i = 0; i * options_.page_tokens < position; ++i) {
    const auto words = read_page(model::PageKind::block, s.blocks[static_cast<size_t>(i)]);
    const int64_t last = std::min(position - i * options_.page_tokens, options_.page_tokens) - 1;
    sum += words[static_cast<size_t>(last)];
  }
  return sum;
}

inline FakeRunner::Rows FakeRunner::load_rows(const Sequence& s, const model::StepSlice& slice) {
  Rows rows;
  rows.begin = s.length();
  rows.end = rows.begin + static_cast<int64_t>(slice.tokens.size());
  const int64_t first_page = std::max<int64_t>(rows.begin - options_.window + 1, 0) / options_.page_tokens;
  rows.base = first_page * options_.page_tokens;
  rows.records.resize(static_cast<size_t>(options_.layers));
  for (auto& layer : rows.records) {
    layer.resize(static_cast<size_t>(rows.end - rows.base));
    for (uint64_t& word : layer) word = noise();
  }
  for (int64_t page = first_page; page * options_.page_tokens < rows.begin; ++page) {
    const auto held = s.windows.find(page);
    if (held == s.windows.end()) continue;
    const auto words = read_page(model::PageKind::window, held->second);
    for (int64_t l = 0; l < options_.layers; ++l) {
      for (int64_t i = 0; i < options_.page_tokens; ++i) {
        const int64_t position = page * options_.page_tokens + i;
        if (position < rows.begin) {
          rows.record(l, position) = words[static_cast<size_t>(l * options_.page_tokens + i)];
        }
      }
    }
  }
  return rows;
}

inline void FakeRunner::run_slice(Sequence& s, const model::StepSlice& slice, std::span<float> logits) {
  Rows rows = load_rows(s, slice);
  std::vector<int64_t> targets(slice.window_targets.begin(), slice.window_targets.end());
  const bool is_whole = targets.empty();
  for (const int32_t offset : slice.logit_offsets) targets.push_back(rows.begin + offset + 1);
  std::sort(targets.begin(), targets.end());
  /// True when `layer` runs row p for what is read later.
  const auto is_run = [&](int64_t layer, int64_t p) {
    if (is_whole || (slice.is_replay ? s.trim_rows > 0 : layer <= network_.source)) return true;
    const bool is_trimmed = s.trim_rows > 0 && layer > network_.source;
    return std::any_of(targets.begin(), targets.end(), [&](int64_t t) {
      return p < t && p >= t - (is_trimmed ? s.trim_rows : network_.rows_needed(layer));
    });
  };
  uint64_t sum_before = entries_before(s, rows.begin);
  rows.entries.resize(slice.tokens.size());
  size_t next_logit = 0;
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    const auto i = static_cast<size_t>(p - rows.begin);
    const bool is_first_of_page = p % options_.page_tokens == 0;
    uint64_t x = FakeNetwork::embed(slice.tokens[i]);
    uint64_t entries = 0;
    for (int64_t l = 0; l < options_.layers; ++l) {
      if (!is_run(l, p)) x = noise();
      rows.record(l, p) = FakeNetwork::window_record(l, x);
      if (l == network_.source) {
        sum_before += FakeNetwork::entry(p, x);
        rows.entries[i] = (is_first_of_page || i == 0 ? 0 : rows.entries[i - 1]) + FakeNetwork::entry(p, x);
        if (i == 0 && !is_first_of_page) {
          const auto words =
              read_page(model::PageKind::block, s.blocks[static_cast<size_t>(p / options_.page_tokens)]);
          rows.entries[0] += words[static_cast<size_t>(p % options_.page_tokens - 1)];
        }
        entries = slice.is_replay ? entries_before(s, p + 1) : sum_before;
      }
      int64_t first = std::max<int64_t>(p - options_.window + 1, 0);
      if (s.trim_rows > 0) {
        first = std::max(first, s.clip[l > network_.source ? 1 : 0]);
        const auto target = std::upper_bound(targets.begin(), targets.end(), p);
        if (!is_whole && target != targets.end() && l > network_.source) {
          first = std::max(first, *target - s.trim_rows);
        }
      }
      uint64_t sum = 0;
      for (int64_t q = std::min(first, p); q <= p; ++q) {
        sum += FakeNetwork::seen(q < rows.base ? noise() : rows.record(l, q), p - q);
      }
      x = network_.next_layer(l, x, sum, entries);
    }
    if (next_logit == slice.logit_offsets.size() ||
        slice.logit_offsets[next_logit] != static_cast<int32_t>(i)) {
      continue;
    }
    const auto width = static_cast<size_t>(options_.vocab_size);
    network_.write_logits(x, logits.subspan(next_logit * width, width));
    ++next_logit;
  }
  RORQUAL_CHECK_NOTE(next_logit == slice.logit_offsets.size(), "logit offsets not ascending or out of range");
  if (s.trim_rows > 0) {
    for (const int64_t t : slice.window_targets) {
      if (t <= rows.end) s.clip[1] = std::max(s.clip[1], t - s.trim_rows);
    }
  }
  if (!slice.is_replay) store_entries(s, rows);
  s.tokens.insert(s.tokens.end(), slice.tokens.begin(), slice.tokens.end());
  store_windows(s, rows, slice.window_targets);
}

inline void FakeRunner::store_entries(Sequence& s, const Rows& rows) {
  for (int64_t page = rows.begin / options_.page_tokens; page * options_.page_tokens < rows.end; ++page) {
    const model::PageId id = s.blocks[static_cast<size_t>(page)];
    auto words = read_page(model::PageKind::block, id);
    for (int64_t i = 0; i < options_.page_tokens; ++i) {
      const int64_t p = page * options_.page_tokens + i;
      if (p < rows.begin || p >= rows.end) continue;
      words[static_cast<size_t>(i)] = rows.entries[static_cast<size_t>(p - rows.begin)];
    }
    write_page(model::PageKind::block, id, words);
  }
}

inline std::set<int64_t> FakeRunner::tail_pages(int64_t length) const {
  std::set<int64_t> pages;
  for (int64_t p = std::max<int64_t>(length - options_.window - kSlack, 0); p < length; ++p) {
    pages.insert(p / options_.page_tokens);
  }
  return pages;
}

inline void FakeRunner::drop_windows(Sequence& s, const std::set<int64_t>& kept) {
  for (auto it = s.windows.begin(); it != s.windows.end();) {
    if (kept.contains(it->first)) {
      ++it;
    } else {
      pages_.release(model::PageKind::window, it->second);
      it = s.windows.erase(it);
    }
  }
}

/// Pages of targets are extras: they must leave those that other sequences may need.
inline bool FakeRunner::take_window(Sequence& s, int64_t index, bool is_extra) {
  if (s.windows.contains(index)) return true;
  if (is_extra) {
    int64_t due = options_.max_sequences * windows_per_sequence();
    for (const auto& [id, other] : sequences_) {
      for (const int64_t page : tail_pages(other.length())) due -= other.windows.contains(page) ? 1 : 0;
    }
    if (pages_.pages_free(model::PageKind::window) <= due) return false;
  }
  auto page = pages_.allocate(model::PageKind::window);
  for (auto it = sequences_.begin(); !page && it != sequences_.end(); ++it) {
    if (&it->second != &s) drop_windows(it->second, tail_pages(it->second.length()));  // extras give way
    page = pages_.allocate(model::PageKind::window);
  }
  RORQUAL_CHECK_NOTE(page.has_value(), "a window page that is guaranteed");
  s.windows[index] = *page;
  return true;
}

inline void FakeRunner::store_windows(Sequence& s, Rows& rows, std::span<const int64_t> targets) {
  std::set<int64_t> extras;
  for (const int64_t target : targets) {
    if (target > rows.end) break;
    for (int64_t p = std::max<int64_t>(target - options_.window, 0); p < target; ++p) {
      extras.insert(p / options_.page_tokens);
    }
  }
  const std::set<int64_t> tail = tail_pages(rows.end);
  std::set<int64_t> kept = tail;
  kept.insert(extras.begin(), extras.end());
  drop_windows(s, kept);
  for (const int64_t page : kept) {
    const int64_t first = page * options_.page_tokens;
    const bool is_written = first + options_.page_tokens > rows.begin;
    if (!is_written) continue;  // held already, or gone for ever
    const bool is_new = !s.windows.contains(page);
    if (!take_window(s, page, !tail.contains(page))) continue;
    const model::PageId id = s.windows[page];
    auto words = read_page(model::PageKind::window, id);
    for (int64_t l = 0; l < options_.layers; ++l) {
      for (int64_t i = 0; i < options_.page_tokens; ++i) {
        uint64_t& word = words[static_cast<size_t>(l * options_.page_tokens + i)];
        if (is_new) word = noise();
        if (first + i >= rows.base && first + i < rows.end) word = rows.record(l, first + i);
      }
    }
    write_page(model::PageKind::window, id, words);
  }
}

inline Status FakeRunner::forward(std::span<const model::StepSlice> slices, std::span<float> logits) {
  ++num_steps;
  if (before_forward) RORQUAL_TRY(before_forward(slices));
  std::set<model::SequenceId> seen;
  int64_t rows = 0;
  size_t out = 0;
  for (const model::StepSlice& slice : slices) {
    RORQUAL_CHECK_NOTE(seen.insert(slice.sequence).second, "a sequence twice in one step");
    Sequence& s = get(slice.sequence);
    check_slice(s, slice);
    rows += static_cast<int64_t>(slice.tokens.size());
    if (slice.is_replay) num_replay_rows += static_cast<int64_t>(slice.tokens.size());
    const size_t size = slice.logit_offsets.size() * static_cast<size_t>(options_.vocab_size);
    RORQUAL_CHECK(out + size <= logits.size());
    run_slice(s, slice, logits.subspan(out, size));
    out += size;
  }
  RORQUAL_CHECK_NOTE(rows > 0 && rows <= options_.max_step_rows, "rows of the step");
  RORQUAL_CHECK_NOTE(out == logits.size(), "logits of the wrong size");
  return Ok{};
}

inline Status FakeRunner::draft(std::span<const model::DraftSlice> slices, int64_t count,
                                std::span<int32_t> tokens, std::span<float> confidence) {
  if (before_draft) RORQUAL_TRY(before_draft(slices, count));
  RORQUAL_CHECK(count >= 1 && count <= options_.max_drafts && !slices.empty());
  RORQUAL_CHECK(tokens.size() == slices.size() * static_cast<size_t>(count) &&
                confidence.size() == tokens.size());
  std::set<model::SequenceId> seen;
  size_t out = 0;
  for (const model::DraftSlice& slice : slices) {
    RORQUAL_CHECK_NOTE(seen.insert(slice.sequence).second, "a sequence twice in one draft pass");
    const Sequence& s = get(slice.sequence);
    RORQUAL_CHECK_NOTE(s.length() > 0 && s.length() >= s.replay_end, "drafts of a sequence without windows");
    FakeNetwork::State state = network_.after(s.tokens);
    network_.push(state, slice.token);
    for (int64_t i = 0; i < count; ++i, ++out) {
      const bool is_right =
          static_cast<int>(FakeNetwork::mix(state.output ^ 0xD5) % 100) < options_.draft_percent;
      tokens[out] = network_.best(state.output);
      if (!is_right) tokens[out] = static_cast<int32_t>((tokens[out] + 1) % options_.vocab_size);
      confidence[out] = is_right ? 2.0f : -2.0f;
      network_.push(state, tokens[out]);
    }
  }
  return Ok{};
}

}  // namespace rorqual::runtime
