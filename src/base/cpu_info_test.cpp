// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace rorqual {
namespace {

namespace fs = std::filesystem;

TEST(CpuInfo, is_consistent_with_itself) {
  const CpuInfo& info = cpu_info();
  EXPECT_GE(info.usable_cpus, 1);
  EXPECT_GE(info.usable_cores, 1);
  EXPECT_LE(info.usable_cores, info.usable_cpus);
  EXPECT_LE(info.physical_cores, info.logical_cpus);
  EXPECT_EQ(info.features.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(info.features.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(info.features.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(info.features.avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(info.features.avx512_vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
  EXPECT_EQ(info.features.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
}

TEST(CpuInfo, never_uses_more_threads_than_cores_or_quota) {
  CpuInfo info;
  info.usable_cpus = 16;
  info.usable_cores = 8;
  EXPECT_EQ(default_compute_threads(info), 8);
  info.cgroup_cpus = 3.5;
  EXPECT_EQ(default_compute_threads(info), 3);
  info.cgroup_cpus = 0.5;
  EXPECT_EQ(default_compute_threads(info), 1);
  info.cgroup_cpus = 64;
  EXPECT_EQ(default_compute_threads(info), 8);
}

TEST(MemoryInfo, knows_this_machine) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.total_bytes, int64_t{64} << 20);
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

class Cgroups : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / ("rorqual-cgroup-" + std::to_string(::getpid()) + "-" + info->name());
  }

  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    ASSERT_TRUE(write_text_file((root_ / path).string(), text).ok());
  }

  CgroupLimits limits() const { return read_cgroup_limits(root_.string() + "/"); }

  fs::path root_;
};

TEST_F(Cgroups, without_files_there_are_no_limits) {
  EXPECT_EQ(limits().cpus, 0);
  EXPECT_FALSE(limits().memory_bytes.has_value());
}

TEST_F(Cgroups, takes_the_tightest_limit_of_all_version_2_ancestors) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.max", "2000000000\n");
  write("sys/fs/cgroup/a/memory.current", "500000000\n");
  EXPECT_DOUBLE_EQ(limits().cpus, 1.5);
  EXPECT_EQ(limits().memory_bytes, 2000000000);
  EXPECT_EQ(limits().memory_used_bytes, 500000000);
}

TEST_F(Cgroups, the_tightest_is_the_one_with_the_least_room) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "2000000000\n");
  write("sys/fs/cgroup/a/b/memory.current", "100000000\n");
  write("sys/fs/cgroup/a/memory.max", "3000000000\n");  // neighbours use most of it
  write("sys/fs/cgroup/a/memory.current", "2500000000\n");
  EXPECT_EQ(limits().memory_bytes, 3000000000);
  EXPECT_EQ(limits().memory_used_bytes, 2500000000);
}

TEST_F(Cgroups, cached_files_are_room) {
  // A checkpoint that was just downloaded fills the page cache up to the limit; the kernel gives it back.
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "2000000000\n");
  write("sys/fs/cgroup/a/memory.current", "1900000000\n");
  write("sys/fs/cgroup/a/memory.stat",
        "anon 200000000\nfile 1700000000\ninactive_file 1200000000\nactive_file 400000000\n");
  EXPECT_EQ(limits().memory_used_bytes, 300000000);
  write("sys/fs/cgroup/a/memory.stat", "inactive_file 9000000000\n");  // read at another moment
  EXPECT_EQ(limits().memory_used_bytes, 0);
}

TEST_F(Cgroups, cached_files_of_version_1_are_room) {
  write("proc/self/cgroup", "5:memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000000000\n");
  write("sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 5\nactive_file 5\ntotal_inactive_file 600000000\ntotal_active_file 300000000\n");
  EXPECT_EQ(limits().memory_used_bytes, 100000000);
}

TEST_F(Cgroups, reads_version_1_controllers) {
  write("proc/self/cgroup", "5:memory:/box\n3:cpu,cpuacct:/box\n0::/\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // its way to write "none"
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(limits().cpus, 2.5);
  EXPECT_EQ(limits().memory_bytes, 1073741824);
}

}  // namespace
}  // namespace rorqual
