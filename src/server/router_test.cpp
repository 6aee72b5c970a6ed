// SPDX-License-Identifier: Apache-2.0
#include "server/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rorqual::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

class RouterTest : public ::testing::Test {
 protected:
  Router make(AccessOptions access = {}) {
    access.bind_host = "127.0.0.1";
    Router router{AccessRules(access), [this] { return readiness_; }};
    const HttpHandler nothing = [](const std::shared_ptr<Exchange>&) {};
    router.add({.method = "GET", .path = "/", .handler = nothing, .is_open = true});
    router.add({.method = "GET", .path = "/health", .handler = nothing, .is_open = true});
    router.add({.method = "GET", .path = "/metrics", .handler = nothing, .needs = Route::Needs::attached});
    router.add({.method = "GET", .path = "/v1/models/", .handler = nothing, .needs = Route::Needs::model});
    router.add({.method = "POST", .path = "/v1/chat", .handler = nothing, .needs = Route::Needs::model});
    return router;
  }

  static HttpRequest request(const std::string& method, const std::string& path, HeaderList headers = {}) {
    HttpRequest r;
    r.method = method;
    r.target = r.path = path;
    r.headers = std::move(headers);
    return r;
  }

  static int status(const Router& router, const HttpRequest& r) {
    const auto response = router.check(r);
    return response ? response->status : 0;
  }

  Readiness readiness_ = Readiness::ready;
};

TEST_F(RouterTest, FindsRoutesByMethodAndPath) {
  const Router router = make();
  EXPECT_EQ(status(router, request("GET", "/")), 0);
  EXPECT_EQ(status(router, request("HEAD", "/health")), 0);
  EXPECT_EQ(status(router, request("GET", "/metrics/")), 0);
  EXPECT_EQ(status(router, request("GET", "/v1/models/a/b")), 0);
  EXPECT_EQ(status(router, request("POST", "/v1/chat")), 0);
  EXPECT_EQ(status(router, request("GET", "/v1/models/")), 404);
  EXPECT_EQ(status(router, request("GET", "/nothing")), 404);
  const auto response = router.check(request("GET", "/v1/chat"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 405);
  EXPECT_THAT(response->headers, Contains(Pair("Allow", "POST, OPTIONS")));
  EXPECT_EQ(status(router, request("TRACE", "/")), 405);
}

TEST_F(RouterTest, ServesNoFilesWhateverThePath) {
  const Router router = make();
  for (const char* path : {"/../../etc/passwd",
                           "/%2e%2e%2fetc/passwd",
                           "/..%2f..%2fetc/passwd",
                           "/..\\..\\etc",
                           "//",
                           "//etc/passwd",
                           "/./",
                           "/chat.html/..",
                           "/%00",
                           "/health/../metrics",
                           "/.git/config",
                           "*",
                           "",
                           "http://other/",
                           "/health%00",
                           "/HEALTH",
                           "/health//",
                           "/web/chat.html",
                           "/~root",
                           "/index.html"}) {
    EXPECT_EQ(status(router, request("GET", path)), 404) << path;
  }
}

TEST_F(RouterTest, NeedsAKeyEverywhereButOnOpenRoutes) {
  const Router router = make({.api_keys = {"secret", "other"}});
  EXPECT_EQ(status(router, request("GET", "/")), 0);
  EXPECT_EQ(status(router, request("GET", "/health")), 0);
  for (const char* path : {"/metrics", "/v1/models/x", "/nothing"}) {
    EXPECT_EQ(status(router, request("GET", path)), 401) << path;
    EXPECT_EQ(status(router, request("GET", path, {{"Authorization", "Bearer secre"}})), 401) << path;
    EXPECT_EQ(status(router, request("GET", path, {{"Authorization", "Bearer "}})), 401) << path;
    EXPECT_EQ(status(router, request("GET", path, {{"Authorization", "Basic secret"}})), 401) << path;
  }
  EXPECT_EQ(status(router, request("POST", "/v1/chat")), 401);
  EXPECT_EQ(status(router, request("POST", "/v1/chat", {{"authorization", "bearer secret"}})), 0);
  EXPECT_EQ(status(router, request("POST", "/v1/chat", {{"X-Api-Key", "other"}})), 0);
  const auto response = router.check(request("GET", "/metrics", {{"Authorization", "Bearer wrong-key"}}));
  ASSERT_TRUE(response);
  EXPECT_THAT(response->body, Not(HasSubstr("wrong-key")));
}

TEST_F(RouterTest, RefusesForeignHostNamesOnALoopbackBind) {
  const Router local = make({.allowed_hosts = {"box.lan"}, .is_loopback = true});
  for (const char* host :
       {"127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "127.0.0.53", "box.lan:80"}) {
    EXPECT_EQ(status(local, request("GET", "/health", {{"Host", host}})), 0) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "[::2]"}) {
    EXPECT_EQ(status(local, request("GET", "/health", {{"Host", host}})), 403) << host;
  }
  const Router open = make({.is_loopback = false});
  EXPECT_EQ(status(open, request("GET", "/health", {{"Host", "evil.example"}})), 0);
}

TEST_F(RouterTest, TakesOnlyListedNamesAndAddressesWhereNamesAreListed) {
  const Router router = make({.allowed_hosts = {"llm.lan"}, .is_loopback = false});
  for (const char* host : {"llm.lan:8000", "LLM.lan", "192.168.1.7:8000", "[fd00::7]:8000", "localhost"}) {
    EXPECT_EQ(status(router, request("GET", "/health", {{"Host", host}})), 0) << host;
  }
  for (const char* host : {"evil.example", "llm.lan.evil.example", "1.2.3.4.evil", "[evil"}) {
    EXPECT_EQ(status(router, request("GET", "/health", {{"Host", host}})), 403) << host;
  }
}

TEST_F(RouterTest, RefusesPostsFromPagesOfOtherSites) {
  const Router router = make({.allowed_origins = {"https://ui.example"}});
  const auto post = [&](const char* origin) {
    return status(router, request("POST", "/v1/chat", {{"Host", "127.0.0.1:8000"}, {"Origin", origin}}));
  };
  EXPECT_EQ(post("http://127.0.0.1:8000"), 0);
  EXPECT_EQ(post("https://ui.example"), 0);
  EXPECT_EQ(post("http://evil.example"), 403);
  EXPECT_EQ(post("http://127.0.0.1:9000"), 403);
  EXPECT_EQ(post("null"), 403);
}

TEST_F(RouterTest, SendsCorsHeadersToListedOriginsOnly) {
  const Router router = make({.allowed_origins = {"https://ui.example"}});
  HttpResponse response;
  router.decorate(request("GET", "/", {{"Origin", "https://ui.example"}}), response);
  EXPECT_THAT(response.headers, Contains(Pair("Access-Control-Allow-Origin", "https://ui.example")));
  response = {};
  router.decorate(request("GET", "/", {{"Origin", "https://evil.example"}}), response);
  EXPECT_TRUE(response.headers.empty());
  const auto preflight = router.check(request("OPTIONS", "/v1/chat", {{"Origin", "https://ui.example"}}));
  ASSERT_TRUE(preflight);
  EXPECT_EQ(preflight->status, 204);
  EXPECT_THAT(preflight->headers, Contains(Pair("Access-Control-Allow-Methods", "POST, OPTIONS")));
}

TEST_F(RouterTest, TakesJsonBodiesOnly) {
  const Router router = make();
  const auto post = [&](HeaderList headers) {
    return status(router, request("POST", "/v1/chat", std::move(headers)));
  };
  EXPECT_EQ(post({{"Content-Type", "application/json"}}), 0);
  EXPECT_EQ(post({{"Content-Type", "Application/JSON; charset=utf-8"}}), 0);
  EXPECT_EQ(post({{"Content-Type", "text/plain"}}), 415);
  EXPECT_EQ(post({{"Content-Type", "application/json"}, {"Content-Encoding", "gzip"}}), 415);
}

TEST_F(RouterTest, TellsLoadingAndDrainingApart) {
  const Router router = make();
  readiness_ = Readiness::loading;
  auto response = router.check(request("POST", "/v1/chat"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 503);
  EXPECT_THAT(response->body, HasSubstr("loading"));
  EXPECT_THAT(response->headers, Contains(Pair("Retry-After", "2")));
  EXPECT_EQ(status(router, request("GET", "/metrics")), 503);
  EXPECT_EQ(status(router, request("GET", "/health")), 0);
  readiness_ = Readiness::draining;
  response = router.check(request("POST", "/v1/chat"));
  ASSERT_TRUE(response);
  EXPECT_THAT(response->body, HasSubstr("draining"));
  EXPECT_EQ(status(router, request("GET", "/metrics")), 0);
}

}  // namespace
}  // namespace rorqual::server
