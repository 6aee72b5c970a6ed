// SPDX-License-Identifier: Apache-2.0
// version, completion, doctor.
#include <cstdio>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/values.h"
#include "tools/doctor.h"
#include "tools/version.h"

namespace rorqual::cli {

CommandSpec version_command() {
  return {
      .name = "version",
      .summary = "version, commit, compiler, libraries, kernel tier",
      .description =
          "Prints what this program was built from. With --json also compiler flags, library versions and "
          "the program's own SHA-256.",
      .example = "rorqual version --json",
      .options = {},
      .run = [](const Values& values) { return tools::run_version(values.flag("json")); }};
}

CommandSpec doctor_command() {
  return {
      .name = "doctor",
      .summary = "CPU, memory, limits, kernels, quick measures and a self-test",
      .description =
          "Reports what this machine gives to the program and whether all kernel tiers agree here. Put its "
          "output into bug reports.",
      .example = "rorqual doctor --json",
      .options =
          {{.name = "measure",
            .kind = OptionKind::flag,
            .group = "measures",
            .help = "measure memory, arithmetic, kernels and disk (below ten seconds)",
            .default_value = "on",
            .is_common = true},
           {.name = "threads",
            .kind = OptionKind::integer,
            .group = "measures",
            .help = "threads of the measures, 0 = the physical cores that this process may use",
            .value_name = "N",
            .default_value = "0",
            .min = 0,
            .max = 4096,
            .is_common = true},
           {.name = "disk",
            .kind = OptionKind::path,
            .group = "measures",
            .help = "model folder or file whose disk is measured; default: a temporary file of 256 MiB here",
            .value_name = "PATH",
            .is_common = true}},
      .run = [](const Values& values) {
        return tools::run_doctor({.as_json = values.flag("json"),
                                  .measure = values.flag("measure"),
                                  .threads = static_cast<int>(values.integer("threads")),
                                  .disk = values.text("disk")});
      }};
}

CommandSpec completion_command() {
  return {.name = "completion",
          .summary = "shell completion script for bash, zsh or fish",
          .description = "Prints a script that completes commands, options and fixed values.",
          .example = "source <(rorqual completion bash)",
          .options = {{.name = "shell",
                       .kind = OptionKind::choice,
                       .group = "arguments",
                       .help = "shell to write for",
                       .value_name = "SHELL",
                       .choices = "bash|zsh|fish",
                       .is_positional = true,
                       .is_required = true}},
          .run = [](const Values& values) -> Status {
            RORQUAL_TRY_ASSIGN(const auto script, completion_script(values.text("shell")));
            std::fputs(script.c_str(), stdout);
            return Ok();
          }};
}

}  // namespace rorqual::cli
