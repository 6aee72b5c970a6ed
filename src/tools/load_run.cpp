// SPDX-License-Identifier: Apache-2.0
#include "tools/load_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/load_metrics.h"
#include "tools/load_prompts.h"

namespace rorqual::tools {
namespace {

double own_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The state of a run; lives until LoadClient::run has returned.
class Loop {
 public:
  Loop(LoadClient& client, const LoadPlan& plan,
       const std::function<Result<LoadCall>(int64_t index)>& make_call)
      : client_(client), plan_(plan), make_call_(make_call) {}

  Result<LoadRun> run();

 private:
  void ask();
  void on_end(LoadRecord record);
  void stop_if_done();
  void leave_at_random(int64_t index, LoadCall& call) const;

  bool is_over() const {
    return failure_.has_value() || is_cut_off_ || (plan_.requests > 0 && asked_ >= plan_.requests);
  }

  LoadClient& client_;
  const LoadPlan& plan_;
  const std::function<Result<LoadCall>(int64_t index)>& make_call_;
  LoadRun result_;
  int64_t asked_ = 0, ended_ = 0;
  bool is_cut_off_ = false;
  std::optional<Error> failure_;
};

void Loop::leave_at_random(int64_t index, LoadCall& call) const {
  const auto place = 3 * static_cast<uint64_t>(index);
  const double chance = static_cast<double>(load_random(plan_.seed, place) >> 11) * 0x1p-53;
  if (chance >= plan_.cancel_rate) return;
  const auto most = static_cast<uint64_t>(plan_.cancel_tokens);
  call.leave_after_tokens = static_cast<int64_t>(load_random(plan_.seed, place + 1) % (most + 1));
  constexpr Leaving kWays[] = {Leaving::close, Leaving::reset, Leaving::half_close};
  call.leaving = kWays[load_random(plan_.seed, place + 2) % 3];
}

void Loop::ask() {
  if (is_over()) return;
  const int64_t index = asked_++;
  auto call = make_call_(index);
  if (!call.ok()) {
    failure_ = std::move(call).error();
    --asked_;
    client_.cut_off();
    return stop_if_done();
  }
  leave_at_random(index, *call);
  client_.start(*std::move(call), [this](LoadRecord record) { on_end(std::move(record)); });
}

void Loop::on_end(LoadRecord record) {
  double wait_s = 0;
  if (record.outcome == LoadOutcome::refused || record.outcome == LoadOutcome::error) {
    wait_s = std::min(plan_.refused_wait_s, record.retry_after_s.value_or(plan_.refused_wait_s));
  }
  result_.records.push_back(std::move(record));
  ++ended_;
  if (is_over()) return stop_if_done();
  if (wait_s > 0) {
    client_.after(wait_s, [this] { ask(); });
  } else {
    ask();
  }
}

/// Timers that are left do not keep the run going.
void Loop::stop_if_done() {
  if (ended_ == asked_) client_.stop();
}

Result<LoadRun> Loop::run() {
  const double cpu_s = own_cpu_s();
  result_.start_s = unix_now_s();
  for (int64_t i = 0; i < plan_.streams; ++i) {
    const double delay_s = plan_.ramp_up_s * static_cast<double>(i) / static_cast<double>(plan_.streams);
    client_.after(delay_s, [this] { ask(); });
  }
  if (plan_.duration_s > 0) {
    client_.after(plan_.duration_s, [this] {
      is_cut_off_ = true;
      client_.cut_off();
      stop_if_done();
    });
  }
  client_.run();
  if (failure_) return *failure_;
  result_.client_cpu_s = own_cpu_s() - cpu_s;
  result_.window_begin_s = result_.start_s + plan_.warm_up_s;
  result_.window_end_s = result_.start_s;
  for (const LoadRecord& record : result_.records) {
    result_.window_end_s = std::max(result_.window_end_s, record.end_s);
  }
  if (plan_.duration_s > 0) {
    result_.window_end_s = std::min(result_.window_end_s, result_.start_s + plan_.duration_s);
  }
  return std::move(result_);
}

}  // namespace

Result<LoadRun> run_load(LoadClient& client, const LoadPlan& plan,
                         const std::function<Result<LoadCall>(int64_t index)>& make_call) {
  if (plan.duration_s <= 0 && plan.requests <= 0) {
    return Error(Code::invalid_argument, "a load needs --duration or --requests");
  }
  return Loop(client, plan, make_call).run();
}

}  // namespace rorqual::tools
