// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the speed model on cases that can be done by hand.
#include "plan/speed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace rorqual::plan {
namespace {

Rate exact(double value) {
  return {.value = value, .spread = 0, .measured = true};
}

/// FP8 at 1 + 1/512 bytes a weight: one row takes 1 ns, four 2 ns, 48 rows 24 ns a weight.
KernelRate simple_rate(const std::string& format = "fp8") {
  const double bytes = format == "fp8" ? 1.0 + 1.0 / 512 : format == "mxfp4" ? 0.5 + 1.0 / 32 : 2.0;
  return {.format = format,
          .one_row = exact(bytes * 1e9),
          .few_rows = exact(4 / 2e-9),
          .many_rows = exact(48 / 24e-9)};
}

Machine simple_machine() {
  Machine machine;
  machine.threads = 1;
  machine.ram_read = exact(50e9);
  machine.kernels = {simple_rate("mxfp4"), simple_rate("fp8"), simple_rate("bf16")};
  for (const char* stage : {"boundary", "attend", "attend_slot", "index_key", "layer_row", "region"}) {
    machine.stages.push_back({.stage = stage, .one_row = exact(1e6), .many_rows = exact(1e7)});
  }
  return machine;
}

/// A plan of one head: nothing else costs anything, because there are no layers.
MemoryPlan head_only() {
  MemoryPlan plan;
  plan.config.num_hidden_layers = 0;
  Part head;
  head.kind = PartKind::head;
  head.format = "fp8";
  head.madds_per_token = 1e6;
  head.bytes_per_token = 1e6;
  plan.parts = {head};
  return plan;
}

TEST(Speed, AWeightCostsWhatTheThreeSamplesSay) {
  const KernelRate rate = simple_rate();
  EXPECT_DOUBLE_EQ(seconds_per_weight(rate, 1), 1e-9);
  EXPECT_DOUBLE_EQ(seconds_per_weight(rate, 4), 2e-9);
  EXPECT_DOUBLE_EQ(seconds_per_weight(rate, 48), 24e-9);
  EXPECT_NEAR(seconds_per_weight(rate, 26), 13e-9, 1e-20);  // halfway between 4 and 48 rows
  EXPECT_NEAR(seconds_per_weight(rate, 49), 25e-9, 1e-20);  // a full tile and a single row
  EXPECT_NEAR(seconds_per_weight(rate, 96), 48e-9, 1e-20);
  EXPECT_EQ(seconds_per_weight(rate, 0), 0);
}

TEST(Speed, AnUnknownKernelRateGivesNoTime) {
  KernelRate rate = simple_rate();
  rate.many_rows = {};
  EXPECT_EQ(seconds_per_weight(rate, 1), 0);
}

TEST(Speed, DistinctExpertsFollowTheFormula) {
  EXPECT_DOUBLE_EQ(expected_distinct_experts(1, 6, 384), 6);
  EXPECT_NEAR(expected_distinct_experts(2, 2, 4), 3, 1e-12);  // 4 · (1 - 1/4)
  EXPECT_NEAR(expected_distinct_experts(1000, 6, 16), 16, 1e-9);
  EXPECT_EQ(expected_distinct_experts(5, 6, 0), 0);
}

TEST(Speed, ExpertsAreWeighedByTheRowsTheyGet) {
  const KernelRate rate = simple_rate();
  // One row, K of E: probability K/E of one row.
  EXPECT_NEAR(expected_expert_seconds(rate, 1, 6, 384), 1e-9 * 6 / 384, 1e-24);
  // Two rows, half of the experts each: 1/2 for one row, 1/4 for two; two rows cost 1 + 1/3 ns.
  EXPECT_NEAR(expected_expert_seconds(rate, 2, 2, 4), 0.5 * 1e-9 + 0.25 * (4.0 / 3) * 1e-9, 1e-22);
  // Every expert gets every row.
  EXPECT_DOUBLE_EQ(expected_expert_seconds(rate, 4, 6, 6), 2e-9);
  // A long step does not underflow: the mean is 512·6/16 = 192 rows, near 4 tiles.
  EXPECT_NEAR(expected_expert_seconds(rate, 512, 6, 16), 96e-9, 2e-9);
}

TEST(Speed, AHeadAloneDecodesAtItsKernelRate) {
  const MemoryPlan plan = head_only();
  const auto speed = predict_speed(plan, plan.parts, simple_machine(),
                                   {.prompt_tokens = 100, .generate_tokens = 11, .batch = 1});
  EXPECT_NEAR(speed.decode.tokens_per_second.value, 1e3, 1e-6);  // 10^6 weights of 1 ns
  EXPECT_NEAR(speed.decode.seconds, 10e-3, 1e-12);               // the first token comes from the prompt
  // A prompt needs the head for its last row only.
  EXPECT_NEAR(speed.prefill.tokens_per_second.value, 1e5, 1e-3);
  EXPECT_EQ(speed.decode.limit, "head: CPU kernels, fp8");
  const auto batch = predict_speed(plan, plan.parts, simple_machine(),
                                   {.prompt_tokens = 100, .generate_tokens = 11, .batch = 4});
  EXPECT_NEAR(batch.decode.tokens_per_second.value, 2e3, 1e-6);  // four rows for two
}

TEST(Speed, AStageCostsItsSamplesAndStraightLinesBetween) {
  // One layer without any weights: two boundaries per step, nothing else known to cost.
  MemoryPlan plan;
  plan.config = model::release_config();
  plan.config.num_hidden_layers = 1;
  plan.config.index_source_layer_ids.clear();
  Machine machine = simple_machine();
  for (StageRate& rate : machine.stages) rate.one_row = rate.many_rows = exact(1e15);
  machine.stages[0] = {.stage = "boundary", .one_row = exact(1e3), .many_rows = exact(6.4e3)};
  const auto step_seconds = [&](int64_t batch) {
    return predict_speed(plan, plan.parts, machine,
                         {.prompt_tokens = 1, .generate_tokens = 2, .batch = batch})
        .decode.seconds;
  };
  EXPECT_NEAR(step_seconds(1), 2e-3, 1e-9);     // 1 ms each
  EXPECT_NEAR(step_seconds(64), 20e-3, 1e-9);   // 10 ms each
  EXPECT_NEAR(step_seconds(22), 8e-3, 1e-9);    // a third of the way from 1 to 10
  EXPECT_NEAR(step_seconds(128), 40e-3, 1e-9);  // twice 64 rows
}

TEST(Speed, NarrowModelsPayForTheirOwnWidths) {
  MemoryPlan plan;
  plan.config = model::release_config();
  plan.config.num_hidden_layers = 1;
  Machine machine = simple_machine();
  for (StageRate& rate : machine.stages) rate.one_row = rate.many_rows = exact(1e15);
  machine.stages[1].one_row = exact(1e3);  // attention over a full window
  const SpeedQuestion question{.prompt_tokens = 500, .generate_tokens = 2, .batch = 1};
  EXPECT_NEAR(predict_speed(plan, plan.parts, machine, question).decode.seconds, 1e-3, 1e-9);
  plan.config.num_attention_heads /= 8;
  EXPECT_NEAR(predict_speed(plan, plan.parts, machine, question).decode.seconds, 1e-3 / 8, 1e-9);
}

TEST(Speed, StagesAddUpToThePhase) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.threads = 1});
  const auto speed = predict_speed(plan, plan.parts, simple_machine(), {});
  for (const PhaseSpeed* phase : {&speed.prefill, &speed.decode}) {
    ASSERT_GT(phase->tokens_per_second.value, 0) << phase->unknown;
    double sum = 0, last = 1e30;
    for (const StageTime& stage : phase->stages) {
      EXPECT_LE(stage.seconds, last);
      last = stage.seconds;
      sum += stage.seconds;
    }
    EXPECT_NEAR(sum, phase->seconds, 1e-9 * sum);
  }
  EXPECT_NEAR(speed.decode.tokens_per_second.value * speed.decode.seconds, 31, 1e-6);
  EXPECT_NEAR(speed.prefill.tokens_per_second.value * speed.prefill.seconds, 512, 1e-6);
}

TEST(Speed, FasterRatesAreNeverSlower) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.threads = 1});
  const SpeedQuestion question{.prompt_tokens = 3000, .generate_tokens = 8, .batch = 2};
  const Machine base = simple_machine();
  const auto before = predict_speed(plan, plan.parts, base, question);
  ASSERT_GT(before.decode.tokens_per_second.value, 0);
  const auto check = [&](const Machine& faster, const std::string& what) {
    const auto after = predict_speed(plan, plan.parts, faster, question);
    EXPECT_GE(after.prefill.tokens_per_second.value, before.prefill.tokens_per_second.value * (1 - 1e-12))
        << what;
    EXPECT_GE(after.decode.tokens_per_second.value, before.decode.tokens_per_second.value * (1 - 1e-12))
        << what;
  };
  for (size_t i = 0; i < base.kernels.size(); ++i) {
    for (Rate KernelRate::*rate : {&KernelRate::one_row, &KernelRate::few_rows, &KernelRate::many_rows}) {
      Machine faster = base;
      (faster.kernels[i].*rate).value *= 1.3;
      check(faster, base.kernels[i].format);
    }
  }
  for (size_t i = 0; i < base.stages.size(); ++i) {
    Machine faster = base;
    faster.stages[i].one_row.value *= 2;
    faster.stages[i].many_rows.value *= 2;
    check(faster, base.stages[i].stage);
  }
}

TEST(Speed, MoreMemoryBandwidthIsNeverSlowerOnDescribedMachines) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.threads = 16});
  double last = 0;
  for (const double bandwidth : {20e9, 50e9, 100e9, 200e9, 400e9, 800e9}) {
    Machine machine;
    machine.is_described = true;
    machine.threads = 16;
    machine.ram_read = {.value = bandwidth, .spread = 0.5, .measured = false};
    const auto speed = predict_speed(plan, plan.parts, machine, {});
    ASSERT_GT(speed.decode.tokens_per_second.value, 0);
    EXPECT_GE(speed.decode.tokens_per_second.value, last);
    EXPECT_FALSE(speed.decode.tokens_per_second.measured);
    EXPECT_GE(speed.decode.tokens_per_second.spread, 0.5);
    last = speed.decode.tokens_per_second.value;
  }
  Machine narrow;
  narrow.is_described = true;
  narrow.threads = 16;
  narrow.ram_read = {.value = 20e9, .spread = 0.5, .measured = false};
  EXPECT_NE(predict_speed(plan, plan.parts, narrow, {}).decode.limit.find("RAM bandwidth"),
            std::string::npos);
}

TEST(Speed, LongContextsAreSlowerAndNameIndexScores) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.max_model_len = 200000, .threads = 1});
  const auto near = predict_speed(plan, plan.parts, simple_machine(), {.prompt_tokens = 100});
  const auto far = predict_speed(plan, plan.parts, simple_machine(), {.prompt_tokens = 100000});
  EXPECT_LT(far.decode.tokens_per_second.value, near.decode.tokens_per_second.value);
  const auto has_scores = [](const PhaseSpeed& phase) {
    for (const StageTime& stage : phase.stages) {
      if (stage.name == "index scores") return true;
    }
    return false;
  };
  EXPECT_FALSE(has_scores(near.decode));
  EXPECT_TRUE(has_scores(far.decode));
}

TEST(Speed, AMissingRateGivesUnknownAndItsName) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.threads = 1});
  Machine bare;
  bare.threads = 4;  // no bandwidth, no kernels
  const auto speed = predict_speed(plan, plan.parts, bare, {});
  EXPECT_EQ(speed.decode.tokens_per_second.value, 0);
  EXPECT_NE(speed.decode.unknown.find("kernels"), std::string::npos);
  EXPECT_EQ(speed_text(speed.decode.tokens_per_second), "unknown");
  Machine machine = simple_machine();
  machine.kernels.pop_back();  // bf16
  EXPECT_EQ(predict_speed(plan, plan.parts, machine, {}).prefill.unknown, "speed of the bf16 kernels");
}

TEST(Speed, EngramOnDiskNeedsTheDisksRandomReads) {
  const MemoryPlan plan = plan_memory(model::release_config(), {.threads = 1, .engram_on_disk = true});
  Machine machine = simple_machine();
  EXPECT_EQ(predict_speed(plan, plan.parts, machine, {}).decode.unknown, "random reads of the disk");
  machine.disk_random = exact(1);
  const auto slow = predict_speed(plan, plan.parts, machine, {});
  EXPECT_EQ(slow.prefill.limit, "Engram tables: disk, random reads");
  // 24 columns, two layers, codes and scales: 96 reads a token.
  EXPECT_LT(slow.decode.tokens_per_second.value, 1.0 / 96);
}

TEST(Speed, ErrorBarsHoldTheValueAndGrowWithTheSamplesSpread) {
  const MemoryPlan plan = head_only();
  Machine machine = simple_machine();
  const Rate calm = predict_speed(plan, plan.parts, machine, {}).decode.tokens_per_second;
  EXPECT_GT(calm.spread, 0);  // the model's own error
  for (KernelRate& rate : machine.kernels) rate.one_row.spread = 0.25;
  const Rate noisy = predict_speed(plan, plan.parts, machine, {}).decode.tokens_per_second;
  EXPECT_NEAR(noisy.spread, calm.spread + 0.25, 1e-12);
  EXPECT_LT(noisy.value * (1 - noisy.spread), noisy.value);
  EXPECT_GT(noisy.value * (1 + noisy.spread), noisy.value);
  EXPECT_EQ(speed_text({.value = 4, .spread = 0.25, .measured = true}), "3.00 to 5.00 tok/s");
  EXPECT_EQ(speed_text({.value = 40, .spread = 0.25, .measured = true}), "30.0 to 50.0 tok/s");
  EXPECT_EQ(speed_text({.value = 400, .spread = 0.25, .measured = true}), "300 to 500 tok/s");
}

TEST(Speed, WeightsOnGpusAreBoundByTheirMemory) {
  MemoryPlan plan = head_only();
  plan.parts[0].tier = Tier::vram;
  Machine machine;
  machine.is_described = true;
  EXPECT_EQ(predict_speed(plan, plan.parts, machine, {}).decode.unknown, "bandwidth of the GPU's memory");
  machine.gpus.resize(2);
  for (Gpu& gpu : machine.gpus) gpu.read = {.value = 1e12, .spread = 0.1, .measured = false};
  const auto speed = predict_speed(plan, plan.parts, machine, {});
  EXPECT_EQ(speed.decode.limit, "head: VRAM bandwidth");
  EXPECT_FALSE(speed.decode.tokens_per_second.measured);
  EXPECT_GE(speed.decode.tokens_per_second.spread, 0.5);
}

}  // namespace
}  // namespace rorqual::plan
