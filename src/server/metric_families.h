// SPDX-License-Identifier: Apache-2.0
// Metrics that are read when the page is asked for: the counters and gauges of the engine and of the prompt
// memo, and the process.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "runtime/engine.h"
#include "server/metrics.h"

namespace rorqual::server {

/// Names carry no prefix.
struct EngineFamilies {
  std::vector<prometheus::MetricFamily> shared;  // vLLM has them, too, with the same meaning
  std::vector<prometheus::MetricFamily> own;
};

/// Every label value exists from the start, at 0.
EngineFamilies engine_families(const MetricsLabels& labels, const runtime::EngineStats& stats,
                               const text::PromptMemoStats& memo);

/// The usual process_… figures, complete names.
std::vector<prometheus::MetricFamily> process_families();

}  // namespace rorqual::server
