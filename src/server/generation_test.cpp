// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <stdexcept>

namespace rorqual::server {
namespace {

using ::testing::ElementsAre;

/// Keeps the sinks, so that the test plays the engine's thread.
class FakeEngine : public runtime::Engine {
 public:
  const runtime::EngineInfo& info() const override { return info_; }

  Result<runtime::RequestId> submit(runtime::Request, std::shared_ptr<runtime::TokenSink> sink) override {
    if (sinks.size() == refuse_after) return Error(Code::unavailable, "full");
    sinks.push_back(std::move(sink));
    return runtime::RequestId{sinks.size()};
  }

  void cancel(runtime::RequestId id) override { cancelled.push_back(id); }

  runtime::EngineStats stats() const override { return {}; }

  bool drain(std::chrono::milliseconds) override { return true; }

  std::vector<std::shared_ptr<runtime::TokenSink>> sinks;
  std::vector<runtime::RequestId> cancelled;
  size_t refuse_after = 100;

 private:
  runtime::EngineInfo info_;
};

/// Records (choice, token), -1 for the end.
class Recorder : public GenerationConsumer {
 public:
  struct Log {
    std::mutex mutex;
    std::vector<std::pair<size_t, int32_t>> events;
    std::promise<void> ended;
    std::string failure;
  };

  Recorder(std::shared_ptr<Log> log, size_t num_ends, bool throws = false)
      : log_(std::move(log)), ends_left_(num_ends), throws_(throws) {}

  void on_events(Generation&, std::vector<GenerationEvent> events) override {
    if (throws_) throw std::runtime_error("no memory");
    const std::lock_guard lock(log_->mutex);
    for (const auto& event : events) {
      const bool is_end = event.kind == GenerationEvent::Kind::finish;
      log_->events.emplace_back(event.choice, is_end ? -1 : event.token);
      if (is_end && --ends_left_ == 0) log_->ended.set_value();
    }
  }

  void on_failure(const Error& error) override {
    log_->failure = error.message();
    log_->ended.set_value();
  }

 private:
  std::shared_ptr<Log> log_;
  size_t ends_left_;
  bool throws_;
};

class GenerationTest : public ::testing::Test {
 protected:
  static void wait(Recorder::Log& log) {
    ASSERT_EQ(log.ended.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  }

  FakeEngine engine_;
  WorkerPool pool_{2, [](const char* what) { ADD_FAILURE() << what; }};
  std::shared_ptr<Generation> generation_ = std::make_shared<Generation>(engine_, pool_);
  std::shared_ptr<Recorder::Log> log_ = std::make_shared<Recorder::Log>();
};

TEST_F(GenerationTest, DeliversEventsInOrderAlsoThoseBeforeTheRelease) {
  ASSERT_TRUE(generation_->submit(std::vector<runtime::Request>(2)).ok());
  engine_.sinks[0]->on_token(5, {});
  engine_.sinks[1]->on_token(6, {});
  generation_->release(std::make_unique<Recorder>(log_, 2));
  engine_.sinks[0]->on_token(7, {});
  engine_.sinks[0]->on_finish({});
  engine_.sinks[1]->on_finish({});
  wait(*log_);
  using Event = std::pair<size_t, int32_t>;
  EXPECT_THAT(log_->events, ElementsAre(Event{0, 5}, Event{1, 6}, Event{0, 7}, Event{0, -1}, Event{1, -1}));
  EXPECT_TRUE(generation_->is_finished());
  generation_->cancel_all();
  EXPECT_TRUE(engine_.cancelled.empty());  // nothing is left to cancel
}

TEST_F(GenerationTest, KeepsOrderUnderManyEventsFromAnotherThread) {
  constexpr int32_t kCount = 20'000;
  ASSERT_TRUE(generation_->submit(std::vector<runtime::Request>(1)).ok());
  generation_->release(std::make_unique<Recorder>(log_, 1));
  std::thread engine([&] {
    for (int32_t i = 0; i < kCount; ++i) engine_.sinks[0]->on_token(i, {});
    engine_.sinks[0]->on_finish({});
  });
  engine.join();
  wait(*log_);
  ASSERT_EQ(log_->events.size(), static_cast<size_t>(kCount) + 1);
  for (int32_t i = 0; i < kCount; ++i) ASSERT_EQ(log_->events[static_cast<size_t>(i)].second, i);
}

TEST_F(GenerationTest, CancelsWhatWasSubmittedWhenAPartIsRefused) {
  engine_.refuse_after = 2;
  const Status status = generation_->submit(std::vector<runtime::Request>(3));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::unavailable);
  EXPECT_THAT(engine_.cancelled, ElementsAre(1u, 2u));
}

TEST_F(GenerationTest, CancelsOnlyUnfinishedChoices) {
  ASSERT_TRUE(generation_->submit(std::vector<runtime::Request>(3)).ok());
  engine_.sinks[1]->on_finish({});
  generation_->cancel_all();
  EXPECT_THAT(engine_.cancelled, ElementsAre(1u, 3u));
}

TEST_F(GenerationTest, TurnsAnExceptionIntoAFailureAndCancels) {
  ASSERT_TRUE(generation_->submit(std::vector<runtime::Request>(1)).ok());
  generation_->release(std::make_unique<Recorder>(log_, 1, /*throws=*/true));
  engine_.sinks[0]->on_token(1, {});
  wait(*log_);
  EXPECT_THAT(log_->failure, ::testing::HasSubstr("no memory"));
  EXPECT_THAT(engine_.cancelled, ElementsAre(1u));
}

TEST_F(GenerationTest, IgnoresTheEngineAfterDetaching) {
  ASSERT_TRUE(generation_->submit(std::vector<runtime::Request>(1)).ok());
  generation_->release(std::make_unique<Recorder>(log_, 1));
  pool_.finish();
  generation_->detach();
  generation_->drop_consumer();
  engine_.sinks[0]->on_token(1, {});
  engine_.sinks[0]->on_finish({});
  EXPECT_TRUE(log_->events.empty());
  EXPECT_TRUE(generation_->is_finished());
}

}  // namespace
}  // namespace rorqual::server
