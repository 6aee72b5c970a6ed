// SPDX-License-Identifier: Apache-2.0
#include "tools/load_facts.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDrain_s = 20;
constexpr std::chrono::milliseconds kDrainPoll{50};

/// The id of the first model of a list, or empty.
std::string first_model(const Json& json) {
  const auto id =
      json.is_object() ? json.value(Json::json_pointer("/data/0/id"), Json(nullptr)) : Json(nullptr);
  return id.is_string() ? id.get<std::string>() : std::string();
}

}  // namespace

Result<ServerFacts> ask_server(const HttpClient& client, const std::string& wanted) {
  ServerFacts facts;
  facts.model = wanted;
  if (wanted.empty()) {
    RORQUAL_TRY_ASSIGN(const std::string body, client.get("/v1/models"));
    facts.model = first_model(Json::parse(body, nullptr, false));
    if (facts.model.empty()) {
      return Error(Code::corrupt_data, fmt::format("{}/v1/models: the answer lists no model", client.url()),
                   "--url must point to an OpenAI-compatible server");
    }
  }
  const auto version = client.get("/version");
  if (version.ok() && Json::accept(*version)) facts.version = *version;
  return facts;
}

std::optional<MetricsSample> wait_until_drained(const HttpClient& client) {
  const double give_up_s = unix_now_s() + kDrain_s;
  while (unix_now_s() < give_up_s) {
    auto body = client.get("/metrics");
    if (!body.ok()) return std::nullopt;
    const MetricsSample sample = read_metrics(MetricsText(*std::move(body)));
    if (sample.at(Series::running).value_or(0) == 0 && sample.at(Series::waiting).value_or(0) == 0)
      return sample;
    std::this_thread::sleep_for(kDrainPoll);
  }
  return std::nullopt;
}

}  // namespace rorqual::tools
