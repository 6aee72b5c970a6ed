// SPDX-License-Identifier: Apache-2.0
// Run records beside captures, checked and shown; shared by the kl commands that compare.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "kl/run_record.h"

namespace rorqual::tools {

/// Nothing when there is none. corrupt_data when the record belongs to other bytes than the capture has now.
Result<std::optional<kl::RunRecord>> read_checked_record(const std::string& dump_path);

/// Errors: invalid_argument when both records tell their prompt switches and these differ.
Status check_same_prompts(const std::optional<kl::RunRecord>& a, const std::optional<kl::RunRecord>& b);

/// "0.2.0 abc1234, exact, avx2, lm-head=fp8": who made it and how, on one line.
std::string settings_text(const kl::RunRecord& record);

/// One line of JSON with a line end; bytes that are no UTF-8 are replaced, numbers that are not finite become
/// null.
std::string dump_json(const nlohmann::ordered_json& document);

}  // namespace rorqual::tools
