// SPDX-License-Identifier: Apache-2.0
#include "tools/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "plan/plan_text.h"
#include "plan/release.h"
#include "tools/embedded_model.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

void print_machines(bool as_json) {
  if (as_json) {
    Json machines = Json::array();
    for (const plan::NamedMachine& machine : plan::named_machines()) {
      machines.push_back(
          {{"name", machine.name}, {"summary", machine.summary}, {"description", machine.description}});
    }
    const Json out = {{"schema", "rorqual.machines/1"}, {"machines", std::move(machines)}};
    fmt::print("{}\n", out.dump(2));
    return;
  }
  report::Table table;
  table.header = {"name", "machine", "described as"};
  for (const plan::NamedMachine& machine : plan::named_machines()) {
    table.rows.push_back(
        {std::string(machine.name), std::string(machine.summary), std::string(machine.description)});
  }
  fmt::print("{}", report::to_text(table));
}

Result<model::Config> read_config(const std::string& model) {
  if (!model.empty()) return plan::config_of(model);
  RORQUAL_TRY_ASSIGN(const auto source, open_embedded_model());
  RORQUAL_TRY_ASSIGN(const std::string text, source->read_text("config.json"));
  return model::parse_config(text);
}

}  // namespace

Status run_plan(const PlanOptions& options) {
  if (options.machine == "list") {
    print_machines(options.as_json);
    return Ok();
  }
  RORQUAL_TRY_ASSIGN(const model::Config config, read_config(options.request.model));
  plan::Machine machine;
  if (options.machine.empty()) {
    const bool is_folder =
        options.request.model != plan::kReleaseName && !options.request.model.starts_with("synthetic:");
    machine = plan::this_machine(is_folder ? options.request.model : "");
  } else {
    RORQUAL_TRY_ASSIGN(machine, plan::describe_machine(options.machine));
  }
  plan::PlanRequest request = options.request;
  if (request.model.empty()) request.model = kEmbeddedModelName;
  RORQUAL_TRY_ASSIGN(plan::Plan plan, plan::make_plan(config, machine, request));
  plan::add_speed(plan);
  if (options.as_json) {
    fmt::print("{}\n", plan::plan_json(plan).dump(2));
  } else {
    fmt::print("{}", plan::plan_text(plan));
  }
  return Ok();
}

}  // namespace rorqual::tools
