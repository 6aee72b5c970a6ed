// SPDX-License-Identifier: Apache-2.0
// Measures of the machine: medians, what is found where, and that every rate of the kernels comes out
// positive. How large they are is not tested.
#include "tools/machine_measure.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tools/disk_measure.h"
#include "tools/kernel_rates.h"
#include "tools/machine_ceilings.h"
#include "tools/measured_machine.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(RateOf, TakesTheMedianAndHalfTheRange) {
  const plan::Rate odd = rate_of({5, 1, 3});
  EXPECT_DOUBLE_EQ(odd.value, 3);
  EXPECT_DOUBLE_EQ(odd.spread, 4.0 / 6);
  EXPECT_TRUE(odd.measured);
  const plan::Rate even = rate_of({4, 2});
  EXPECT_DOUBLE_EQ(even.value, 3);
  EXPECT_DOUBLE_EQ(even.spread, 2.0 / 6);
  EXPECT_EQ(rate_of({}).value, 0);
  EXPECT_FALSE(rate_of({}).measured);
}

TEST(ReadBandwidth, IsPositiveOnAnySize) {
  ThreadPool pool(2);
  EXPECT_GT(measure_read_bandwidth(pool, int64_t{16} << 20, 3).value, 0);
  EXPECT_GT(measure_read_bandwidth(pool, 1, 1).value, 0);  // one chunk
}

TEST(Ceilings, KnowEveryUnitThatTheCpuHas) {
  ThreadPool pool(2);
  auto sampler = CeilingSampler::create(pool, int64_t{16} << 20);
  ASSERT_TRUE(sampler.ok());
  for (int i = 0; i < 3; ++i) sampler->sample(pool);
  const Ceilings ceilings = sampler->result();
  EXPECT_GT(ceilings.read.value, 0);
  EXPECT_EQ(ceilings.read_bytes, int64_t{16} << 20);
  std::set<std::string> names;
  for (int i = 0; i < kNumPeaks; ++i) {
    const auto peak = static_cast<Peak>(i);
    names.insert(peak_name(peak));
    EXPECT_EQ(ceilings.peak(peak).value > 0, std::string(peak_instructions(peak)) != "") << peak_name(peak);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumPeaks));
  EXPECT_GT(ceilings.peak(Peak::f32_fma).value, 0);  // AVX2 and FMA are the program's floor
  EXPECT_GT(ceilings.peak(Peak::int8_dot).value, 0);
}

TEST(NodeBandwidth, IsEmptyOrCountsEveryNodeOnce) {
  const auto nodes = measure_node_bandwidth(int64_t{16} << 20);
  EXPECT_NE(nodes.size(), 1U);
  std::set<int> seen;
  for (const NodeBandwidth& node : nodes) {
    EXPECT_TRUE(seen.insert(node.node).second);
    EXPECT_GT(node.threads, 0);
    EXPECT_GT(node.read.value, 0);
  }
}

TEST(KernelRates, EveryFormatAndStageHasRates) {
  const auto* table = kernels::select_kernels();
  if (table == nullptr) GTEST_SKIP() << "no kernels for this CPU";
  ThreadPool pool(2);
  KernelRateOptions options;
  options.kernels = table;
  options.weight_bytes = int64_t{96} << 20;
  options.repeats = 1;
  options.sample_seconds = 0;
  const auto rates = measure_kernel_rates(pool, options);
  ASSERT_TRUE(rates.ok());
  std::set<std::string> formats;
  for (const plan::KernelRate& rate : *rates) {
    formats.insert(rate.format);
    EXPECT_GT(rate.one_row.value, 0) << rate.format;
    EXPECT_GT(rate.few_rows.value, 0) << rate.format;
    EXPECT_GT(rate.many_rows.value, 0) << rate.format;
  }
  EXPECT_EQ(formats, (std::set<std::string>{"mxfp4", "fp8", "bf16", "f32", plan::kAttentionOutput}));
  const auto stages = measure_stage_rates(pool, options);
  ASSERT_TRUE(stages.ok());
  std::set<std::string> names;
  for (const plan::StageRate& stage : *stages) names.insert(stage.stage);
  EXPECT_EQ(names,
            (std::set<std::string>{"boundary", "attend", "attend_slot", "index_key", "layer_row", "region"}));
}

TEST(AppliedSamples, AreMediansOfWhatIsKnown) {
  const auto sample = [](double value) {
    RateSample result;
    result.ram_read = rate_of({value});
    result.kernels = {
        {.format = "fp8", .one_row = rate_of({value}), .few_rows = {}, .many_rows = rate_of({2 * value})}};
    result.stages = {
        {.stage = "attend", .one_row = value > 2 ? plan::Rate{} : rate_of({value}), .many_rows = {}}};
    return result;
  };
  plan::Machine machine;
  apply_samples(machine, {sample(3), sample(1), sample(2)});
  EXPECT_DOUBLE_EQ(machine.ram_read.value, 2);
  EXPECT_DOUBLE_EQ(machine.kernels.at(0).one_row.value, 2);
  EXPECT_DOUBLE_EQ(machine.kernels.at(0).many_rows.value, 4);
  EXPECT_EQ(machine.kernels.at(0).few_rows.value, 0);         // never measured: unknown
  EXPECT_DOUBLE_EQ(machine.stages.at(0).one_row.value, 1.5);  // the third sample has none
  // One sample says nothing of how far it is off.
  apply_samples(machine, {sample(3)});
  EXPECT_DOUBLE_EQ(machine.kernels.at(0).one_row.spread, 0.5);
  EXPECT_DOUBLE_EQ(machine.ram_read.spread, 0.5);
}

TEST(DiskMeasure, ReadsTheLargestFileOfAFolder) {
  const fs::path folder = fresh_folder("disk_measure");
  const std::vector<char> bytes(size_t{9} << 20, 'x');
  std::ofstream(folder / "large.bin").write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::ofstream(folder / "small.bin") << "x";
  ThreadPool pool(2);
  const auto disk = measure_disk(pool, folder.string());
  ASSERT_TRUE(disk.ok()) << disk.error().message();
  EXPECT_EQ(disk->path, (folder / "large.bin").string());
  EXPECT_TRUE(disk->is_model);
  EXPECT_GT(disk->sequential.value, 0);
  EXPECT_GT(disk->random.value, 0);
  fs::remove_all(folder);
}

TEST(DiskMeasure, RefusesWhatCannotBeMeasured) {
  const fs::path folder = fresh_folder("disk_measure_bad");
  ThreadPool pool(1);
  EXPECT_EQ(measure_disk(pool, (folder / "none").string()).error().code(), Code::not_found);
  EXPECT_EQ(measure_disk(pool, folder.string()).error().code(), Code::not_found);  // no file in it
  std::ofstream(folder / "small.bin") << "x";
  EXPECT_EQ(measure_disk(pool, (folder / "small.bin").string()).error().code(), Code::invalid_argument);
  EXPECT_EQ(measure_disk(pool, "/dev/null").error().code(), Code::invalid_argument);
  fs::remove_all(folder);
}

TEST(GpuList, NamesTheCardsOfTheDriver) {
  const fs::path root = fresh_folder("gpu_list");
  const GpuList none = list_gpus(root.string() + "/");
  EXPECT_TRUE(none.names.empty());
  EXPECT_NE(none.note.find("no GPU"), std::string::npos);
  for (const char* card : {"0000:01:00.0", "0000:02:00.0"}) {
    const fs::path folder = root / "proc/driver/nvidia/gpus" / card;
    fs::create_directories(folder);
    std::ofstream(folder / "information") << "Model: \t\t NVIDIA Test Card\nIRQ:   \t\t 5\n";
  }
  const GpuList two = list_gpus(root.string() + "/");
  EXPECT_EQ(two.names, (std::vector<std::string>{"NVIDIA Test Card", "NVIDIA Test Card"}));
  EXPECT_NE(two.note.find("not measured"), std::string::npos);
  fs::remove_all(root);
}

}  // namespace
}  // namespace rorqual::tools
