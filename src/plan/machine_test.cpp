// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Machine, description_gives_every_field) {
  const auto machine = describe_machine(
      "ram=512G,cores=64,threads=60,ram-bandwidth=300GB/s,gpu=2x24G,gpu-bandwidth=1.8T,link=25G,disk=4T,"
      "disk-bandwidth=7G");
  ASSERT_TRUE(machine.ok()) << machine.error().message();
  EXPECT_TRUE(machine->is_described);
  EXPECT_EQ(machine->ram_total_bytes, 512 * kGiB);
  EXPECT_LT(machine->ram_available_bytes, 512 * kGiB);
  EXPECT_GT(machine->ram_available_bytes, 480 * kGiB);
  EXPECT_EQ(machine->threads, 60);
  EXPECT_EQ(machine->ram_read.value, 300e9);
  ASSERT_EQ(machine->gpus.size(), 2u);
  EXPECT_EQ(machine->gpus[1].memory_bytes, 24 * kGiB);
  EXPECT_EQ(machine->gpus[1].read.value, 1.8e12);
  EXPECT_EQ(machine->gpus[0].link.value, 25e9);
  EXPECT_EQ(machine->disk_free_bytes, 4096 * kGiB);
  EXPECT_EQ(machine->disk_read.value, 7e9);
  EXPECT_FALSE(machine->ram_read.measured);
}

TEST(Machine, order_of_keys_does_not_matter) {
  const auto a = describe_machine("ram=64G,gpu=4090,gpu-bandwidth=500G");
  const auto b = describe_machine("gpu-bandwidth=500G,gpu=4090,ram=64G");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->gpus[0].read.value, 500e9);
  EXPECT_EQ(a->gpus[0].read.value, b->gpus[0].read.value);
  EXPECT_EQ(a->ram_available_bytes, b->ram_available_bytes);
}

TEST(Machine, faults_name_key_value_and_what_is_allowed) {
  for (const char* text : {"",
                           "ram",
                           "ram=",
                           "ram=x",
                           "ram=-1G",
                           "ram=0",
                           "gpu=24G",
                           "ram=64G,gpu=9x",
                           "ram=64G,gpu=99xh20",
                           "ram=64G,cores=0",
                           "ram=64G,ram-bandwidth=fast",
                           "ram=64G,colour=red",
                           "8xh21",
                           "ram=9999999999999T",
                           "ram=64G,gpu-bandwidth=1,gpu=24G,link=zero",
                           "ram=512",
                           "ram=64K",
                           "ram=64G,gpu=24",
                           "ram=64G,cgroup=0",
                           "ram=64G,ram=128G",
                           "ram=64G,gpu=24G,gpu=h200",
                           "ram=64G,gpu=0x24G",
                           "ram=64G,link=25G",
                           "ram=64G,gpu=0,gpu-bandwidth=1T",
                           "ram=64G,gpu-bandwidth=fast"}) {
    const auto machine = describe_machine(text);
    ASSERT_FALSE(machine.ok()) << text;
    EXPECT_EQ(machine.error().code(), Code::invalid_argument) << text;
    EXPECT_FALSE(machine.error().hint().empty()) << text;
  }
  EXPECT_NE(describe_machine("ram=64G,colour=red").error().message().find("colour"), std::string::npos);
}

TEST(Machine, faults_show_the_value_as_it_was_written) {
  EXPECT_NE(describe_machine("ram=1.5TB").error().message().find("ram=1.5TB:"), std::string::npos);
  EXPECT_NE(describe_machine("ram=64G,ram=1T").error().message().find("'ram' is given twice"),
            std::string::npos);
}

TEST(Machine, total_memory_for_an_amount_available_is_enough_and_not_much_more) {
  for (const int64_t available :
       {int64_t{1000}, kGiB, 6 * kGiB, 7 * kGiB, 48 * kGiB, 49 * kGiB, 900 * kGiB}) {
    const int64_t total = ram_total_for(available);
    const auto left = [](int64_t bytes) {
      Machine machine = *describe_machine("ram=" + std::to_string(std::max(bytes, int64_t{1} << 20)));
      return machine.ram_available_bytes;
    };
    EXPECT_GE(left(total), available) << available;
    if (total > 2 * (int64_t{1} << 20)) {
      EXPECT_LT(left(total - (int64_t{1} << 20)), available) << available;
    }
  }
}

TEST(Machine, eight_machines_have_names) {
  EXPECT_EQ(named_machines().size(), 8u);
  for (const NamedMachine& named : named_machines()) {
    const auto machine = describe_machine(named.name);
    ASSERT_TRUE(machine.ok()) << named.name << ": " << machine.error().message();
    EXPECT_EQ(machine->name, named.name);
    EXPECT_GT(machine->ram_available_bytes, 0);
  }
  EXPECT_EQ(describe_machine("8xh200")->gpus.size(), 8u);
  EXPECT_TRUE(describe_machine("cpu-768")->gpus.empty());
}

TEST(Machine, this_one_has_memory_threads_and_disk) {
  const Machine machine = this_machine("/no/such/folder/yet");
  EXPECT_FALSE(machine.is_described);
  EXPECT_GT(machine.ram_available_bytes, 0);
  EXPECT_LE(machine.ram_available_bytes, machine.ram_total_bytes);
  EXPECT_GE(machine.threads, 1);
  EXPECT_GE(machine.numa_nodes, 1);
  EXPECT_GT(machine.disk_free_bytes, 0);
}

TEST(Machine, a_cgroup_limit_of_a_system_lowers_what_is_available) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("rorqual-plan-cgroup-" + std::to_string(::getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    ASSERT_TRUE(write_text_file((root / path).string(), text).ok());
  };
  write("proc/self/cgroup", "0::/service\n");
  write("sys/fs/cgroup/service/memory.max", "3000000000\n");
  write("sys/fs/cgroup/service/memory.current", "1000000000\n");
  Machine machine = *describe_machine("ram=64G");
  apply_cgroup(machine, read_cgroup_limits(root.string() + "/"));
  fs::remove_all(root);
  EXPECT_EQ(machine.cgroup_limit_bytes, 3000000000);
  EXPECT_EQ(machine.ram_available_bytes, 2000000000);
  machine.ram_available_bytes = 1000;
  apply_cgroup(machine, {.memory_bytes = 5000, .memory_used_bytes = 6000});
  EXPECT_EQ(machine.ram_available_bytes, 0);
  EXPECT_EQ(describe_machine("ram=64G,cgroup=8G")->ram_available_bytes, 8 * kGiB);
}

}  // namespace
}  // namespace rorqual::plan
