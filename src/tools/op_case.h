// SPDX-License-Identifier: Apache-2.0
// The operations that `bench op` times: a kernel stage with synthetic operands of true shape, and what it
// must at least read and compute.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "tools/machine_ceilings.h"
#include "tools/synthetic_operands.h"

namespace rorqual::tools {

/// What the activations of matrix products are; int8 is a lossy switch of the kernels.
enum class Activations : uint8_t { reference, exact, int8 };

struct OpSettings {
  const model::Config* config = nullptr;  // outlives the case
  Activations activations = Activations::reference;
  int64_t experts = 48;
  bool shared_expert = true;  // off: one of 32 columns, so that the routed experts are alone, as peers time
  int64_t context = 16384;
  int64_t max_tokens = 1;
};

inline kernels::Numerics numerics_of(Activations activations) {
  return activations == Activations::exact ? kernels::Numerics::exact : kernels::Numerics::reference;
}

/// The least work of one call: each byte of weights and caches that the rows need once, inputs and outputs
/// once; multiplications and additions of the products.
struct OpWork {
  double bytes = 0, operations = 0;
  int64_t experts = 0;  // different routed ones; 0 for other operations
};

class OpCase {
 public:
  virtual ~OpCase() = default;

  /// Memory that allocate() takes, and a call beside it. Nothing is allocated before.
  virtual int64_t forecast_bytes() const = 0;

  /// Errors: out_of_memory.
  virtual Status allocate(ThreadPool& pool) = 0;

  /// New operands for the next call of `tokens` rows.
  virtual void prepare(int64_t tokens, FastRandom& random) = 0;

  /// The call that is timed.
  virtual void run(kernels::Context& ctx, const kernels::KernelTable& table) = 0;

  /// Of the last call.
  virtual OpWork work() const = 0;

  /// The unit that bounds the products in these numerics.
  virtual Peak peak(std::string_view tier) const = 0;
};

/// Names for --op, in the order of the documentation.
inline constexpr std::string_view kOpNames[] = {"moe", "dense",  "attention", "indexer",
                                                "mhc", "engram", "head"};

/// Null for an unknown name.
std::unique_ptr<OpCase> make_op_case(std::string_view name, const OpSettings& settings);

std::unique_ptr<OpCase> make_moe_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_dense_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_attention_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_indexer_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_mhc_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_engram_case(const OpSettings& settings);
std::unique_ptr<OpCase> make_head_case(const OpSettings& settings);

/// The unit of a matrix product in these numerics on this tier.
Peak product_peak(Activations activations, std::string_view tier);

}  // namespace rorqual::tools
