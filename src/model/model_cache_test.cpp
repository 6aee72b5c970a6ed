// SPDX-License-Identifier: Apache-2.0
// The caches of a real (small) model: sequences that share pages, are swapped out and in, take back rejected
// drafts or draft in company give the bits of a sequence that runs alone from its first token on.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "format/tensor_source.h"
#include "model/model.h"

namespace rorqual::model {
namespace {

constexpr uint32_t kSeed = 5050;

struct Setup {
  std::string folder;
  kernels::Numerics numerics = kernels::Numerics::reference;
};

std::unique_ptr<Model> load(const Setup& setup, ModelOptions options = {}) {
  auto source = format::open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/tests/models/" + setup.folder);
  EXPECT_TRUE(source.ok()) << source.error().message();
  const auto text = (*source)->read_text("config.json");
  EXPECT_TRUE(text.ok());
  const auto config = parse_config(*text);
  EXPECT_TRUE(config.ok());
  std::vector<int32_t> map;  // any map with all classes will do
  for (int64_t i = 0; !config->engram_layer_ids.empty() && i < config->vocab_size; ++i) {
    map.push_back(static_cast<int32_t>(i % config->engram_compressed_vocab_size));
  }
  options.numerics = setup.numerics;
  options.num_threads = 2;
  options.with_drafts = config->num_stages() > 0;
  options.max_model_len = 512;
  auto model = Model::load(**source, *config, map, options);
  EXPECT_TRUE(model.ok()) << model.error().message();
  return *std::move(model);
}

std::vector<int32_t> random_tokens(uint32_t seed, int64_t count, const Model& model) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.vocab_size()));
  return tokens;
}

/// One row of logits per token, as bits.
using Rows = std::vector<std::vector<uint32_t>>;

/// Runs the next `count` of `tokens` (those behind the sequence's length) as one step.
Rows run(Model& model, SequenceId sequence, const std::vector<int32_t>& tokens, int64_t count,
         std::vector<int64_t> targets = {}) {
  const int64_t begin = model.sequence_length(sequence);
  EXPECT_TRUE(model.reserve(sequence, begin + count));
  std::vector<int32_t> offsets(static_cast<size_t>(count));
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int32_t>(i);
  StepSlice slice;
  slice.sequence = sequence;
  slice.tokens = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  slice.logit_offsets = offsets;
  slice.window_targets = targets;
  std::vector<float> logits(static_cast<size_t>(count * model.vocab_size()));
  const Status status = model.forward(std::span(&slice, 1), logits);
  EXPECT_TRUE(status.ok()) << status.error().message();
  Rows rows;
  for (int64_t i = 0; i < count; ++i) {
    const float* row = logits.data() + i * model.vocab_size();
    rows.emplace_back();
    for (int64_t v = 0; v < model.vocab_size(); ++v) rows.back().push_back(std::bit_cast<uint32_t>(row[v]));
  }
  return rows;
}

void append(Rows& to, Rows rows) {
  for (auto& row : rows) to.push_back(std::move(row));
}

/// All rows of a sequence that runs alone, in one step.
Rows run_cold(Model& model, const std::vector<int32_t>& tokens) {
  const auto sequence = model.open_sequence();
  EXPECT_TRUE(sequence.ok());
  Rows rows = run(model, *sequence, tokens, static_cast<int64_t>(tokens.size()));
  model.close_sequence(*sequence);
  return rows;
}

/// `got` are the rows of positions [begin, …).
void expect_rows(const Rows& got, const Rows& cold, int64_t begin, const std::string& what) {
  ASSERT_LE(begin + static_cast<int64_t>(got.size()), static_cast<int64_t>(cold.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i] == cold[static_cast<size_t>(begin) + i])
        << what << ": logits of position " << begin + static_cast<int64_t>(i) << " differ";
  }
}

void expect_all_free(Model& model) {
  for (const PageKind kind : {PageKind::block, PageKind::window}) {
    EXPECT_EQ(model.pages().pages_free(kind), model.pages().pages_total(kind));
  }
}

std::vector<std::byte> content(const PageStore& pages, PageKind kind, PageId page) {
  std::vector<std::byte> bytes(static_cast<size_t>(pages.page_bytes(kind)));
  pages.read(kind, page, bytes);
  return bytes;
}

struct Draftings {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> confidence;
  bool operator==(const Draftings&) const = default;
};

/// Drafts of several sequences in one pass, cut into what belongs to each.
std::vector<Draftings> draft(Model& model, const std::vector<DraftSlice>& slices, int64_t count) {
  const auto wanted = slices.size() * static_cast<size_t>(count);
  std::vector<int32_t> tokens(wanted);
  std::vector<float> confidence(wanted);
  const Status status = model.draft(slices, count, tokens, confidence);
  EXPECT_TRUE(status.ok()) << status.error().message();
  std::vector<Draftings> out(slices.size());
  for (size_t i = 0; i < wanted; ++i) {
    Draftings& mine = out[i / static_cast<size_t>(count)];
    mine.tokens.push_back(tokens[i]);
    mine.confidence.push_back(std::bit_cast<uint32_t>(confidence[i]));
  }
  return out;
}

class ModelCache : public testing::TestWithParam<Setup> {};

// ------------------------------------------------------------------------------------------------ sharing
/// Pages that somebody keeps after the sequence that wrote them is gone.
struct Kept {
  std::vector<PageId> blocks, windows;

  void release(PageStore& pages) const {
    for (const PageId page : blocks) pages.release(PageKind::block, page);
    for (const PageId page : windows) pages.release(PageKind::window, page);
  }
};

/// Runs `tokens` with a target in the middle of a step, and keeps what a prefix cache would.
Kept keep_prefix(Model& model, const std::vector<int32_t>& tokens, int64_t length) {
  Kept kept;
  const SequenceId sequence = *model.open_sequence();
  run(model, sequence, tokens, length - 50);
  run(model, sequence, tokens, 50 + static_cast<int64_t>(tokens.size()) - length, {length});
  for (int64_t page = 0; page < length / kPageTokens; ++page) {
    kept.blocks.push_back(model.page_at(sequence, PageKind::block, page));
  }
  for (int64_t page = length / kPageTokens - model.window_pages(); page < length / kPageTokens; ++page) {
    kept.windows.push_back(model.page_at(sequence, PageKind::window, page));
  }
  for (const PageId page : kept.blocks) {
    EXPECT_NE(page, kNoPage);
    model.pages().retain(PageKind::block, page);
  }
  for (const PageId page : kept.windows) {
    EXPECT_NE(page, kNoPage);
    model.pages().retain(PageKind::window, page);
  }
  model.close_sequence(sequence);
  return kept;
}

TEST_P(ModelCache, TwoSequencesOnOnePrefixGiveTheColdBitsAndWriteNoSharedPage) {
  ModelOptions options;
  options.prefix_blocks = 8;
  options.prefix_windows = 8;
  const auto model = load(GetParam(), options);
  constexpr int64_t kShared = 4 * kPageTokens, kLength = 480;
  const auto first = random_tokens(kSeed, kLength, *model);
  auto second = first;
  const auto tail = random_tokens(kSeed + 1, kLength, *model);
  std::copy(tail.begin() + kShared, tail.end(), second.begin() + kShared);
  const Rows cold_first = run_cold(*model, std::vector(first.begin(), first.begin() + 256 + 100));
  const Rows cold_second = run_cold(*model, std::vector(second.begin(), second.begin() + 256 + 100));

  const Kept kept = keep_prefix(*model, std::vector(first.begin(), first.begin() + kShared + 200), kShared);
  std::vector<std::vector<std::byte>> before;
  for (const PageId page : kept.blocks) before.push_back(content(model->pages(), PageKind::block, page));
  for (const PageId page : kept.windows) before.push_back(content(model->pages(), PageKind::window, page));

  SequenceStart start;
  start.tokens = std::span(first).first(kShared);
  start.blocks = kept.blocks;
  start.windows = kept.windows;
  start.length = kShared;
  const auto a = model->open_sequence(start), b = model->open_sequence(start);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(model->sequence_length(*a), kShared);
  if (model->max_drafts() > 0) {
    const SequenceId alone = *model->open_sequence();
    run(*model, alone, first, kShared);
    const int32_t token = first[kShared];
    EXPECT_TRUE(draft(*model, {{*a, token}}, 7) == draft(*model, {{alone, token}}, 7))
        << "drafts at the prefix's end";
    model->close_sequence(alone);
  }
  for (const int64_t count : {1, 7, 64, 9}) {
    const int64_t at = model->sequence_length(*a);
    expect_rows(run(*model, *a, first, count), cold_first, at, "the same continuation");
    expect_rows(run(*model, *b, second, count), cold_second, at, "another continuation");
  }
  std::vector<std::vector<std::byte>> after;
  for (const PageId page : kept.blocks) after.push_back(content(model->pages(), PageKind::block, page));
  for (const PageId page : kept.windows) after.push_back(content(model->pages(), PageKind::window, page));
  EXPECT_TRUE(before == after) << "a shared page was written";
  model->close_sequence(*a);
  model->close_sequence(*b);
  kept.release(model->pages());
  expect_all_free(*model);
}

TEST_P(ModelCache, RunningSequencesGetTheirWindowsWhateverOthersHold) {
  ModelOptions options;
  options.max_sequences = 3;
  options.max_step_rows = 256;
  options.prefix_windows = 2;
  const auto model = load(GetParam(), options);
  std::vector<PageId> taken;  // a prefix cache that takes all it can get
  while (const auto page = model->pages().allocate(PageKind::window)) taken.push_back(*page);
  EXPECT_EQ(taken.size(), 2u);
  std::mt19937 random(kSeed);
  const auto tokens = random_tokens(kSeed, 500, *model);
  std::vector<SequenceId> open;
  for (int i = 0; i < 3; ++i) open.push_back(*model->open_sequence());
  for (int step = 0; step < 30; ++step) {
    const SequenceId sequence = open[random() % 3];
    const int64_t left = 500 - model->sequence_length(sequence);
    const int64_t count =
        std::min<int64_t>(left, random() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 250));
    if (count == 0) continue;
    std::vector<int64_t> targets;
    for (int64_t page = kPageTokens; page < 500; page += kPageTokens) targets.push_back(page);
    EXPECT_EQ(run(*model, sequence, tokens, count, targets).size(), static_cast<size_t>(count))
        << "seed " << kSeed;
  }
  for (const SequenceId sequence : open) model->close_sequence(sequence);
  EXPECT_FALSE(model->pages().allocate(PageKind::window)) << "what is left is promised again, to the page";
  for (const PageId page : taken) model->pages().release(PageKind::window, page);
  expect_all_free(*model);
}

// ------------------------------------------------------------------------------------------------ images
TEST_P(ModelCache, ImagesContinueWithTheSameBitsAtAnyLength) {
  const auto model = load(GetParam());
  constexpr int64_t kTail = 12;
  for (const int64_t length : {1, 2, 63, 64, 65, 127, 201}) {
    const auto tokens = random_tokens(kSeed + static_cast<uint32_t>(length), length + kTail, *model);
    const Rows cold = run_cold(*model, tokens);
    const SequenceId sequence = *model->open_sequence();
    run(*model, sequence, tokens, length);
    const DraftSlice slice{sequence, tokens[static_cast<size_t>(length)]};
    const bool has_drafts = model->max_drafts() > 0;
    const auto drafts = has_drafts ? draft(*model, {slice}, 5) : std::vector<Draftings>{};
    std::vector<std::byte> image(static_cast<size_t>(model->image_bytes(sequence)));
    model->save_image(sequence, image);
    model->close_sequence(sequence);
    expect_all_free(*model);
    // Another sequence uses the pages meanwhile.
    run_cold(*model, random_tokens(kSeed, 250, *model));

    const auto again = model->open_image(image);
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(model->sequence_length(*again), length);
    if (has_drafts) {
      EXPECT_TRUE(draft(*model, {{*again, slice.token}}, 5) == drafts) << "at " << length;
    }
    expect_rows(run(*model, *again, tokens, 3), cold, length, "after the image");
    model->truncate(*again, length + 1);
    expect_rows(run(*model, *again, tokens, kTail - 1), cold, length + 1, "after truncation");
    model->close_sequence(*again);
  }
  expect_all_free(*model);
}

TEST_P(ModelCache, AnImageThatFindsNoRoomChangesNothing) {
  ModelOptions options;
  options.max_sequences = 2;
  options.num_blocks = 4;
  const auto model = load(GetParam(), options);
  const auto tokens = random_tokens(kSeed, 200, *model);
  const SequenceId sequence = *model->open_sequence();
  run(*model, sequence, tokens, 130);
  std::vector<std::byte> image(static_cast<size_t>(model->image_bytes(sequence)));
  model->save_image(sequence, image);
  model->close_sequence(sequence);
  const SequenceId other = *model->open_sequence();
  ASSERT_TRUE(model->reserve(other, 2 * kPageTokens));
  const auto refused = model->open_image(image);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_EQ(model->pages().pages_free(PageKind::block), 2);
  model->close_sequence(other);
  EXPECT_TRUE(model->open_image(image).ok());
}

// ------------------------------------------------------------------------------------------------ truncation
TEST_P(ModelCache, RejectedDraftsLeaveNoTrace) {
  const auto model = load(GetParam());
  for (int64_t rejected = 0; rejected <= 8; ++rejected) {
    const auto tokens = random_tokens(kSeed + static_cast<uint32_t>(rejected), 180, *model);
    const auto wrong = random_tokens(kSeed + 100, 200, *model);
    const Rows cold = run_cold(*model, tokens);
    const SequenceId sequence = *model->open_sequence();
    Rows rows = run(*model, sequence, tokens, 100 + rejected);
    for (int64_t accepted = 0; static_cast<int64_t>(rows.size()) < 170; accepted = (accepted + 1) % 4) {
      const int64_t begin = model->sequence_length(sequence);
      auto guess = tokens;  // 1 + accepted right tokens, then wrong ones
      guess.resize(200, 0);
      for (int64_t i = 0; i < rejected; ++i) {
        const auto at = static_cast<size_t>(begin + 1 + accepted + i);
        guess[at] = wrong[at];
      }
      Rows step = run(*model, sequence, guess, 1 + accepted + rejected);
      step.resize(static_cast<size_t>(1 + accepted));
      append(rows, std::move(step));
      model->truncate(sequence, begin + 1 + accepted);
      EXPECT_EQ(model->sequence_length(sequence), begin + 1 + accepted);
    }
    expect_rows(rows, cold, 0, std::to_string(rejected) + " rejected drafts");
    model->close_sequence(sequence);
  }
  expect_all_free(*model);
}

// ------------------------------------------------------------------------------------------------ drafts
TEST_P(ModelCache, DraftsOfASequenceDoNotDependOnItsCompany) {
  const auto model = load(GetParam());
  if (model->max_drafts() == 0) GTEST_SKIP() << "the model has no draft stages";
  std::vector<DraftSlice> slices;
  const std::vector<int64_t> lengths = {1, 5, 64, 129, 200, 131, 63};
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto tokens = random_tokens(kSeed + static_cast<uint32_t>(i), lengths[i] + 1, *model);
    const SequenceId sequence = *model->open_sequence();
    run(*model, sequence, tokens, lengths[i]);
    slices.push_back({sequence, tokens.back()});
  }
  std::mt19937 random(kSeed);
  for (int64_t count = 1; count <= model->max_drafts(); ++count) {
    std::vector<Draftings> alone;
    for (const DraftSlice& slice : slices) alone.push_back(draft(*model, {slice}, count)[0]);
    std::vector<size_t> order(slices.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<DraftSlice> shuffled;
    for (const size_t i : order) shuffled.push_back(slices[i]);
    const auto together = draft(*model, shuffled, count);
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_TRUE(together[i] == alone[order[i]]) << "sequence " << order[i] << ", " << count << " drafts";
    }
  }
  // A block is as wide as it was trained however few drafts are wanted.
  const auto one = draft(*model, slices, 1), four = draft(*model, slices, 4);
  for (size_t i = 0; i < slices.size(); ++i) EXPECT_EQ(one[i].tokens[0], four[i].tokens[0]);
}

INSTANTIATE_TEST_SUITE_P(All, ModelCache,
                         testing::Values(Setup{"tiny-a"}, Setup{"tiny-a", kernels::Numerics::exact},
                                         Setup{"tiny-b"}, Setup{"tiny-c"}),
                         [](const testing::TestParamInfo<Setup>& setup) {
                           std::string name = setup.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (setup.param.numerics == kernels::Numerics::exact ? "_exact"
                                                                                           : "_reference");
                         });

}  // namespace
}  // namespace rorqual::model
