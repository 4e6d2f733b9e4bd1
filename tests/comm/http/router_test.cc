#include "comm/http/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace modelet::comm::http {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kToken = "0123456789abcdefghij";

// Two handlers at one path, and one that fails.
class RouterTest : public testing::Test {
 protected:
  static void add_routes(Router& router) {
    router.add({.method = "GET", .path = "/words", .handler = [](const Request&) {
                  return Response{.body = "[]"};
                }});
    router.add({.method = "POST", .path = "/words", .handler = [](const Request& request) {
                  return Response{.body = std::string(request.body) + "!"};
                }});
    router.add({.method = "GET", .path = "/fails", .handler = [](const Request& request) -> Response {
                  const std::string_view how = request.target.substr(request.target.find('?') + 1);
                  if (how == "format") throw FormatError("in line 3");
                  if (how == "usage") throw UsageError("give less");
                  if (how == "memory") throw std::bad_alloc();
                  throw std::runtime_error("broken \x01");
                }});
  }

  static Response send(Router& router, const Request& request) {
    Response refusal;
    const Route* const route = router.find(request, refusal);
    return route == nullptr ? refusal : router.handle(*route, request);
  }
  static Request request(std::string_view method, std::string_view target,
                         std::string_view authorization = {}) {
    return {.method = method,
            .target = target,
            .content_type = "application/json; charset=utf-8",
            .authorization = authorization,
            .body = "{}"};
  }
};

TEST_F(RouterTest, ByMethodAndPath) {
  Router router;
  add_routes(router);
  EXPECT_EQ(send(router, request("GET", "/words?all")).body, "[]");
  EXPECT_EQ(send(router, request("HEAD", "/words")).body, "[]") << "the server removes the body";
  EXPECT_EQ(send(router, request("POST", "/words")).body, "{}!");
  const Response unknown = send(router, request("GET", "/word"));
  EXPECT_EQ(unknown.status, 404u);
  EXPECT_THAT(unknown.body, AllOf(HasSubstr("/words"), HasSubstr("/metrics")));
  const Response other = send(router, request("DELETE", "/words"));
  EXPECT_EQ(other.status, 405u);
  EXPECT_EQ(other.allow, "GET, HEAD, POST");
  EXPECT_EQ(send(router, request("POST", "/healthz")).allow, "GET, HEAD");
  for (const char* type : {"", "text/plain", "application/jsonx", "application"})
    EXPECT_EQ(
        send(router,
             {.method = "POST", .target = "/words", .content_type = type, .authorization = {}, .body = {}})
            .status,
        415u)
        << type;
}

TEST_F(RouterTest, ATokenForAllButHealth) {
  Router router({{.secret = kToken}});
  add_routes(router);
  for (const std::string& authorization : {"Bearer " + kToken, "bearer " + kToken, "BEARER " + kToken})
    EXPECT_EQ(send(router, request("GET", "/words", authorization)).status, 200u) << authorization;
  for (const std::string& wrong :
       {std::string(), "Basic " + kToken, "Bearer " + kToken + "x", std::string("Bearer "),
        "Bearer " + kToken.substr(1), "Bearer x" + kToken.substr(1), kToken})
    for (const char* path : {"/words", "/metrics", "/nowhere"})
      EXPECT_EQ(send(router, request("GET", path, wrong)).status, 401u) << path << wrong;
  EXPECT_EQ(send(router, request("GET", "/healthz")).status, 200u);
  EXPECT_EQ(send(router, request("GET", "/readyz")).status, 200u);
  router.end();
  EXPECT_EQ(send(router, request("GET", "/readyz")).status, 503u);
}

TEST_F(RouterTest, NamesInPaths) {
  Router router;
  const auto joined = [](const Request& request) {
    std::string text;
    for (const std::string_view part : request.parts) text += std::string(part) + ";";
    return Response{.body = text};
  };
  router.add({.method = "GET", .path = "/runs/{run}", .handler = joined});
  router.add({.method = "GET", .path = "/runs/{run}/logs/{node}", .handler = joined});
  router.add({.method = "POST", .path = "/runs/{run}/logs/{node}", .handler = joined});
  EXPECT_EQ(send(router, request("GET", "/runs/17?after=3")).body, "17;");
  EXPECT_EQ(send(router, request("GET", "/runs/17/logs/a.b-c")).body, "17;a.b-c;");
  EXPECT_EQ(send(router, request("PUT", "/runs/17/logs/a")).allow, "GET, HEAD, POST");
  for (const char* other :
       {"/runs/", "/runs", "/runs/1/", "/runs//logs/a", "/runs/1/logs", "/runs/1/logs/a/b"})
    EXPECT_EQ(send(router, request("GET", other)).status, 404u) << other;
  EXPECT_THAT(send(router, request("GET", "/metrics")).body, HasSubstr(R"(path="/runs/{run}",code="200"} 1)"))
      << "the metrics of any number of runs are as many lines";
}

TEST_F(RouterTest, Queries) {
  const Request request{.target = "/x?a=1&b=%2f+%zz&c&a=2&d="};
  EXPECT_EQ(request.query("a"), "1");
  EXPECT_EQ(request.query("b"), "/ %zz");
  EXPECT_EQ(request.query("c"), "");
  EXPECT_EQ(request.query("d"), "");
  EXPECT_EQ(request.query("e"), std::nullopt);
  EXPECT_EQ(Request{.target = "/x"}.query("x"), std::nullopt);
  EXPECT_EQ(Request{.target = "/x?a=%"}.query("a"), "%");
  EXPECT_EQ(Request{.target = "/x?a=%4"}.query("a"), "%4");
  EXPECT_EQ(Request{.target = "/x?a=%41"}.query("a"), "A");
}

TEST_F(RouterTest, ErrorsAreResponses) {
  Router router;
  add_routes(router);
  for (const auto& [how, status, text] :
       std::vector<std::tuple<const char*, unsigned, const char*>>{{"format", 400, "in line 3"},
                                                                   {"usage", 400, "give less"},
                                                                   {"memory", 503, "memory"},
                                                                   {"else", 500, "broken"}}) {
    const Response response = send(router, request("GET", std::string("/fails?") + how));
    EXPECT_EQ(response.status, status) << how;
    EXPECT_THAT(response.body, AllOf(HasSubstr("{\"error\":\""), HasSubstr(text)));
  }
}

TEST_F(RouterTest, Metrics) {
  Router router;
  add_routes(router);
  Histogram seconds;
  router.add({.method = "GET",
              .path = "/timed",
              .handler = [](const Request&) { return Response{}; },
              .seconds = &seconds});
  router.add_metrics([&](MetricsText& text) {
    text.histogram("timed_seconds", "Time.", seconds);
    text.begin("words", "gauge", "Words by language.");
    text.sample({{"language", "\"a\\b\n"}, {"kind", "x"}}, 1.5);
    text.sample({}, 123456789);
  });
  for (const char* target : {"/words", "/nowhere", "/timed"}) send(router, request("GET", target));
  seconds.observe(0.3);
  seconds.observe(1e9);
  const Response response = send(router, request("GET", "/metrics"));
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  for (
      const char* lines :
      {"# HELP modelet_requests_total Requests answered, by path and status.\n# TYPE modelet_requests_total counter\n",
       "modelet_requests_total{path=\"/words\",code=\"200\"} 1\n",
       "modelet_requests_total{path=\"other\",code=\"404\"} 1\n", "modelet_requests_in_flight 1\n",
       "# TYPE timed_seconds histogram\n", "timed_seconds_bucket{le=\"0.25\"} 1\n",
       "timed_seconds_bucket{le=\"0.5\"} 2\n", "timed_seconds_bucket{le=\"+Inf\"} 3\n",
       "timed_seconds_count 3\n",
       "# TYPE words gauge\nwords{language=\"\\\"a\\\\b\\n\",kind=\"x\"} 1.5\nwords 123456789\n"})
    EXPECT_THAT(response.body, HasSubstr(lines));
}

}  // namespace
}  // namespace modelet::comm::http
