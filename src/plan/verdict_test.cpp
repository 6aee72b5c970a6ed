// SPDX-License-Identifier: Apache-2.0
#include "plan/verdict.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan_text.h"
#include "plan/release.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Plan plan_of(const model::Config& config, const Machine& machine, PlanRequest request = {}) {
  if (request.model.empty()) request.model = "v41";
  auto plan = make_plan(config, machine, request);
  EXPECT_TRUE(plan.ok()) << plan.error().message();
  return *std::move(plan);
}

Plan release_on(const char* machine, const PlanRequest& request = {}) {
  return plan_of(model::release_config(), *describe_machine(machine), request);
}

struct Expected {
  const char* machine;
  bool fits;  // this version
  bool tables_on_disk;
  Tier limit;
  const char* later;  // "" = nothing better
};

TEST(Verdict, of_the_eight_machines_is_as_documented) {
  const Expected expected[] = {
      {"8xh20", true, false, Tier::ram, "GPU"},
      {"8xh200", true, false, Tier::ram, "GPU"},
      {"2xpro6000", true, false, Tier::ram, "GPU, experts in RAM"},
      {"h200-256", false, true, Tier::ram, "GPU, experts in RAM"},
      {"4090-512", true, false, Tier::ram, "GPU, experts in RAM"},
      {"cpu-768", true, false, Tier::ram, ""},
      {"cpu-384", true, true, Tier::ram, ""},
      {"cpu-128", false, true, Tier::ram, "CPU, experts on disk"},
  };
  ASSERT_EQ(std::size(expected), named_machines().size());
  for (const Expected& e : expected) {
    const Plan plan = release_on(e.machine);
    EXPECT_EQ(plan.fits(), e.fits) << e.machine;
    EXPECT_EQ(plan.memory.settings.engram_on_disk, e.tables_on_disk) << e.machine;
    EXPECT_EQ(plan.limiting_tier(), e.limit) << e.machine;
    EXPECT_EQ(plan.later ? plan.later->name : "", e.later) << e.machine;
    EXPECT_EQ(plan.cures.empty(), e.fits) << e.machine;
    EXPECT_EQ(check_plan(plan).ok(), e.fits) << e.machine;
  }
}

TEST(Verdict, refusal_has_both_numbers_the_cgroup_and_the_cures) {
  const Plan plan = release_on("ram=512G,cgroup=100G");
  const Status status = check_plan(plan);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::out_of_memory);
  const std::string& message = status.error().message();
  EXPECT_NE(message.find(" GiB of memory"), std::string::npos) << message;
  EXPECT_NE(message.find("98.0 GiB can be used"), std::string::npos) << message;
  EXPECT_NE(message.find("cgroup limit 100.0 GiB"), std::string::npos) << message;
  // RAM is there; the limit is what has to rise.
  EXPECT_EQ(status.error().hint().find("more RAM"), std::string::npos) << status.error().hint();
  EXPECT_NE(status.error().hint().find("a cgroup limit that is "), std::string::npos)
      << status.error().hint();
  EXPECT_NE(status.error().hint().find(" higher: fits"), std::string::npos) << status.error().hint();
}

TEST(Verdict, every_cure_that_claims_to_fit_does_when_planned_again) {
  const auto config = config_of("synthetic:v41?layers=4&experts=16&engram-rows=200000");
  ASSERT_TRUE(config.ok());
  PlanRequest request;
  request.max_model_len = 1 << 20;
  request.engram_placement = "host";
  const Plan roomy = plan_of(*config, *describe_machine("ram=512G"), request);
  ASSERT_TRUE(roomy.fits());
  const int64_t need = roomy.now.of(Tier::ram).needed_bytes;
  int checked = 0;
  // From "a little short" to "hopeless".
  for (const double share : {0.95, 0.7, 0.5, 0.3}) {
    Machine machine = *describe_machine("ram=512G");
    machine.ram_available_bytes = static_cast<int64_t>(static_cast<double>(need) * share);
    const Plan plan = plan_of(*config, machine, request);
    ASSERT_FALSE(plan.fits()) << share;
    ASSERT_FALSE(plan.cures.empty());
    EXPECT_LE(plan.cures.size(), 3u);
    for (const Cure& cure : plan.cures) {
      if (cure.short_bytes > 0 || cure.change.find("--") != 0) continue;
      PlanRequest changed = request;
      const auto value = [&](const std::string& name) -> std::string {
        const size_t at = cure.change.find(name + " ");
        if (at == std::string::npos) return "";
        const size_t begin = at + name.size() + 1;
        return cure.change.substr(begin, cure.change.find(' ', begin) - begin);
      };
      if (!value("--engram-placement").empty()) changed.engram_placement = value("--engram-placement");
      if (!value("--max-model-len").empty()) changed.max_model_len = std::stoll(value("--max-model-len"));
      if (!value("--max-num-seqs").empty()) changed.max_num_seqs = std::stoll(value("--max-num-seqs"));
      if (!value("--max-num-batched-tokens").empty()) {
        changed.max_num_batched_tokens = std::stoll(value("--max-num-batched-tokens"));
      }
      const Plan again = plan_of(*config, machine, changed);
      EXPECT_TRUE(again.fits()) << share << ": " << cure.change;
      EXPECT_EQ(need - again.now.of(Tier::ram).needed_bytes, cure.saved_bytes) << cure.change;
      ++checked;
    }
  }
  EXPECT_GE(checked, 4);
}

/// Bytes before `what` in a cure's text, 0 if it does not name it.
int64_t asked_for(const std::string& text, const std::string& number_before, const std::string& what) {
  const size_t end = text.find(what);
  if (end == std::string::npos) return 0;
  const size_t begin = number_before.empty() ? 0 : text.find(number_before) + number_before.size();
  const std::string words = text.substr(begin, end - begin);
  const double unit = words.find("TiB") != std::string::npos   ? 1024.0 * kGiB
                      : words.find("GiB") != std::string::npos ? static_cast<double>(kGiB)
                                                               : 1048576.0;
  return static_cast<int64_t>(std::stod(words) * unit);
}

TEST(Verdict, the_memory_that_a_cure_asks_for_is_enough) {
  struct Case {
    int64_t ram, cgroup, max_num_seqs;
    bool asks_ram, asks_cgroup;
  };

  const Case cases[] = {{2, 0, 8, true, false},     {64, 0, 8, true, false},    {280, 0, 8, true, false},
                        {296, 0, 256, true, false}, {128, 0, 256, true, false}, {1024, 100, 8, false, true},
                        {200, 100, 8, true, true},  {40, 60, 8, true, true},    {32, 1000, 8, true, false}};
  for (const Case& c : cases) {
    PlanRequest request;
    request.max_num_seqs = c.max_num_seqs;
    request.max_model_len = kDefaultMaxModelLen;
    request.engram_placement = "disk";
    const auto planned = [&](int64_t ram, int64_t cgroup) {
      std::string text = "ram=" + std::to_string(ram);
      if (cgroup > 0) text += ",cgroup=" + std::to_string(cgroup);
      return release_on(text.c_str(), request);
    };
    const Plan plan = planned(c.ram * kGiB, c.cgroup * kGiB);
    ASSERT_FALSE(plan.fits()) << c.ram << ", " << c.cgroup;
    const std::string& change = plan.cures.back().change;
    const int64_t ram = asked_for(change, "", " more RAM"),
                  limit = asked_for(change, "limit that is ", " higher");
    EXPECT_EQ(ram > 0, c.asks_ram) << change;
    EXPECT_EQ(limit > 0, c.asks_cgroup) << change;
    EXPECT_TRUE(planned(c.ram * kGiB + ram, c.cgroup * kGiB + limit).fits()) << c.ram << ": " << change;
    if (ram > 0) {
      EXPECT_FALSE(planned(c.ram * kGiB + ram - kGiB / 4, c.cgroup * kGiB + limit).fits()) << change;
    }
  }
}

TEST(Verdict, a_machine_with_next_to_no_memory_has_none_to_use) {
  const Plan plan = release_on("ram=16M");
  EXPECT_EQ(plan.now.of(Tier::ram).available_bytes, 0);
  EXPECT_NE(plan_text(plan).find(" of 0 B RAM that can be used"), std::string::npos);
}

TEST(Verdict, automatic_context_is_the_longest_that_fits_and_never_above_the_default) {
  const auto config = config_of("synthetic:v41?layers=3&experts=8&engram-rows=1000");
  ASSERT_TRUE(config.ok());
  PlanRequest request;
  request.max_num_seqs = 256;
  const Plan roomy = plan_of(*config, *describe_machine("ram=512G"), request);
  EXPECT_EQ(roomy.memory.settings.max_model_len, kDefaultMaxModelLen);
  Machine machine = *describe_machine("ram=512G");
  const int64_t need = roomy.now.of(Tier::ram).needed_bytes;
  machine.ram_available_bytes = need - roomy.memory.bytes(PartKind::kv_cache) / 2 + ram_reserve_bytes(need);
  const Plan tight = plan_of(*config, machine, request);
  ASSERT_TRUE(tight.fits());
  const int64_t chosen = tight.memory.settings.max_model_len;
  EXPECT_LT(chosen, kDefaultMaxModelLen);
  EXPECT_GE(chosen, kLeastAutoModelLen);
  EXPECT_EQ(chosen % 1024, 0);
  PlanRequest longer = request;
  longer.engram_placement = tight.memory.settings.engram_on_disk ? "disk" : "host";
  longer.max_model_len = chosen + 1024;
  EXPECT_FALSE(plan_of(*config, machine, longer).fits());
  PlanRequest asked = request;
  asked.max_model_len = 100'000;
  EXPECT_EQ(plan_of(*config, *describe_machine("ram=512G"), asked).memory.settings.max_model_len, 100'000);
}

TEST(Verdict, placements_of_later_versions_are_unsupported_and_nonsense_is_refused) {
  const auto machine = *describe_machine("cpu-768");
  const auto code_of = [&](const char* placement, const char* experts, int64_t length = 0) {
    PlanRequest request;
    request.engram_placement = placement;
    request.cpu_experts = experts;
    request.max_model_len = length;
    const auto plan = make_plan(model::release_config(), machine, request);
    return plan.ok() ? 0 : exit_code(plan.error().code());
  };
  EXPECT_EQ(code_of("gpu", "auto"), 5);
  EXPECT_EQ(code_of("auto", "none"), 5);
  EXPECT_EQ(code_of("auto", "12"), 5);
  EXPECT_EQ(code_of("moon", "auto"), 2);
  EXPECT_EQ(code_of("auto", "some"), 2);
  EXPECT_EQ(code_of("disk", "all", 1 << 20), 0);
}

TEST(PlanText, says_what_goes_where_how_to_get_it_and_how_to_check_it) {
  Plan plan = release_on("4090-512");
  add_speed(plan);
  const std::string text = plan_text(plan);
  for (const char* part :
       {"routed experts", "Engram tables", "KV cache", "890 B/token", "windows", "work buffers",
        "verdict   fits", "Not in this version", "needs GPU kernels", "decode",
        "hf download deepseek-ai/DeepSeek-V4.1-Flash --local-dir", "510,286,023,000 bytes", "enough",
        "rorqual inspect DeepSeek-V4.1-Flash --verify", "rorqual serve"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(text.find("cures"), std::string::npos);
  const std::string full = plan_text(release_on("ram=128G,disk=100G"));
  EXPECT_NE(full.find("short"), std::string::npos);
  EXPECT_NE(full.find("cures"), std::string::npos);
}

TEST(PlanText, json_has_the_verdict_the_parts_and_no_surprises) {
  Plan plan = release_on("cpu-384");
  add_speed(plan);
  const nlohmann::ordered_json json = plan_json(plan);
  EXPECT_EQ(json["schema"], "rorqual.plan/1");
  EXPECT_EQ(json["checkpoint_bytes"], kReleaseTensor_bytes);
  EXPECT_EQ(json["checkpoint_tensors"], 96'085);
  EXPECT_EQ(json["verdict"]["fits"], true);
  EXPECT_EQ(json["verdict"]["limiting_tier"], "RAM");
  EXPECT_EQ(json["settings"]["engram_placement"], "disk");
  EXPECT_EQ(json["settings"]["kv_bytes_per_token"], 890);
  EXPECT_TRUE(json["not_in_this_version"].is_null());
  EXPECT_EQ(json["download"]["bytes"], kReleaseTensor_bytes);
  int64_t ram = 0;
  for (const auto& part : json["this_version"]["parts"]) {
    if (part["tier"] == "RAM") ram += part["bytes"].get<int64_t>();
  }
  EXPECT_EQ(json["verdict"]["needed_bytes"], ram);
  EXPECT_GT(json["verdict"]["available_bytes"].get<int64_t>(), ram);
}

TEST(PlanText, the_command_to_run_does_what_was_planned) {
  PlanRequest request;
  request.numerics = kernels::Numerics::exact;
  request.max_num_batched_tokens = 64;
  request.switches.lm_head = model::HeadFormat::fp8;
  const std::string text = plan_text(release_on("cpu-768", request));
  EXPECT_NE(text.find("--max-num-batched-tokens 64 --numerics exact --lm-head fp8\n"), std::string::npos)
      << text;
  request.threads = 12;
  request.kv_cache_bytes = int64_t{1} << 30;
  request.prefix_cache_bytes = int64_t{2} << 30;
  const std::string reuse = plan_text(release_on("cpu-768", request));
  EXPECT_NE(reuse.find(" --threads 12 --kv-cache-memory-bytes 1073741824 --prefix-cache-memory 2147483648"),
            std::string::npos)
      << reuse;
  EXPECT_NE(text.find(" --prefix-cache-memory 0 "), std::string::npos) << text;
  PlanRequest synthetic;
  synthetic.model = "synthetic:v41?layers=4&experts=16";
  const auto config = config_of(synthetic.model);
  ASSERT_TRUE(config.ok());
  EXPECT_NE(plan_text(plan_of(*config, *describe_machine("cpu-768"), synthetic))
                .find("rorqual serve 'synthetic:v41?layers=4&experts=16' --engram"),
            std::string::npos);
  synthetic.is_embedded = true;
  EXPECT_NE(
      plan_text(plan_of(*config, *describe_machine("cpu-768"), synthetic)).find("rorqual serve --engram"),
      std::string::npos);
}

TEST(PlanText, what_is_unknown_is_null) {
  const nlohmann::ordered_json json = plan_json(release_on("ram=512G"));
  EXPECT_TRUE(json["machine"]["disk_free_bytes"].is_null());
  EXPECT_TRUE(json["download"]["fits_on_disk"].is_null());
  EXPECT_EQ(plan_json(release_on("ram=512G,disk=400G"))["download"]["fits_on_disk"], false);
}

TEST(PlanText, start_lines_end_with_verdict_and_cures) {
  const Plan plan = release_on("cpu-128");
  const auto lines = start_lines(plan);
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines[0].rfind("RAM: ", 0), 0u) << lines[0];
  bool refuses = false, cures = false;
  for (const std::string& line : lines) {
    refuses |= line.rfind("does not fit: ", 0) == 0;
    cures |= line.find("more RAM -> fits") != std::string::npos;
  }
  EXPECT_TRUE(refuses && cures);
}

TEST(Verdict, gives_the_prefix_cache_at_most_a_quarter_of_what_is_left) {
  PlanRequest request;
  const Plan without = release_on("ram=512G,cores=64", request);
  EXPECT_EQ(without.memory.settings.prefix_cache_bytes, 0);
  request.prefix_cache_bytes = -1;
  const Plan with = release_on("ram=512G,cores=64", request);
  ASSERT_TRUE(with.fits());
  const int64_t bytes = with.memory.settings.prefix_cache_bytes;
  const int64_t left = without.now.of(Tier::ram).available_bytes - without.memory.bytes(Tier::ram);
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, left / 4);
  EXPECT_LE(bytes, 16 * kGiB);
  EXPECT_LE(with.memory.bytes(Tier::ram), without.memory.bytes(Tier::ram) + bytes + (int64_t{1} << 20));

  // Where nothing is left it gets nothing, and nothing else becomes smaller for it.
  const Plan full = release_on("cpu-128", request);
  EXPECT_EQ(full.memory.settings.prefix_cache_bytes, 0);
  request.prefix_cache_bytes = 3 * kGiB;
  EXPECT_EQ(release_on("ram=512G,cores=64", request).memory.settings.prefix_cache_bytes, 3 * kGiB);
}

TEST(Verdict, takes_a_smaller_cache_when_asked_to) {
  PlanRequest request;
  const Plan whole = release_on("ram=512G,cores=64", request);
  request.kv_cache_bytes = int64_t{64} << 20;
  const Plan small = release_on("ram=512G,cores=64", request);
  EXPECT_LE(small.memory.bytes(PartKind::kv_cache), request.kv_cache_bytes + 4096);
  EXPECT_GT(small.memory.bytes(PartKind::kv_cache), request.kv_cache_bytes / 2);
  EXPECT_LT(small.memory.kv_tokens, whole.memory.kv_tokens);
}

TEST(Verdict, counts_swap_space_as_memory_that_may_be_used) {
  PlanRequest request;
  const Plan without = release_on("ram=512G,cores=64", request);
  request.swap_bytes = 3 * kGiB / 2;
  const Plan with = release_on("ram=512G,cores=64", request);
  EXPECT_EQ(without.memory.bytes(PartKind::swap_space), 0);
  EXPECT_EQ(with.memory.bytes(PartKind::swap_space), request.swap_bytes);
  EXPECT_EQ(with.now.of(Tier::ram).needed_bytes - without.now.of(Tier::ram).needed_bytes, request.swap_bytes);
  const std::string text = plan_text(with);
  EXPECT_NE(text.find("swap space"), std::string::npos) << text;
  EXPECT_NE(text.find(" --preemption-mode swap --swap-space 1.5"), std::string::npos) << text;
  EXPECT_EQ(plan_text(without).find("swap"), std::string::npos);
  // Images lie in RAM wherever the caches are.
  const Plan gpus = release_on("8xh200", request);
  ASSERT_TRUE(gpus.later.has_value());
  for (const Part& part : gpus.later->parts) {
    if (part.kind != PartKind::swap_space) continue;
    EXPECT_EQ(part.tier, Tier::ram);
    EXPECT_EQ(part.bytes, request.swap_bytes);
  }
}

TEST(Verdict, offers_to_compute_again_where_swap_space_does_not_fit) {
  PlanRequest request;
  request.swap_bytes = 100 * kGiB;
  request.engram_placement = "host";
  const Plan plan = release_on("4090-512", request);
  ASSERT_FALSE(plan.fits());
  EXPECT_EQ(plan.cures.front().change, "--preemption-mode recompute");
  EXPECT_EQ(plan.cures.front().saved_bytes, request.swap_bytes);
  EXPECT_EQ(plan.cures.front().short_bytes, 0);
}

TEST(Verdict, keeps_no_prefixes_of_a_model_without_compressed_entries) {
  const auto config = config_of("synthetic:v41?layers=1&experts=64&vocab=4096");
  ASSERT_TRUE(config.ok());
  PlanRequest request;
  request.kv_cache_bytes = int64_t{1} << 20;
  for (const int64_t bytes : {int64_t{-1}, kGiB}) {
    request.prefix_cache_bytes = bytes;
    const Plan plan = plan_of(*config, *describe_machine("ram=512G"), request);
    EXPECT_EQ(plan.memory.settings.prefix_cache_bytes, 0);
    EXPECT_EQ(plan.memory.bytes(PartKind::prefix_cache), 0);
  }
}

TEST(Verdict, allows_a_context_beyond_the_configs) {
  PlanRequest request;
  request.max_model_len = 4 * model::release_config().max_position_embeddings;
  EXPECT_EQ(release_on("ram=1T,cores=64", request).memory.settings.max_model_len, request.max_model_len);
}

}  // namespace
}  // namespace rorqual::plan
