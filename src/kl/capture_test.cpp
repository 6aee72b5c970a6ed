// SPDX-License-Identifier: Apache-2.0
// Captures over the local engine with a fake model, and over engines that leave rows out, shift them or die.
#include "kl/capture.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "kl/capture_parts.h"
#include "kl/full_logits.h"
#include "runtime/fake_runner.h"
#include "runtime/local_engine.h"
#include "runtime/logprobs.h"

namespace rorqual::kl {
namespace {

using runtime::FakeRunner;
using runtime::FakeRunnerOptions;
using runtime::PositionLogprobs;

struct FakeSetup {
  FakeRunnerOptions runner{};
  int64_t streams = 1, step_tokens = 64, logit_rows = 16;
};

std::unique_ptr<runtime::Engine> fake_engine(const FakeSetup& setup) {
  runtime::EngineOptions options;
  options.max_num_seqs = setup.streams;
  options.max_num_batched_tokens = setup.step_tokens;
  options.max_logit_rows = setup.logit_rows;
  options.max_logprobs = -1;
  runtime::EngineInfo info;
  info.model_name = "fake";
  auto engine = make_local_engine(std::make_unique<FakeRunner>(setup.runner), info, options);
  EXPECT_TRUE(engine.ok());
  return *std::move(engine);
}

Corpus numbers(int64_t count, int64_t context, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count * (context - 1)));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 31 + 7) % static_cast<size_t>(vocab));
  auto corpus = cut_ids(0, ids, "numbers", "text", {.context = context, .max_windows = count});
  EXPECT_TRUE(corpus.ok());
  return *std::move(corpus);
}

std::string temporary(const char* name) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + "capture_" + test->name() + "_" + name;
  std::filesystem::remove_all(path);
  return path;
}

void expect_same(const Dump& a, const Dump& b) {
  EXPECT_EQ(a.top_ids, b.top_ids);
  EXPECT_EQ(a.top_logprobs, b.top_logprobs);
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.token_logprob, b.token_logprob);
  EXPECT_EQ(a.window_rows, b.window_rows);
  EXPECT_EQ(a.window_ids, b.window_ids);
  EXPECT_EQ(a.info.windows_sha256, b.info.windows_sha256);
}

TEST(Captures, HoldTheModelsRowsInTheProtocolsOrder) {
  const Corpus corpus = numbers(3, 20, 61);
  const auto engine = fake_engine({});
  const auto dump = capture(*engine, corpus, {.top_k = 5});
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ(dump->num_rows(), 3 * 10);
  EXPECT_EQ(dump->info.scored_positions, 30);
  EXPECT_EQ(dump->info.first_scored, 10);
  EXPECT_EQ(dump->info.top_k, 5);
  EXPECT_EQ(dump->window_rows, (std::vector<int64_t>{0, 10, 20, 30}));
  const FakeRunner model({});
  for (size_t w = 0; w < 3; ++w) {
    for (size_t i = 0; i < 10; ++i) {
      const auto& ids = corpus.windows[w].ids;
      const auto logits = model.logits_after(std::span(ids).first(10 + i));
      runtime::LogprobRequest wanted;
      wanted.chosen = ids[10 + i];
      wanted.top_k = 5;
      const auto row = position_logprobs(logits, wanted);
      const size_t at = w * 10 + i;
      EXPECT_EQ(dump->token[at], ids[10 + i]);
      EXPECT_EQ(dump->token_logprob[at], row.chosen.logprob);
      for (size_t k = 0; k < 5; ++k) EXPECT_EQ(dump->top_logprobs[at * 5 + k], row.top[k].logprob);
      for (size_t k = 1; k < 5; ++k) {
        const auto pair = [&](size_t j) {
          return std::pair(dump->top_logprobs[at * 5 + j], dump->top_ids[at * 5 + j]);
        };
        EXPECT_GT(pair(k - 1), pair(k));
      }
    }
  }
}

TEST(Captures, AreTheSameForAnyNumberOfStreamsChunksAndACacheThatIsTooSmall) {
  const Corpus corpus = numbers(9, 24, 61);
  const auto alone = capture(*fake_engine({}), corpus, {.top_k = 7});
  ASSERT_TRUE(alone.ok());
  for (const int64_t streams : {2, 8, 30}) {
    const auto engine =
        fake_engine({.runner = {.blocks = 14}, .streams = 8, .step_tokens = 13, .logit_rows = 9});
    const auto many = capture(*engine, corpus, {.top_k = 7, .streams = streams});
    ASSERT_TRUE(many.ok()) << many.error().message();
    expect_same(*alone, *many);
  }
}

TEST(Captures, LowerTopKToTheVocabularyAndReportProgress) {
  const Corpus corpus = numbers(2, 12, 61);
  int64_t last = 0;
  const auto dump = capture(*fake_engine({}), corpus, {.top_k = 512}, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 12);
    last = done;
  });
  ASSERT_TRUE(dump.ok());
  EXPECT_EQ(dump->info.top_k, 61);
  EXPECT_EQ(last, 12);
  for (size_t i = 0; i < 12; ++i) {
    double sum = 0;
    for (size_t k = 0; k < 61; ++k) sum += std::exp(static_cast<double>(dump->top_logprobs[i * 61 + k]));
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

TEST(Captures, RefuseWindowsLongerThanTheContext) {
  const auto engine = fake_engine({.runner = {.max_model_len = 16}});
  const auto dump = capture(*engine, numbers(1, 20, 61), {});
  ASSERT_FALSE(dump.ok());
  EXPECT_EQ(dump.error().code(), Code::invalid_argument);
  EXPECT_NE(dump.error().message().find("20"), std::string::npos);
}

TEST(Captures, OfPanelsHaveWindowsOfAnyLength) {
  Corpus corpus;
  corpus.name = "panel";
  corpus.windows = {{{0, 3, 4, 5}, 2}, {{0, 9}, 1}, {{0, 1, 2, 3, 4, 5, 6}, 3}};
  const auto dump = capture(*fake_engine({.streams = 2}), corpus, {.top_k = 3, .streams = 2});
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ(dump->window_rows, (std::vector<int64_t>{0, 2, 3, 7}));
  EXPECT_EQ(dump->token, (std::vector<int32_t>{4, 5, 9, 3, 4, 5, 6}));
  EXPECT_EQ(dump->info.context, 0);
  EXPECT_EQ(dump->info.first_scored, 0);
}

// ---- engines that do not keep the contract

/// Answers each request at once, in the calling thread, with rows that `make` invents.
class RowEngine final : public runtime::Engine {
 public:
  using Make = std::function<void(const runtime::Request&, runtime::TokenSink&)>;

  explicit RowEngine(Make make) : make_(std::move(make)) {
    info_.model_name = "rows";
    info_.vocab_size = 100;
    info_.max_model_len = 1000;
  }

  const runtime::EngineInfo& info() const override { return info_; }

  Result<runtime::RequestId> submit(runtime::Request request,
                                    std::shared_ptr<runtime::TokenSink> sink) override {
    ++num_requests;
    make_(request, *sink);
    runtime::FinishInfo end;
    end.reason = runtime::FinishReason::length;
    if (num_requests == dies_at) {
      end.reason = runtime::FinishReason::error;
      end.error = Error(Code::unavailable, "the server went away");
    }
    sink->on_finish(end);
    return static_cast<runtime::RequestId>(num_requests);
  }

  void cancel(runtime::RequestId) override {}

  runtime::EngineStats stats() const override { return {}; }

  bool drain(std::chrono::milliseconds) override { return true; }

  int num_requests = 0;
  int dies_at = 0;

 private:
  Make make_;
  runtime::EngineInfo info_;
};

PositionLogprobs row_of(int32_t token, std::vector<std::pair<int32_t, float>> top, float own) {
  PositionLogprobs row;
  row.chosen = {token, own, 1};
  for (const auto& [id, logprob] : top) row.top.push_back({id, logprob, 0});
  return row;
}

/// Rows of the right tokens, the position's value in the numbers.
void plain_rows(const runtime::Request& request, runtime::TokenSink& sink) {
  for (auto i = static_cast<size_t>(request.sampling.prompt_logprobs_begin); i < request.prompt.size(); ++i) {
    const float x = -0.01f * static_cast<float>(i);
    sink.on_prompt_row(static_cast<int64_t>(i),
                       row_of(request.prompt[i], {{request.prompt[i], x}, {98, -5}}, x), {});
  }
}

TEST(Captures, SayWhereScoringStartsOnlyIfAllWindowsAgree) {
  const auto first_scored = [](int64_t context, const std::vector<Window>& windows) {
    Corpus corpus;
    corpus.name = "panel";
    corpus.context = context;
    corpus.windows = windows;
    const auto dump = capture(*fake_engine({}), corpus, {.top_k = 5});
    EXPECT_TRUE(dump.ok());
    return dump.ok() ? dump->info.first_scored : -1;
  };
  EXPECT_EQ(first_scored(0, {{{1, 2, 3}, 1}, {{4, 5, 6, 7, 8}, 1}}), 1);  // lengths differ
  EXPECT_EQ(first_scored(4, {{{1, 2, 3, 4}, 1}, {{5, 6, 7, 8}, 2}}), 0);
  EXPECT_EQ(first_scored(0, {{{1, 2, 3}, 1}, {{5, 6, 7, 8}, 2}}), 0);
}

TEST(Captures, SortEqualValuesByTheLargerIdAndKeepTheTokensOwnValue) {
  RowEngine engine([](const runtime::Request& request, runtime::TokenSink& sink) {
    for (size_t i = 4; i < 8; ++i) {
      sink.on_prompt_row(static_cast<int64_t>(i),
                         row_of(request.prompt[i], {{60, -1}, {70, -1}, {65, -2}}, -9), {});
    }
  });
  const auto dump = capture(engine, numbers(1, 8, 50), {.top_k = 3});
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ((std::vector<int32_t>(dump->top_ids.begin(), dump->top_ids.begin() + 3)),
            (std::vector<int32_t>{70, 60, 65}));
  EXPECT_EQ(dump->token_logprob[0], -9);
}

TEST(Captures, FailWhenACacheLeavesPositionsOut) {
  for (const int64_t missing : {4, 6, 7}) {  // the first, one within, the last
    RowEngine engine([=](const runtime::Request& request, runtime::TokenSink& sink) {
      for (int64_t i = 4; i < 8; ++i) {
        const int32_t token = request.prompt[static_cast<size_t>(i)];
        if (i != missing) sink.on_prompt_row(i, row_of(token, {{token, -1}}, -1), {});
      }
    });
    const auto dump = capture(engine, numbers(2, 8, 50), {.top_k = 3});
    ASSERT_FALSE(dump.ok()) << missing;
    EXPECT_EQ(dump.error().code(), Code::corrupt_data);
    EXPECT_NE(dump.error().hint().find("prefix cache"), std::string::npos) << dump.error().hint();
  }
}

TEST(Captures, FailWhenRowsAreShiftedByOnePosition) {
  for (const int shift : {-1, 1}) {
    RowEngine engine([=](const runtime::Request& request, runtime::TokenSink& sink) {
      for (int64_t i = 4; i < 8; ++i) {
        const int32_t token = request.prompt[static_cast<size_t>(std::min<int64_t>(i + shift, 7))];
        sink.on_prompt_row(i, row_of(token, {{token, -1}}, -1), {});
      }
    });
    const auto dump = capture(engine, numbers(1, 8, 50), {.top_k = 3});
    ASSERT_FALSE(dump.ok()) << shift;
    EXPECT_EQ(dump.error().code(), Code::corrupt_data);
    EXPECT_NE(dump.error().message().find("shifted"), std::string::npos) << dump.error().message();
  }
}

TEST(Captures, RefuseValuesThatAreNoLogProbabilities) {
  const std::vector<std::pair<int32_t, float>> bad = {{5, 0.5f}, {5, NAN}, {100, -1.0f}, {-1, -1.0f}};
  for (const auto& entry : bad) {
    RowEngine engine([=](const runtime::Request& request, runtime::TokenSink& sink) {
      for (size_t i = 4; i < 8; ++i)
        sink.on_prompt_row(static_cast<int64_t>(i), row_of(request.prompt[i], {entry}, -1), {});
    });
    const auto dump = capture(engine, numbers(1, 8, 50), {.top_k = 3});
    ASSERT_FALSE(dump.ok()) << entry.first << " " << entry.second;
    EXPECT_EQ(dump.error().code(), Code::corrupt_data);
  }
}

TEST(Captures, WithLogitsNeedAnEngineThatHasThem) {
  RowEngine engine(plain_rows);
  const std::string path = temporary("logits.safetensors");
  const auto dump = capture(engine, numbers(1, 8, 50), {.top_k = 3, .logits_path = path});
  ASSERT_FALSE(dump.ok());
  EXPECT_EQ(dump.error().code(), Code::unsupported);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Captures, WriteFullLogitsInOrderWhateverTheStreams) {
  const Corpus corpus = numbers(3, 12, 61);
  const std::string path = temporary("logits.safetensors");
  const auto dump =
      capture(*fake_engine({.streams = 8}), corpus, {.top_k = 3, .streams = 8, .logits_path = path});
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ(dump->logits_path, path);
  const auto rows = open_logits(*dump);
  ASSERT_TRUE(rows.ok()) << rows.error().message();
  EXPECT_EQ((*rows)->num_rows(), 18);
  const FakeRunner model({});
  std::vector<float> row(61);
  for (size_t i = 0; i < 18; ++i) {
    ASSERT_TRUE((*rows)->read(static_cast<int64_t>(i), row).ok());
    EXPECT_EQ(row, model.logits_after(std::span(corpus.windows[i / 6].ids).first(6 + i % 6))) << i;
  }
  std::filesystem::remove(path);
}

// ---- parts

TEST(CaptureParts, LetAKilledCaptureGoOnWithTheSameResult) {
  const Corpus corpus = numbers(5, 8, 50);
  RowEngine whole_engine(plain_rows);
  const auto whole = capture(whole_engine, corpus, {.top_k = 2});
  ASSERT_TRUE(whole.ok());
  const std::string parts = temporary("x.npz.part");
  const CaptureOptions options{.top_k = 2, .parts_path = parts, .parts_identity = "model 1"};
  RowEngine dying(plain_rows);
  dying.dies_at = 4;
  EXPECT_EQ(capture(dying, corpus, options).error().code(), Code::unavailable);
  RowEngine second(plain_rows);
  int64_t first_done = -1;
  const auto resumed = capture(second, corpus, options, [&](int64_t done, int64_t) {
    if (first_done < 0) first_done = done;
  });
  ASSERT_TRUE(resumed.ok()) << resumed.error().message();
  EXPECT_EQ(second.num_requests, 2);
  EXPECT_GE(first_done, 3 * 4);
  expect_same(*whole, *resumed);
  remove_parts(parts);
  EXPECT_FALSE(std::filesystem::exists(parts));
}

TEST(CaptureParts, AreNotTakenFromAnotherCaptureUnlessDiscarded) {
  const Corpus corpus = numbers(2, 8, 50);
  const std::string parts = temporary("x.npz.part");
  CaptureOptions options{.top_k = 2, .parts_path = parts, .parts_identity = "model 1"};
  RowEngine engine(plain_rows);
  ASSERT_TRUE(capture(engine, corpus, options).ok());
  CaptureOptions other_model = options;
  other_model.parts_identity = "model 2";
  CaptureOptions other_k = options;
  other_k.top_k = 1;
  for (const auto& other : {other_model, other_k}) {
    const auto refused = capture(engine, corpus, other);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), Code::invalid_argument);
    EXPECT_NE(refused.error().hint().find("--force"), std::string::npos);
  }
  engine.num_requests = 0;
  other_model.discards_parts = true;
  ASSERT_TRUE(capture(engine, corpus, other_model).ok());
  EXPECT_EQ(engine.num_requests, 2);
  remove_parts(parts);
}

TEST(CaptureParts, WithoutWindowsBelongToNobody) {
  const Corpus corpus = numbers(2, 8, 50);
  const std::string parts = temporary("x.npz.part");
  CaptureOptions options{.top_k = 2, .parts_path = parts, .parts_identity = "server without --max-logprobs"};
  RowEngine refusing(plain_rows);
  refusing.dies_at = 1;
  EXPECT_FALSE(capture(refusing, corpus, options).ok());
  ASSERT_TRUE(std::filesystem::exists(parts));
  options.parts_identity = "server with it";
  RowEngine engine(plain_rows);
  const auto dump = capture(engine, corpus, options);
  EXPECT_TRUE(dump.ok()) << dump.error().message();
  remove_parts(parts);
}

TEST(CaptureParts, HaveOneWriter) {
  const std::string parts = temporary("x.npz.part");
  {
    const auto first = CaptureParts::open(parts, "a", false);
    ASSERT_TRUE(first.ok()) << first.error().message();
    const auto second = CaptureParts::open(parts, "a", false);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code(), Code::io);
    EXPECT_FALSE(CaptureParts::open(parts, "b", true).ok());
  }
  EXPECT_TRUE(CaptureParts::open(parts, "b", true).ok());
  remove_parts(parts);
}

TEST(CaptureParts, ThatAreDamagedAreComputedAgain) {
  const Corpus corpus = numbers(3, 8, 50);
  const std::string parts = temporary("x.npz.part");
  const CaptureOptions options{.top_k = 2, .parts_path = parts};
  RowEngine engine(plain_rows);
  const auto whole = capture(engine, corpus, options);
  ASSERT_TRUE(whole.ok());
  std::filesystem::resize_file(parts + "/window-00001.safetensors", 100);
  engine.num_requests = 0;
  const auto again = capture(engine, corpus, options);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(engine.num_requests, 1);
  expect_same(*whole, *again);
  remove_parts(parts);
}

// ---- memory

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

/// One window of 4,096 tokens over the release's vocabulary, top 512: its logits are 1.06 GB, which must
/// never be there together. Kept are the dump's arrays (8.4 MB) and the engine's rows of one step (64 x 517
/// KB).
TEST(CaptureMemory, StaysFarBelowTheLogitsOfAWindow) {
  constexpr int64_t kVocab = 129280;
  constexpr int64_t kLogitRows = 64;
  const Corpus corpus = numbers(1, 4096, kVocab);
  const auto engine = fake_engine(
      {.runner = {.vocab_size = kVocab}, .streams = 1, .step_tokens = 512, .logit_rows = kLogitRows});
  const int64_t before = peak_bytes();
  const auto dump = capture(*engine, corpus, {.top_k = 512});
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ(dump->num_rows(), 2048);
  const int64_t extra = peak_bytes() - before;
  const int64_t bound = kLogitRows * kVocab * 4 + 2048 * 512 * 8 + (int64_t{24} << 20);
  RecordProperty("extra_bytes", std::to_string(extra));
  EXPECT_LT(extra, bound);
}

}  // namespace
}  // namespace rorqual::kl
