// SPDX-License-Identifier: Apache-2.0
// Table of routes, and what is checked on a request's head before any of its body is read.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/access.h"
#include "server/http.h"

namespace rorqual::server {

struct Route {
  enum class Needs : uint8_t { nothing, attached, model };  // attached: also while draining

  std::string method;  // GET (HEAD comes with it), POST or DELETE
  std::string path;    // exact, or a prefix when it ends with '/' and is not "/" itself
  HttpHandler handler;
  Needs needs = Needs::nothing;
  bool is_open = false;  // needs no API key
};

/// Whether requests that need the model can be served.
enum class Readiness : uint8_t { loading, ready, draining };

/// Immutable after construction; any thread.
class Router {
 public:
  Router(AccessRules rules, std::function<Readiness()> readiness)
      : rules_(std::move(rules)), readiness_(std::move(readiness)) {}

  void add(Route route) { routes_.push_back(std::move(route)); }

  const std::vector<Route>& routes() const { return routes_; }

  /// Host, origin, key, path, method, media type, readiness, in this order. nullopt = go on and read the
  /// body.
  std::optional<HttpResponse> check(const HttpRequest& request) const;

  /// Only for requests that check() let pass.
  void dispatch(std::shared_ptr<Exchange> exchange) const;

  /// CORS headers, if the request's origin is listed.
  void decorate(const HttpRequest& request, HttpResponse& response) const;

 private:
  const Route* find(std::string_view method, std::string_view path) const;
  std::string allowed_methods(std::string_view path) const;
  HttpResponse answer_options(const HttpRequest& request, const std::string& allowed) const;
  std::optional<HttpError> check_body_headers(const HttpRequest& request) const;
  std::optional<HttpError> check_readiness(const Route& route) const;

  AccessRules rules_;
  std::function<Readiness()> readiness_;
  std::vector<Route> routes_;
};

}  // namespace rorqual::server
