// SPDX-License-Identifier: Apache-2.0
// tokenize, render, parse.
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/text_tools.h"

namespace rorqual::cli {
namespace {

OptionSpec tokenizer_option() {
  return {.name = "tokenizer",
          .kind = OptionKind::path,
          .group = "text",
          .help = "tokenizer.json, or a model folder that holds one; default: the embedded model's",
          .value_name = "PATH",
          .is_common = true};
}

OptionSpec file_option() {
  return {.name = "file",
          .kind = OptionKind::path,
          .group = "text",
          .help = "read the input from a file; default: standard input",
          .value_name = "FILE",
          .is_common = true};
}

OptionSpec flag_option(std::string_view name, std::string_view help) {
  return {.name = name, .kind = OptionKind::flag, .group = "text", .help = help, .is_common = true};
}

OptionSpec input_argument(std::string_view help) {
  return {.name = "input", .group = "arguments", .help = help, .value_name = "INPUT", .is_positional = true};
}

tools::TextInput input_of(const Values& values) {
  return {.text = values.text("input"), .has_text = values.has("input"), .file = values.text("file")};
}

Status tokenize(const Values& values) {
  return tools::run_tokenize({.input = input_of(values),
                              .tokenizer = values.text("tokenizer"),
                              .decode = values.flag("decode"),
                              .plain = values.flag("plain"),
                              .skip_special = values.flag("skip-special"),
                              .pieces = values.flag("pieces"),
                              .as_json = values.flag("json")});
}

Status render(const Values& values) {
  RORQUAL_TRY_ASSIGN(const auto prompt_compat, prompt_compat_value(values));
  return tools::run_render({.input = input_of(values),
                            .tokenizer = values.text("tokenizer"),
                            .ids = values.flag("ids"),
                            .prompt_compat = prompt_compat,
                            .as_json = values.flag("json")});
}

Status parse(const Values& values) {
  return tools::run_parse({.input = input_of(values),
                           .tokenizer = values.text("tokenizer"),
                           .ids = values.flag("ids"),
                           .stage = values.text("stage"),
                           .tool_calls = values.flag("tool-calls"),
                           .json_output = values.flag("json-output"),
                           .hit_length = values.flag("hit-length"),
                           .stop = values.list("stop")});
}

}  // namespace

CommandSpec tokenize_command() {
  return {.name = "tokenize",
          .summary = "text to token ids, or back with --decode",
          .description =
              "Prints the ids of a text. Spellings of control tokens become control tokens unless --plain.",
          .example = "rorqual tokenize --pieces 'Hello, world'",
          .options = {input_argument("the text, or the ids with --decode; default: --file or standard input"),
                      tokenizer_option(), file_option(),
                      flag_option("decode", "the input is ids (`1 2 3` or a JSON list), the output text"),
                      flag_option("plain", "spellings of control tokens are ordinary text"),
                      flag_option("skip-special", "with --decode: leave control tokens out"),
                      flag_option("pieces", "one line per token: id, tab, piece")},
          .run = tokenize};
}

CommandSpec render_command() {
  return {
      .name = "render",
      .summary = "chat messages to the prompt and its ids",
      .description = "Prints the prompt that the chat endpoint would give to the model for a request body.",
      .example = "rorqual render '[{\"role\": \"user\", \"content\": \"Hello\"}]'",
      .options = {input_argument(
                      "chat completions body or list of messages, as JSON; default: --file or standard "
                      "input"),
                  tokenizer_option(), file_option(),
                  flag_option("ids", "print token ids instead of the prompt"), prompt_compat_option()},
      .run = render};
}

CommandSpec parse_command() {
  return {.name = "parse",
          .summary = "model output to a message: reasoning, content, tool calls",
          .description =
              "Prints the message as JSON. In text the markers count by their spelling, with --ids only as "
              "control tokens.",
          .example = "rorqual parse --stage reasoning 'Easy.</think>It is 4.'",
          .options = {input_argument("model output; default: --file or standard input"),
                      tokenizer_option(),
                      file_option(),
                      flag_option("ids", "the input is token ids"),
                      {.name = "stage",
                       .kind = OptionKind::choice,
                       .group = "text",
                       .help = "where the prompt left off",
                       .value_name = "STAGE",
                       .default_value = "content",
                       .choices = "content|reasoning",
                       .is_common = true},
                      flag_option("tool-calls", "tools are active: read tool calls"),
                      flag_option("json-output", "response_format is json_object"),
                      flag_option("hit-length", "the output ended at its token limit"),
                      {.name = "stop",
                       .group = "text",
                       .help = "stop string",
                       .value_name = "TEXT",
                       .is_common = true,
                       .is_list = true}},
          .run = parse};
}

}  // namespace rorqual::cli
