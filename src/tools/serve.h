// SPDX-License-Identifier: Apache-2.0
// `rorqual serve`: model, engine and HTTP server put together; banner, loading, ready line, graceful end.
#pragma once

#include <string>

#include "base/result.h"
#include "runtime/local_engine.h"
#include "server/server.h"
#include "tools/log.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct ServeOptions {
  OpenOptions open;
  runtime::EngineOptions engine;
  ReuseOptions reuse;
  std::string engine_name = "local";             // local, script:FILE or a URL
  std::string upstream_api_key, upstream_model;  // of a URL
  server::ServerOptions server;
  LogOptions log;
  bool isolates_cpus = false;  // compute threads on cores of their own, everything else on the others
  bool as_json = false;        // a failure to start prints its JSON object alone: log lines wait until then
  std::string given_options;   // "port=8001 …": what differs from the defaults, for the banner
};

/// Listens at once, answers /ready with 503 while the model loads, serves until SIGINT or SIGTERM. The first
/// signal drains (running requests finish up to shutdown_timeout), the second cancels them. Standard output
/// stays empty. Errors: those of loading and of the port; cancelled when a signal came during loading or a
/// second time.
Status run_serve(const ServeOptions& options);

}  // namespace rorqual::tools
