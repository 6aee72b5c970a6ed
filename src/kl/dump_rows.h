// SPDX-License-Identifier: Apache-2.0
// What the reader, the writer and the writer of full logits share: checks of a dump's values, and its arrays
// by name. Private to src/kl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/safetensors_writer.h"
#include "kl/dump.h"

namespace rorqual::kl {

/// Sizes of all arrays against info, and windows that follow one another. corrupt_data.
Status check_dump_shapes(const Dump& dump);

/// Shapes and values: ids inside the vocabulary and once per row, log-probabilities finite, at most 0 and
/// descending, the actual token's equal to the one in the row's top K. corrupt_data with row, got, expected.
Status check_dump(const Dump& dump);

/// Puts ids of equal log-probability in descending order, as the protocol wants it.
void sort_ties(Dump& dump);

/// Tensors of the .safetensors layout, in file order; `logits` [N, V] first if asked for.
std::vector<format::TensorDeclaration> dump_tensors(const Dump& dump, bool with_logits);
format::Metadata dump_metadata(const Dump& dump);

/// Calls visit for every array but the logits, in the order of dump_tensors.
Status for_each_dump_array(
    const Dump& dump,
    const std::function<Status(std::string_view name, std::span<const std::byte> bytes)>& visit);

/// Appends one code point; false for surrogates and values past U+10FFFF.
bool append_utf8(uint32_t code, std::string& out);

}  // namespace rorqual::kl
