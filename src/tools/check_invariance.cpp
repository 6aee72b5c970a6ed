// SPDX-License-Identifier: Apache-2.0
#include "tools/check_invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/kernels.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kChunks[] = {1, 7, 32, 33, 64, 129};
constexpr int kThreads[] = {1, 2};

/// One prompt, the rows of it whose logits are compared, and those logits from the first run.
struct Case {
  std::vector<int32_t> tokens;
  std::vector<int32_t> rows;     // ascending
  std::vector<float> reference;  // [rows, V]
};

/// A position of one case inside a run.
struct Cursor {
  model::SequenceId sequence = 0;
  int64_t done = 0;
};

class InvarianceRun {
 public:
  InvarianceRun(model::Model& model, std::vector<Case>& cases, std::string label, CheckReport& report)
      : model_(model), cases_(cases), label_(std::move(label)), report_(report) {}

  /// Every case alone, whole prompt in one step, as the reference.
  Status make_reference() {
    for (Case& item : cases_) {
      item.reference.clear();
      RORQUAL_TRY(run_alone(
          item, [](int64_t left) { return left; },
          [&](int32_t, std::span<const float> logits) {
            item.reference.insert(item.reference.end(), logits.begin(), logits.end());
          }));
    }
    return Ok{};
  }

  Status check_chunks(int64_t chunk) {
    Case& item = cases_.front();
    Comparison comparison(*this, fmt::format("chunks of {}", chunk));
    RORQUAL_TRY(run_alone(
        item, [chunk](int64_t left) { return std::min(left, chunk); },
        [&](int32_t row, std::span<const float> logits) { comparison.add(item, row, logits); }));
    return Ok{};
  }

  /// Takes back up to the truncation slack after each step and runs those rows again.
  Status check_truncation() {
    Case& item = cases_.front();
    Comparison comparison(*this, "rows run again after truncation");
    RORQUAL_TRY_ASSIGN(Cursor cursor, open(item));
    const auto length = static_cast<int64_t>(item.tokens.size());
    const int64_t slack = model::kTruncateSlack;
    int64_t step = 0;
    while (cursor.done < length) {
      const int64_t count = std::min<int64_t>(length - cursor.done, 1 + step % (slack + 1));
      RORQUAL_TRY(run_step({{&item, &cursor, count}}, [](const Case&, int32_t, std::span<const float>) {}));
      const int64_t back = std::min(count, step % (slack + 1));
      cursor.done -= back;
      model_.truncate(cursor.sequence, cursor.done);
      if (!model_.reserve(cursor.sequence, length)) return Error(Code::internal, "no cache blocks left");
      if (back > 0) {
        RORQUAL_TRY(run_step({{&item, &cursor, back}},
                             [&](const Case& c, int32_t row, std::span<const float> logits) {
                               comparison.add(c, row, logits);
                             }));
      }
      ++step;
    }
    model_.close_sequence(cursor.sequence);
    return Ok{};
  }

  /// Only the last rows are read: all others skip what nothing reads.
  Status check_skips(int64_t chunk) {
    Case& item = cases_.front();
    Comparison comparison(*this, fmt::format("unread rows left out, chunks of {}", chunk));
    RORQUAL_TRY_ASSIGN(Cursor cursor, open(item));
    RORQUAL_TRY(skip_to(item, cursor, unread_rows(item), chunk));
    RORQUAL_TRY(read_rest(item, cursor, comparison));
    model_.close_sequence(cursor.sequence);
    return Ok{};
  }

  /// The prompt's whole blocks are kept from a first run; a second one rebuilds the windows over them.
  Status check_replay(int64_t chunk) {
    Case& item = cases_.front();
    const int64_t kept = unread_rows(item) / model::kPageTokens * model::kPageTokens;
    if (kept == 0) return Ok{};
    Comparison comparison(*this, fmt::format("replay over {} kept tokens, chunks of {}", kept, chunk));
    RORQUAL_TRY_ASSIGN(Cursor first, open(item));
    RORQUAL_TRY(skip_to(item, first, kept, chunk));
    std::vector<model::PageId> blocks;
    for (int64_t i = 0; i < kept / model::kPageTokens; ++i) {
      blocks.push_back(model_.page_at(first.sequence, model::PageKind::block, i));
      model_.pages().retain(model::PageKind::block, blocks.back());
    }
    model_.close_sequence(first.sequence);
    const Status status = replay(item, kept, chunk, blocks, comparison);
    for (const model::PageId block : blocks) model_.pages().release(model::PageKind::block, block);
    return status;
  }

  /// All cases side by side, each step with a random set of sequences and random chunk lengths (1 = decode).
  Status check_mix(uint64_t seed) {
    Comparison comparison(*this, fmt::format("mix of {} sequences, seed {}", cases_.size(), seed));
    std::mt19937_64 random(seed);
    std::vector<Cursor> cursors;
    for (const Case& item : cases_) {
      RORQUAL_TRY_ASSIGN(Cursor cursor, open(item));
      cursors.push_back(cursor);
    }
    for (;;) {
      std::vector<Part> parts;
      int64_t room = model_.max_step_rows();
      for (size_t i = 0; i < cases_.size(); ++i) {
        const int64_t left = static_cast<int64_t>(cases_[i].tokens.size()) - cursors[i].done;
        if (left == 0 || random() % 4 == 0) continue;
        const int64_t wish = random() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 90);
        const int64_t count = std::min({left, wish, room});
        if (count == 0) continue;
        room -= count;
        parts.push_back({&cases_[i], &cursors[i], count});
      }
      std::shuffle(parts.begin(), parts.end(), random);
      if (!parts.empty()) {
        RORQUAL_TRY(run_step(parts, [&](const Case& c, int32_t row, std::span<const float> logits) {
          comparison.add(c, row, logits);
        }));
      }
      const bool is_done = std::all_of(cursors.begin(), cursors.end(), [&](const Cursor& cursor) {
        return cursor.done ==
               static_cast<int64_t>(cases_[static_cast<size_t>(&cursor - cursors.data())].tokens.size());
      });
      if (is_done) break;
    }
    for (const Cursor& cursor : cursors) model_.close_sequence(cursor.sequence);
    return Ok{};
  }

 private:
  struct Part {
    Case* item;
    Cursor* cursor;
    int64_t count;
    std::vector<int64_t> targets{};  // not empty: nothing is read of these rows but the windows before them
    bool is_replay = false;
  };

  static constexpr int64_t kReadRows = 3;  // make_cases keeps the logits of the last three rows

  static int64_t unread_rows(const Case& item) {
    return std::max<int64_t>(0, static_cast<int64_t>(item.tokens.size()) - kReadRows);
  }

  Status skip_to(Case& item, Cursor& cursor, int64_t target, int64_t chunk, bool is_replay = false) {
    while (cursor.done < target) {
      const Part part{&item, &cursor, std::min(chunk, target - cursor.done), {target}, is_replay};
      RORQUAL_TRY(run_step({part}, [](const Case&, int32_t, std::span<const float>) {}));
    }
    return Ok{};
  }

  /// Counts differing rows of one way of running; reports when it goes.
  class Comparison {
   public:
    Comparison(InvarianceRun& run, std::string what) : run_(run), what_(std::move(what)) {}

    ~Comparison() {
      run_.report_.expect(rows_ > 0 && rows_different_ == 0, [&] {
        return fmt::format("{}, {}: {} of {} rows differ; first: {}", run_.label_, what_, rows_different_,
                           rows_, first_);
      });
    }

    Comparison(const Comparison&) = delete;
    Comparison& operator=(const Comparison&) = delete;

    void add(const Case& item, int32_t row, std::span<const float> logits) {
      const auto at = std::lower_bound(item.rows.begin(), item.rows.end(), row) - item.rows.begin();
      const float* want = item.reference.data() + static_cast<size_t>(at) * logits.size();
      ++rows_;
      if (std::memcmp(want, logits.data(), logits.size_bytes()) == 0) return;
      ++rows_different_;
      if (!first_.empty()) return;
      for (size_t i = 0; i < logits.size(); ++i) {
        if (std::memcmp(want + i, &logits[i], 4) == 0) continue;
        first_ = fmt::format("row {} logit {}: {:a} for {:a}", row, i, logits[i], want[i]);
        return;
      }
    }

   private:
    InvarianceRun& run_;
    std::string what_, first_;
    int64_t rows_ = 0, rows_different_ = 0;
  };

  /// Row by row, as decoding does.
  Status read_rest(Case& item, Cursor& cursor, Comparison& comparison) {
    while (cursor.done < static_cast<int64_t>(item.tokens.size())) {
      RORQUAL_TRY(
          run_step({{&item, &cursor, 1}}, [&](const Case& c, int32_t row, std::span<const float> logits) {
            comparison.add(c, row, logits);
          }));
    }
    return Ok{};
  }

  Status replay(Case& item, int64_t kept, int64_t chunk, const std::vector<model::PageId>& blocks,
                Comparison& comparison) {
    model::SequenceStart start;
    start.tokens = std::span(item.tokens).first(static_cast<size_t>(kept));
    start.blocks = blocks;
    start.length = std::max<int64_t>(0, kept - model_.replay_rows());
    RORQUAL_TRY_ASSIGN(Cursor cursor, open(item, start));
    cursor.done = start.length;
    RORQUAL_TRY(skip_to(item, cursor, kept, chunk, true));
    RORQUAL_TRY(skip_to(item, cursor, unread_rows(item), chunk));
    RORQUAL_TRY(read_rest(item, cursor, comparison));
    model_.close_sequence(cursor.sequence);
    return Ok{};
  }

  Result<Cursor> open(const Case& item, const model::SequenceStart& start = {}) {
    Cursor cursor;
    RORQUAL_TRY_ASSIGN(cursor.sequence, model_.open_sequence(start));
    if (!model_.reserve(cursor.sequence, static_cast<int64_t>(item.tokens.size()))) {
      return Error(Code::internal, "no cache blocks left");
    }
    return cursor;
  }

  template <class Visit>
  Status run_step(const std::vector<Part>& parts, const Visit& visit) {
    const auto vocab = static_cast<size_t>(model_.vocab_size());
    std::vector<model::StepSlice> slices;
    std::vector<std::vector<int32_t>> offsets(parts.size());
    size_t wanted = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      for (const int32_t row : part.item->rows) {
        if (!part.targets.empty()) break;
        if (row >= part.cursor->done && row < part.cursor->done + part.count) {
          offsets[p].push_back(row - static_cast<int32_t>(part.cursor->done));
        }
      }
      model::StepSlice slice;
      slice.sequence = part.cursor->sequence;
      slice.tokens = std::span(part.item->tokens)
                         .subspan(static_cast<size_t>(part.cursor->done), static_cast<size_t>(part.count));
      slice.logit_offsets = offsets[p];
      slice.window_targets = part.targets;
      slice.is_replay = part.is_replay;
      wanted += offsets[p].size();
      slices.push_back(slice);
    }
    std::vector<float> logits(wanted * vocab);
    RORQUAL_TRY(model_.forward(slices, logits));
    size_t at = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      for (const int32_t offset : offsets[p]) {
        visit(*parts[p].item, static_cast<int32_t>(parts[p].cursor->done) + offset,
              std::span<const float>(logits).subspan(at * vocab, vocab));
        ++at;
      }
      parts[p].cursor->done += parts[p].count;
    }
    return Ok{};
  }

  template <class NextCount, class Visit>
  Status run_alone(Case& item, const NextCount& next_count, const Visit& visit) {
    RORQUAL_TRY_ASSIGN(Cursor cursor, open(item));
    while (cursor.done < static_cast<int64_t>(item.tokens.size())) {
      const int64_t count = next_count(static_cast<int64_t>(item.tokens.size()) - cursor.done);
      RORQUAL_TRY(
          run_step({{&item, &cursor, count}},
                   [&](const Case&, int32_t row, std::span<const float> logits) { visit(row, logits); }));
    }
    model_.close_sequence(cursor.sequence);
    return Ok{};
  }

  model::Model& model_;
  std::vector<Case>& cases_;
  std::string label_;
  CheckReport& report_;
};

/// Prompts of different lengths, the first one the longest; the second half of each repeats a part of the
/// first half so that n-grams recur. Logits of every row for small vocabularies, else of rows around chunk
/// edges and the end.
std::vector<Case> make_cases(const CheckInvarianceOptions& options, int64_t vocab) {
  std::mt19937_64 random(options.seed);
  std::vector<Case> cases(static_cast<size_t>(options.sequences));
  for (size_t c = 0; c < cases.size(); ++c) {
    const int64_t length =
        c == 0 ? options.tokens : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(options.tokens));
    auto& tokens = cases[c].tokens;
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(3 + random() % static_cast<uint64_t>(vocab - 3)));
    }
    const auto half = length / 2;
    for (int64_t i = 0; i + 1 < half / 2; ++i)
      tokens[static_cast<size_t>(half + i)] = tokens[static_cast<size_t>(1 + i)];
    constexpr int64_t kSmallVocab = 8192;
    for (int64_t row = 0; row < length; ++row) {
      const bool is_edge = std::any_of(std::begin(kChunks) + 1, std::end(kChunks), [row](int64_t chunk) {
        return row % chunk == 0 || (row + 1) % chunk == 0;
      });
      if (vocab <= kSmallVocab || (is_edge && row % 8 < 2) || row + 4 > length) {
        cases[c].rows.push_back(static_cast<int32_t>(row));
      }
    }
  }
  return cases;
}

/// The first model of a numerics makes the reference, the others are compared with it.
Status check_model(const OpenedSource& opened, const OpenOptions& open, uint64_t seed,
                   std::vector<Case>& cases, CheckReport& report) {
  const std::string switches = model::describe_switches(open.switches);
  const bool is_first = cases.front().reference.empty();
  const std::string label = fmt::format(
      "{} numerics, {} kernels, {} threads{}{}{}", open.numerics, open.kernels, open.threads,
      open.engram_placement == "disk" ? ", Engram on disk" : "", switches.empty() ? "" : ", ", switches);
  RORQUAL_TRY_ASSIGN(const auto model, open_model(opened, open));
  InvarianceRun run(*model, cases, label, report);
  if (is_first) RORQUAL_TRY(run.make_reference());
  const auto length = static_cast<int64_t>(cases.front().tokens.size());
  if (!is_first) RORQUAL_TRY(run.check_chunks(length));
  for (const int64_t chunk : kChunks) RORQUAL_TRY(run.check_chunks(chunk));
  RORQUAL_TRY(run.check_truncation());
  for (const int64_t chunk : {int64_t{33}, length}) {
    RORQUAL_TRY(run.check_skips(chunk));
    RORQUAL_TRY(run.check_replay(chunk));
  }
  for (uint64_t i = 0; i < 2; ++i) RORQUAL_TRY(run.check_mix(seed * 1000 + i));
  return Ok{};
}

}  // namespace

Status check_invariance(const CheckInvarianceOptions& options, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const OpenedSource opened, open_source(options.open, true));
  RORQUAL_TRY(find_kernels(options.open.kernels));
  for (const std::string numerics : {"exact", "reference"}) {
    std::vector<Case> cases = make_cases(options, opened.config.vocab_size);
    for (const kernels::KernelTable* table : kernels::available_kernels()) {
      if (!options.open.kernels.empty() && table->name != options.open.kernels) continue;
      for (const int threads : kThreads) {
        for (const std::string placement : {"host", "disk"}) {
          // Reading tables from disk changes nothing else, so one combination of it is enough.
          if (placement == "disk" && (opened.config.engram_layer_ids.empty() || threads != 2)) continue;
          OpenOptions open = options.open;
          open.numerics = numerics;
          open.kernels = std::string(table->name);
          open.threads = threads;
          open.engram_placement = placement;
          open.max_num_seqs = options.sequences;
          open.max_num_batched_tokens = options.tokens;
          open.max_model_len = options.tokens;
          open.with_drafts = opened.config.num_stages() > 0;
          RORQUAL_TRY(check_model(opened, open, options.seed, cases, report));
        }
      }
    }
  }
  return Ok{};
}

}  // namespace rorqual::tools
