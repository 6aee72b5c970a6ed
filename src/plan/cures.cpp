// SPDX-License-Identifier: Apache-2.0
#include "plan/cures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/units.h"
#include "plan/placement.h"

namespace rorqual::plan {
namespace {

constexpr size_t kMostCures = 3;
constexpr int64_t kLeastModelLen = 1024, kLeastStepRows = 64;

/// A change of settings and how to write it.
struct Change {
  MemorySettings settings;
  std::string text;
};

/// "1.3 GiB", never less than `bytes`: tenths of the unit, rounded up.
std::string at_least(int64_t bytes) {
  int64_t unit = 1024;
  while (unit < (int64_t{1} << 50) && bytes / 1024 >= unit) unit *= 1024;
  const double tenth = static_cast<double>(unit) / 10;
  return format_bytes(static_cast<int64_t>(std::ceil(std::ceil(static_cast<double>(bytes) / tenth) * tenth)));
}

class Doctor {
 public:
  Doctor(const MemoryPlan& memory, const Machine& machine) : memory_(memory), machine_(machine) {
    needed_ = needed(memory.settings);
    available_ = place_on_cpu(memory, machine).of(Tier::ram).available_bytes;
  }

  bool is_well() const { return needed_ <= available_; }

  std::vector<Cure> cures() const {
    std::vector<Cure> good, partial;
    for (const Change& change : changes()) {
      Cure cure = try_change(change);
      if (cure.saved_bytes <= 0) continue;
      (cure.short_bytes == 0 ? good : partial).push_back(std::move(cure));
    }
    // Partial help is named where it is most of what is missing, to be combined with memory.
    std::vector<Cure> all = std::move(good);
    for (Cure& cure : partial) {
      if (all.empty() && cure.saved_bytes > cure.short_bytes) all.push_back(std::move(cure));
    }
    add_ram(all);
    if (all.size() > kMostCures) all.resize(kMostCures);
    return all;
  }

 private:
  int64_t needed(const MemorySettings& settings) const {
    return plan_memory(memory_.config, settings).bytes(Tier::ram);
  }

  Cure try_change(const Change& change) const {
    const int64_t bytes = needed(change.settings);
    return {change.text, needed_ - bytes, std::max<int64_t>(0, bytes - available_)};
  }

  bool fits(const MemorySettings& settings) const { return needed(settings) <= available_; }

  /// The largest value of a setting below the present one that fits, halving; the smallest if none does.
  void shrink(MemorySettings& settings, int64_t MemorySettings::*field, int64_t least) const {
    while (settings.*field > least) {
      settings.*field = std::max(least, settings.*field / 2);
      if (fits(settings)) return;
    }
  }

  bool has_tables_in_ram() const {
    return !memory_.settings.engram_on_disk && memory_.bytes(PartKind::engram_tables) > 0;
  }

  std::string options_text(const MemorySettings& changed) const {
    const MemorySettings& now = memory_.settings;
    std::vector<std::string> words;
    if (changed.engram_on_disk != now.engram_on_disk) words.emplace_back("--engram-placement disk");
    if (changed.swap_bytes != now.swap_bytes) words.emplace_back("--preemption-mode recompute");
    if (changed.max_num_seqs != now.max_num_seqs)
      words.push_back(fmt::format("--max-num-seqs {}", changed.max_num_seqs));
    if (changed.max_model_len != now.max_model_len)
      words.push_back(fmt::format("--max-model-len {}", changed.max_model_len));
    if (changed.max_num_batched_tokens != now.max_num_batched_tokens)
      words.push_back(fmt::format("--max-num-batched-tokens {}", changed.max_num_batched_tokens));
    return fmt::format("{}", fmt::join(words, " "));
  }

  std::vector<Change> changes() const {
    const MemorySettings& now = memory_.settings;
    std::vector<Change> all;
    const auto add = [&](const MemorySettings& settings) {
      std::string text = options_text(settings);
      const bool is_known = text.empty() || std::any_of(all.begin(), all.end(),
                                                        [&](const Change& c) { return c.text == text; });
      if (!is_known) all.push_back({settings, std::move(text)});
    };
    MemorySettings changed = now;
    changed.swap_bytes = 0;
    add(changed);
    changed = now;
    shrink(changed, &MemorySettings::max_num_seqs, 1);
    add(changed);
    changed = now;
    shrink(changed, &MemorySettings::max_model_len, std::min(kLeastModelLen, now.max_model_len));
    add(changed);
    changed = now;
    shrink(changed, &MemorySettings::max_num_batched_tokens,
           std::min(kLeastStepRows, now.max_num_batched_tokens));
    add(changed);
    if (has_tables_in_ram()) {
      changed = now;
      changed.engram_on_disk = true;
      add(changed);
    }
    // Together, mildest first; tables go to disk only where the others are not enough.
    for (const bool on_disk : {false, true}) {
      if (on_disk && !has_tables_in_ram()) continue;
      changed = now;
      changed.swap_bytes = 0;
      changed.engram_on_disk = now.engram_on_disk || on_disk;
      for (const auto& [field, least] :
           {std::pair{&MemorySettings::max_num_seqs, int64_t{1}},
            std::pair{&MemorySettings::max_model_len, std::min(kLeastModelLen, now.max_model_len)},
            std::pair{&MemorySettings::max_num_batched_tokens,
                      std::min(kLeastStepRows, now.max_num_batched_tokens)}}) {
        if (fits(changed)) break;
        shrink(changed, field, least);
      }
      add(changed);
    }
    return all;
  }

  /// "2.1 GiB more RAM" for `bytes` to fit, and by how much a cgroup limit must rise. The system of a
  /// described machine and our own reserve take their shares of what is added.
  std::string more_memory(int64_t bytes) const {
    const int64_t available = ram_with_reserve_bytes(bytes);
    const int64_t missing = available - machine_.ram_available_bytes, limit = machine_.cgroup_limit_bytes;
    const bool is_limited = limit > 0 && (machine_.is_described || limit < machine_.ram_total_bytes);
    int64_t ram = missing, raise = 0;
    if (machine_.is_described) {
      ram = ram_total_for(available) - machine_.ram_total_bytes;
      if (is_limited) raise = available - limit;
    } else if (is_limited) {
      raise = missing;  // a part of the limit may be in use
      ram = limit + raise - machine_.ram_total_bytes;
    }
    std::vector<std::string> words;
    if (ram > 0) words.push_back(at_least(ram) + " more RAM");
    if (raise > 0) words.push_back("a cgroup limit that is " + at_least(raise) + " higher");
    return fmt::format("{}", fmt::join(words, " and "));
  }

  void add_ram(std::vector<Cure>& cures) const {
    if (has_tables_in_ram()) {
      MemorySettings on_disk = memory_.settings;
      on_disk.engram_on_disk = true;
      const int64_t bytes = needed(on_disk);
      if (bytes > available_) {
        cures.push_back({more_memory(bytes) + " with --engram-placement disk", 0, 0});
      }
    }
    cures.push_back({more_memory(needed_), 0, 0});
  }

  const MemoryPlan& memory_;
  const Machine& machine_;
  int64_t needed_ = 0, available_ = 0;
};

}  // namespace

std::vector<Cure> find_cures(const MemoryPlan& memory, const Machine& machine) {
  const Doctor doctor(memory, machine);
  if (doctor.is_well()) return {};
  return doctor.cures();
}

}  // namespace rorqual::plan
