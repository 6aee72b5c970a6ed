// SPDX-License-Identifier: Apache-2.0
// Rows left out change no bit of what is read later: logits, windows before targets, compressed entries,
// decoding and drafts are those of a run of every row through every layer; and so for replays over kept
// entries. Prompts are cut into random chunks and run beside other sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "format/tensor_source.h"
#include "model/model.h"
#include "model/row_ranges.h"

namespace rorqual::model {
namespace {

struct Setup {
  std::string folder;
  kernels::Numerics numerics = kernels::Numerics::reference;
};

std::unique_ptr<format::TensorSource> open_source(const std::string& folder) {
  auto source = format::open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/" + folder);
  EXPECT_TRUE(source.ok()) << source.error().message();
  return *std::move(source);
}

/// `source` outlives the model when Engram tables stay on disk.
std::unique_ptr<Model> load(const Setup& setup, const format::TensorSource& source, bool engram_on_disk) {
  const auto config = parse_config(*source.read_text("config.json"));
  EXPECT_TRUE(config.ok());
  std::vector<int32_t> map;  // any map with all classes will do
  for (int64_t i = 0; !config->engram_layer_ids.empty() && i < config->vocab_size; ++i) {
    map.push_back(static_cast<int32_t>(i % config->engram_compressed_vocab_size));
  }
  ModelOptions options;
  options.numerics = setup.numerics;
  options.num_threads = 2;
  options.with_drafts = config->num_stages() > 0;
  options.max_model_len = 2048;
  options.max_step_rows = 2048;
  options.max_sequences = 3;
  options.prefix_windows = 32;
  options.engram_on_disk = engram_on_disk;
  auto model = Model::load(source, *config, map, options);
  EXPECT_TRUE(model.ok()) << model.error().message();
  return *std::move(model);
}

std::unique_ptr<Model> load(const Setup& setup) {
  const auto source = open_source(setup.folder);
  return load(setup, *source, false);
}

using Bytes = std::vector<std::byte>;

/// What is read of a sequence.
struct Reading {
  std::map<int64_t, std::vector<uint32_t>> logits;  // by row
  std::map<int64_t, Bytes> windows;                 // by target: the last W records of all layers
  std::vector<Bytes> blocks;                        // whole ones
  std::vector<std::vector<int32_t>> drafts;         // after the prompt and after each decoded token
};

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<int64_t> targets;     // ascending, the last one is the end
  std::vector<int32_t> logit_rows;  // ascending, with the last row
  std::vector<int32_t> answer;      // decoded after it
};

Prompt make_prompt(std::mt19937_64& random, const Model& model, int64_t length) {
  Prompt prompt;
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int64_t i = 0; i < length; ++i)
    prompt.tokens.push_back(static_cast<int32_t>(below(model.vocab_size())));
  for (int i = 0; i < 6; ++i) prompt.answer.push_back(static_cast<int32_t>(below(model.vocab_size())));
  prompt.targets = {1 + below(length), length / 64 * 64, length};
  if (length / 64 * 64 == 0) prompt.targets = {length};
  prompt.logit_rows = {static_cast<int32_t>(length - 1)};
  std::sort(prompt.targets.begin(), prompt.targets.end());
  prompt.targets.erase(std::unique(prompt.targets.begin(), prompt.targets.end()), prompt.targets.end());
  return prompt;
}

Bytes window_before(const Model& model, SequenceId id, int64_t target) {
  const CacheLayout& layout = model.cache_layout();
  const int64_t bytes = layout.format.window_bytes();
  Bytes out;
  for (int64_t layer = 0; layer < layout.num_windows; ++layer) {
    const kernels::WindowCache cache = model.sequence(id).window(layer);
    for (int64_t p = std::max<int64_t>(0, target - layout.window); p < target; ++p) {
      const std::byte* page = cache.pages[p / kPageTokens];
      EXPECT_NE(page, nullptr) << "window page of position " << p << " before target " << target;
      if (page == nullptr) return out;
      const std::byte* record = page + cache.offset + p % kPageTokens * bytes;
      out.insert(out.end(), record, record + bytes);
    }
  }
  return out;
}

class Session {
 public:
  Session(Model& model, const Prompt& prompt, bool is_lazy)
      : model_(model), prompt_(prompt), is_lazy_(is_lazy) {}

  void open(const SequenceStart& start = {}) {
    const auto id = model_.open_sequence(start);
    ASSERT_TRUE(id.ok()) << id.error().message();
    id_ = *id;
    ASSERT_TRUE(model_.reserve(id_, end() + static_cast<int64_t>(prompt_.answer.size())));
  }

  SequenceId id() const { return id_; }

  int64_t end() const { return static_cast<int64_t>(prompt_.tokens.size()); }

  int64_t done() const { return model_.sequence_length(id_); }

  /// The next `count` prompt rows. The slice's views stay valid until the next one.
  StepSlice slice(int64_t count, int64_t replay_end = 0) {
    const int64_t from = done();
    targets_.clear();
    offsets_.clear();
    StepSlice next;
    next.sequence = id_;
    next.tokens = std::span(prompt_.tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(count));
    if (from < replay_end) {
      next.is_replay = true;
      targets_ = {replay_end};
    } else {
      for (const int64_t target : prompt_.targets) {
        if (target > from && is_lazy_) targets_.push_back(target);
      }
      for (const int32_t row : prompt_.logit_rows) {
        if (row >= from && row < from + count) offsets_.push_back(static_cast<int32_t>(row - from));
      }
    }
    next.window_targets = targets_;
    next.logit_offsets = offsets_;
    from_ = from;
    return next;
  }

  void take(std::span<const float> logits) {
    const auto vocab = static_cast<size_t>(model_.vocab_size());
    for (size_t i = 0; i < offsets_.size(); ++i) {
      auto& row = reading_.logits[from_ + offsets_[i]];
      for (size_t v = 0; v < vocab; ++v) row.push_back(std::bit_cast<uint32_t>(logits[i * vocab + v]));
    }
    for (const int64_t target : prompt_.targets) {
      const bool is_held = is_lazy_ ? target > from_ && target <= done() : target == done();
      if (is_held) reading_.windows[target] = window_before(model_, id_, target);
    }
  }

  void step(int64_t count, int64_t replay_end = 0) {
    const StepSlice next = slice(count, replay_end);
    std::vector<float> logits(next.logit_offsets.size() * static_cast<size_t>(model_.vocab_size()));
    const Status status = model_.forward(std::span(&next, 1), logits);
    ASSERT_TRUE(status.ok()) << status.error().message();
    take(logits);
  }

  /// Decodes the answer with drafts, then reads the blocks.
  void finish() {
    draft();
    for (const int32_t token : prompt_.answer) {
      const int32_t offset = 0;
      StepSlice next;
      next.sequence = id_;
      next.tokens = std::span(&token, 1);
      next.logit_offsets = std::span(&offset, 1);
      std::vector<float> logits(static_cast<size_t>(model_.vocab_size()));
      const int64_t at = done();
      const Status status = model_.forward(std::span(&next, 1), logits);
      ASSERT_TRUE(status.ok()) << status.error().message();
      for (const float value : logits) reading_.logits[at].push_back(std::bit_cast<uint32_t>(value));
      draft();
    }
    for (int64_t block = 0; (block + 1) * kPageTokens <= done(); ++block) {
      const PageId page = model_.page_at(id_, PageKind::block, block);
      reading_.blocks.emplace_back(static_cast<size_t>(model_.pages().page_bytes(PageKind::block)));
      model_.pages().read(PageKind::block, page, reading_.blocks.back());
    }
    model_.close_sequence(id_);
  }

  const Reading& reading() const { return reading_; }

 private:
  void draft() {
    if (model_.max_drafts() == 0) return;
    const DraftSlice slice{id_, 7};
    std::vector<int32_t> tokens(3);
    std::vector<float> confidence(3);
    ASSERT_TRUE(model_.draft(std::span(&slice, 1), 3, tokens, confidence).ok());
    for (const float value : confidence) tokens.push_back(std::bit_cast<int32_t>(value));
    reading_.drafts.push_back(tokens);
  }

  Model& model_;
  const Prompt& prompt_;
  bool is_lazy_;
  SequenceId id_ = 0;
  int64_t from_ = 0;
  std::vector<int64_t> targets_;
  std::vector<int32_t> offsets_;
  Reading reading_;
};

/// Every row through every layer, in steps that end at the targets.
Reading run_whole(Model& model, const Prompt& prompt) {
  Session session(model, prompt, false);
  session.open();
  for (const int64_t target : prompt.targets) {
    while (session.done() < target) session.step(std::min<int64_t>(target - session.done(), 1024));
  }
  session.finish();
  return session.reading();
}

void expect_equal(const Reading& got, const Reading& want) {
  for (const auto& [row, logits] : want.logits) {
    ASSERT_TRUE(got.logits.contains(row)) << "row " << row;
    EXPECT_TRUE(got.logits.at(row) == logits) << "logits of row " << row;
  }
  for (const auto& [target, windows] : got.windows) {
    ASSERT_TRUE(want.windows.contains(target)) << target;
    EXPECT_TRUE(want.windows.at(target) == windows) << "windows before " << target;
  }
  ASSERT_EQ(got.blocks.size(), want.blocks.size());
  for (size_t i = 0; i < want.blocks.size(); ++i)
    EXPECT_TRUE(got.blocks[i] == want.blocks[i]) << "block " << i;
  EXPECT_EQ(got.drafts, want.drafts);
}

class ForwardRows : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    model_ = load(GetParam());
    const char* given = std::getenv("RORQUAL_TEST_SEED");
    seed_ = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    random_.seed(seed_);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::unique_ptr<Model> model_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

TEST_P(ForwardRows, PromptsThatSkipGiveTheBitsOfWholeOnes) {
  const int64_t cone = cone_rows(make_row_rule(model_->config(), false, 0), 0);
  const Prompt prompts[] = {make_prompt(random_, *model_, std::min<int64_t>(cone + 200, 1000)),
                            make_prompt(random_, *model_, 2 + below(150))};
  const Reading whole[] = {run_whole(*model_, prompts[0]), run_whole(*model_, prompts[1])};
  for (const int64_t most : {int64_t{1000}, int64_t{300}, int64_t{70}}) {
    Session sessions[] = {{*model_, prompts[0], true}, {*model_, prompts[1], true}};
    for (Session& session : sessions) session.open();
    while (sessions[0].done() < sessions[0].end() || sessions[1].done() < sessions[1].end()) {
      std::vector<StepSlice> slices;
      std::vector<Session*> members;
      for (Session& session : sessions) {
        const int64_t left = session.end() - session.done();
        if (left == 0 || (below(3) == 0 && members.empty() && &session != &sessions[1])) continue;
        slices.push_back(session.slice(std::min(left, most == 1000 ? left : 1 + below(most))));
        members.push_back(&session);
      }
      if (slices.empty()) continue;
      size_t rows = 0;
      for (const StepSlice& slice : slices) rows += slice.logit_offsets.size();
      const auto vocab = static_cast<size_t>(model_->vocab_size());
      std::vector<float> logits(rows * vocab);
      const Status status = model_->forward(slices, logits);
      ASSERT_TRUE(status.ok()) << status.error().message();
      size_t at = 0;
      for (size_t i = 0; i < slices.size(); ++i) {
        const size_t count = slices[i].logit_offsets.size() * vocab;
        members[i]->take(std::span<const float>(logits).subspan(at, count));
        at += count;
      }
    }
    for (int i = 0; i < 2; ++i) {
      sessions[i].finish();
      EXPECT_EQ(sessions[i].reading().windows.size(), prompts[i].targets.size());
      expect_equal(sessions[i].reading(), whole[i]);
    }
  }
}

TEST_P(ForwardRows, AReplayOverKeptEntriesGivesTheBitsOfAColdRun) {
  const int64_t rows = model_->replay_rows();
  const int64_t kept = (std::min<int64_t>(rows + 100, 900) + 63) / 64 * 64;
  Prompt prompt = make_prompt(random_, *model_, kept + 40);
  prompt.targets = {kept, kept + 40};
  Session cold(*model_, prompt, true);
  cold.open();
  while (cold.done() < cold.end()) cold.step(std::min(cold.end() - cold.done(), 1 + below(400)));
  std::vector<PageId> blocks;
  for (int64_t block = 0; block < kept / 64; ++block) {
    blocks.push_back(model_->page_at(cold.id(), PageKind::block, block));
    model_->pages().retain(PageKind::block, blocks.back());
  }
  cold.finish();
  SequenceStart start;
  start.tokens = std::span(prompt.tokens).first(static_cast<size_t>(kept));
  start.blocks = blocks;
  start.length = std::max<int64_t>(0, kept - rows);
  const Prompt other_prompt = make_prompt(random_, *model_, 200);
  const Reading other_cold = run_whole(*model_, other_prompt);
  Session warm(*model_, prompt, true), other(*model_, other_prompt, true);
  warm.open(start);
  other.open();
  while (warm.done() < kept) {
    // A normal slice behind a replay in the same step.
    std::vector<StepSlice> slices{warm.slice(std::min(kept - warm.done(), 1 + below(400)), kept)};
    if (other.done() < other.end())
      slices.push_back(other.slice(std::min(other.end() - other.done(), 1 + below(100))));
    std::vector<float> logits(slices.back().logit_offsets.size() * static_cast<size_t>(model_->vocab_size()));
    const Status status = model_->forward(slices, logits);
    ASSERT_TRUE(status.ok()) << status.error().message();
    warm.take({});
    if (slices.size() == 2) other.take(logits);
  }
  while (other.done() < other.end()) other.step(other.end() - other.done());
  other.finish();
  while (warm.done() < warm.end()) warm.step(1 + below(warm.end() - warm.done()));
  warm.finish();
  EXPECT_EQ(warm.reading().windows.size(), 2u);
  expect_equal(warm.reading(), cold.reading());
  expect_equal(other.reading(), other_cold);
  for (const PageId block : blocks) model_->pages().release(PageKind::block, block);
}

TEST_P(ForwardRows, WindowsThatNoTargetAskedForAreMissedAloud) {
  const Prompt prompt = make_prompt(random_, *model_, 600);
  Session session(*model_, prompt, true);
  session.open();
  const int64_t far = 20'000;
  StepSlice slice;
  slice.sequence = session.id();
  slice.tokens = std::span(prompt.tokens).first(300);
  slice.window_targets = std::span(&far, 1);
  ASSERT_TRUE(model_->forward(std::span(&slice, 1), {}).ok());
  slice.tokens = std::span(prompt.tokens).subspan(300, 1);
  slice.window_targets = {};
  const Status status = model_->forward(std::span(&slice, 1), {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::internal);
  model_->close_sequence(session.id());
}

TEST_P(ForwardRows, ATrimDoesNotDependOnChunksAndIsExactForShortPrompts) {
  const Prompt prompt = make_prompt(random_, *model_, 500);
  Prompt ends = prompt;
  ends.targets = {500};
  std::vector<Reading> readings;
  for (const int64_t most : {int64_t{500}, int64_t{120}, int64_t{33}}) {
    Session session(*model_, ends, true);
    SequenceStart start;
    start.trim_rows = 48;
    session.open(start);
    while (session.done() < 500)
      session.step(std::min(500 - session.done(), most == 500 ? most : 1 + below(most)));
    session.finish();
    readings.push_back(session.reading());
    readings.back().windows.clear();  // older records than the trim keeps are undefined
  }
  expect_equal(readings[1], readings[0]);
  expect_equal(readings[2], readings[0]);
  const Reading exact = run_whole(*model_, ends);
  EXPECT_TRUE(readings[0].blocks == exact.blocks) << "a trim changes no compressed entry of the prompt";
  EXPECT_FALSE(readings[0].logits == exact.logits) << "nothing was trimmed";

  Prompt brief = ends;
  brief.tokens.resize(48);
  brief.targets = {48};
  brief.logit_rows = {47};
  Session session(*model_, brief, true);
  SequenceStart start;
  start.trim_rows = 48;
  session.open(start);
  session.step(48);
  session.finish();
  expect_equal(session.reading(), run_whole(*model_, brief));
}

/// A checkpoint whose reads fail while `is_broken`.
class FailingSource final : public format::TensorSource {
 public:
  explicit FailingSource(const std::string& folder) : source_(open_source(folder)) {}

  const std::vector<format::TensorInfo>& tensors() const override { return source_->tensors(); }

  Status read(const format::TensorInfo& tensor, int64_t offset, std::span<std::byte> dst) const override {
    if (is_broken) return Error(Code::io, "the disk is gone");
    return source_->read(tensor, offset, dst);
  }

  Result<std::string> read_text(std::string_view file) const override { return source_->read_text(file); }

  std::string name() const override { return source_->name(); }

  std::atomic<bool> is_broken{false};

 private:
  std::unique_ptr<format::TensorSource> source_;
};

Setup tiny_a() {
  return {"tests/models/tiny-a", kernels::Numerics::reference};
}

TEST(ForwardEngram, AReadErrorFailsTheStepAndAfterItTheSameStepGivesTheRightBits) {
  const auto setup = tiny_a();
  const auto in_memory = load(setup);
  std::mt19937_64 random(11);
  const Prompt prompt = make_prompt(random, *in_memory, 150);
  const Reading want = run_whole(*in_memory, prompt);
  FailingSource source(setup.folder);
  const auto on_disk = load(setup, source, true);
  Session session(*on_disk, prompt, true);
  session.open();
  while (session.done() < session.end()) {
    source.is_broken = true;
    const StepSlice next = session.slice(std::min<int64_t>(50, session.end() - session.done()));
    std::vector<float> logits(next.logit_offsets.size() * static_cast<size_t>(on_disk->vocab_size()));
    const Status status = on_disk->forward(std::span(&next, 1), logits);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), Code::io);
    source.is_broken = false;
    session.step(std::min<int64_t>(50, session.end() - session.done()));
  }
  session.finish();
  expect_equal(session.reading(), want);
}

INSTANTIATE_TEST_SUITE_P(All, ForwardRows,
                         testing::Values(Setup{"tests/models/tiny-a", kernels::Numerics::reference},
                                         Setup{"tests/models/tiny-b", kernels::Numerics::reference},
                                         Setup{"tests/models/tiny-b", kernels::Numerics::exact},
                                         Setup{"tests/models/tiny-c", kernels::Numerics::exact},
                                         Setup{"models/mini", kernels::Numerics::reference}),
                         [](const auto& setup) {
                           std::string name =
                               setup.param.folder +
                               (setup.param.numerics == kernels::Numerics::exact ? "_exact" : "_reference");
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace rorqual::model
