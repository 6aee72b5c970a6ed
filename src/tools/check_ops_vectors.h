// SPDX-License-Identifier: Apache-2.0
// What the topics of `rorqual check ops` share: the tensors of one file and the comparison of results with
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "kernels/operators.h"
#include "tensor/buffer.h"
#include "tools/check_report.h"

namespace rorqual::tools {

/// One tensor of a file: F32 and BF16 as floats, integer types as integers; the other list is empty.
struct OpsTensor {
  std::vector<int64_t> shape;
  std::vector<float> floats;
  std::vector<int64_t> integers;

  bool is_float() const { return !floats.empty() || integers.empty(); }

  int64_t dim(size_t i) const { return shape[i]; }

  int64_t last_dim() const { return shape.empty() ? 1 : shape.back(); }

  int64_t count() const;
  /// Integers that are bytes in the file.
  std::vector<uint8_t> bytes() const;
};

/// All tensors of one safetensors file.
class OpsVectors {
 public:
  static Result<OpsVectors> open(const std::string& path);

  const std::string& path() const { return path_; }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  const std::map<std::string, OpsTensor>& tensors() const { return tensors_; }

  /// Error corrupt_data if there is no tensor of that name, or its rank is not `rank` (-1: any).
  Result<const OpsTensor*> need(const std::string& name, int rank = -1) const;

  /// The same, with the shape given.
  Result<const OpsTensor*> need_shape(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::string path_;
  std::map<std::string, OpsTensor> tensors_;
};

/// One file on one tier. Topic functions run under flush-to-zero, as compute threads do, and call the expect
/// functions once per tensor; a failure names file, tier, tensor, first index, both values and both bit
/// patterns.
class OpsCheck {
 public:
  OpsCheck(const OpsVectors& file, const kernels::OperatorTable& operators, const kernels::KernelTable& table,
           CheckReport& report)
      : vectors(file), ops(operators), kernels(table), report_(report) {}

  const OpsVectors& vectors;
  const kernels::OperatorTable& ops;
  const kernels::KernelTable& kernels;

  /// Same bits; any NaN equals any NaN.
  bool expect_bits(const std::string& label, const std::vector<float>& want, const std::vector<float>& got);

  /// |want - got| <= bound(i) for every element; NaN equals NaN, and infinities must be the same.
  bool expect_within(const std::string& label, const std::vector<float>& want, const std::vector<float>& got,
                     const std::function<double(size_t)>& bound);

  bool expect_integers(const std::string& label, const std::vector<int64_t>& want,
                       const std::vector<int64_t>& got);

 private:
  std::string place(const std::string& label) const;

  CheckReport& report_;
};

/// A weight of a file in panels, with its memory.
class OpsMatrix {
 public:
  /// `source` and `scales` as pack_matrix wants them.
  OpsMatrix(kernels::WeightFormat format, int64_t rows, int64_t cols, const std::vector<uint8_t>& source,
            const std::vector<uint8_t>& scales);

  /// From a float tensor [rows, cols], as f32 or (values must be on its grid) bf16.
  OpsMatrix(kernels::WeightFormat format, const OpsTensor& tensor);

  const kernels::Matrix& view() const { return view_; }

 private:
  void pack(kernels::WeightFormat format, int64_t rows, int64_t cols, const std::byte* source,
            const uint8_t* scales);

  tensor::Buffer data_, scales_;
  kernels::Matrix view_;
};

/// y [num_rows, weight.rows] = x · Wᵀ on one tier; x [num_rows, weight.cols] is padded here.
std::vector<float> ops_linear(const kernels::OperatorTable& ops, const kernels::Matrix& weight,
                              const std::vector<float>& x, int64_t num_rows, bool round_bf16);

/// Distance of neighbouring BF16 values at |value|: what a rounding that fell the other way can change.
double bf16_step(double value);

// check_ops.cpp
Status check_ops_tables(OpsCheck& check);
Status check_ops_weights(OpsCheck& check);
Status check_ops_activations(OpsCheck& check);
Status check_ops_linear(OpsCheck& check);
Status check_ops_norm(OpsCheck& check);
Status check_ops_mlp(OpsCheck& check);

// check_ops_attention.cpp
Status check_ops_hyper(OpsCheck& check);
Status check_ops_rope(OpsCheck& check);
Status check_ops_compressor(OpsCheck& check);
Status check_ops_hashing(OpsCheck& check);
Status check_ops_attention(OpsCheck& check);

}  // namespace rorqual::tools
