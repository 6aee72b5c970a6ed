// SPDX-License-Identifier: Apache-2.0
#include "tools/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "model/synthetic_spec.h"
#include "plan/plan_text.h"
#include "plan/release.h"
#include "tools/embedded_model.h"
#include "tools/measured_machine.h"

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

Result<plan::Machine> machine_of(const PlanOptions& options) {
  if (!options.machine.empty()) return plan::describe_machine(options.machine);
  const std::string& model = options.request.model;
  const bool is_folder = model != plan::kReleaseName && !model::is_synthetic(model);
  const std::string folder = is_folder ? model : "";
  if (!options.measure) return plan::this_machine(folder);
  return measure_machine(folder, options.request.threads, options.request.numerics);
}

/// One model on all built-in machines, as a Markdown table or a list of plans.
Status plan_all(const model::Config& config, const plan::PlanRequest& request, bool as_json) {
  std::vector<plan::Plan> plans;
  Json list = Json::array();
  for (const plan::NamedMachine& named : plan::named_machines()) {
    RORQUAL_TRY_ASSIGN(const plan::Machine machine, plan::describe_machine(named.name));
    RORQUAL_TRY_ASSIGN(plan::Plan plan, plan::make_plan(config, machine, request));
    plan::add_speed(plan);
    if (as_json) list.push_back(plan::plan_json(plan));
    plans.push_back(std::move(plan));
  }
  if (as_json) {
    const Json out = {{"schema", "rorqual.plans/1"}, {"plans", std::move(list)}};
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print("{}", report::to_markdown(plan::machines_table(plans)));
  }
  return Ok();
}

}  // namespace

Status run_plan(const PlanOptions& options) {
  if (options.machine == "list") {
    print_machines(options.as_json);
    return Ok();
  }
  RORQUAL_TRY_ASSIGN(const model::Config config, read_config(options.request.model));
  plan::PlanRequest request = options.request;
  if (request.model.empty()) {
    request.model = kEmbeddedModelName;
    request.is_embedded = true;
  }
  if (options.machine == "all") return plan_all(config, request, options.as_json);
  RORQUAL_TRY_ASSIGN(const plan::Machine machine, machine_of(options));
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
