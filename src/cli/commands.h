// SPDX-License-Identifier: Apache-2.0
// One function per command: its option table and the code that turns values into the tool's Options struct.
#pragma once

#include <vector>

#include "cli/option.h"

namespace rorqual::cli {

CommandSpec serve_command();
CommandSpec chat_command();
CommandSpec convert_command();
CommandSpec inspect_command();
CommandSpec tokenize_command();
CommandSpec render_command();
CommandSpec parse_command();
CommandSpec check_command();
CommandSpec kl_corpus_command();
CommandSpec kl_capture_command();
CommandSpec kl_panel_command();
CommandSpec kl_agree_command();
CommandSpec kl_compare_command();
CommandSpec kl_gate_command();
CommandSpec kl_table_command();
CommandSpec kl_report_command();
CommandSpec plan_command();
CommandSpec bench_agent_command();
CommandSpec bench_compare_command();
CommandSpec bench_context_command();
CommandSpec bench_latency_command();
CommandSpec bench_op_command();
CommandSpec bench_serve_command();
CommandSpec doctor_command();
CommandSpec completion_command();
CommandSpec version_command();

/// Options that every command has (config, print-config, json), appended by commands().
std::vector<OptionSpec> shared_options();

/// A rough check against typing errors in the tables: unique names, kinds with their value names. Empty =
/// fine.
std::string table_fault(const CommandSpec& command);

}  // namespace rorqual::cli
