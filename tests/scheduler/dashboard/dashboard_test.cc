#include "scheduler/dashboard/dashboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "scheduler/dashboard/assets.h"

namespace modelet::scheduler {
namespace {

using comm::control::RunState;
using comm::http::Request;
using comm::http::Response;
using comm::http::Router;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kLooker = "viewer-0123456789", kBoss = "admin-0123456789a";

// A pool whose state a test sets.
class StandInPool : public PoolView {
 public:
  std::shared_ptr<const PoolState> pool() override { return std::make_shared<PoolState>(state); }
  NodeHistory history() override {
    return {.seconds = 10,
            .began = 1000,
            .first = 7,
            .names = {"a"},
            .nodes = {{{.compute = 0.5f, .codec = 0.25f, .wait = 0, .there = true}, {}}}};
  }
  RunDetails run(uint64_t run) override {
    for (const auto& each : state.runs)
      if (each.run == run) return {each, "[model]\nhidden = [4]\n", {{"a", 3, 1 << 20}}};
    throw NotThere("there is no run " + std::to_string(run));
  }
  comm::control::RunLogT events(uint64_t run, uint64_t after) override {
    comm::control::RunLogT log;
    log.run = run;
    log.text = after == 0 ? "{\"event\":\"started\"}\n{\"event\":\"progress\",\"step\":1}\n" : "";
    log.next = 2;
    return log;
  }
  comm::control::RunLogT log(uint64_t, const std::string& node, uint64_t) override {
    if (node != "a") throw NotThere("node '" + node + "' has logged nothing");
    comm::control::RunLogT log;
    log.text = "line \"1\"\n";
    log.next = 9;
    log.complete = true;
    return log;
  }
  void drain(const comm::http::Token* by, const std::string& node, bool drain) override {
    if (node == "gone") throw UsageError("there is no node 'gone'");
    done.push_back((by == nullptr ? "anybody" : by->name) + (drain ? " drains " : " undrains ") + node);
  }
  void stop(const comm::http::Token*, uint64_t run) override {
    done.push_back("stop " + std::to_string(run));
  }

  void add_run(uint64_t number, RunState run_state, uint64_t step = 0) {
    comm::control::RunStatusT run;
    run.run = number;
    run.name = "<b>";
    run.state = run_state;
    run.step = step;
    state.runs.push_back(run);
  }

  PoolState state{.now = "2026-11-30T00:00:00.000Z", .facts = {.can_act = true}};
  std::vector<std::string> done;
};

class DashboardTest : public testing::Test {
 protected:
  DashboardTest() {
    comm::control::NodeStatusT node;
    node.name = "a";
    pool_.state.nodes = {node};
    for (uint64_t run = 1; run <= 5; ++run)
      pool_.add_run(run, run % 2 == 0 ? RunState::Finished : RunState::Running);
  }

  static Response send(Router& router, Request request) {
    request.content_type = "application/json";
    Response refusal;
    const auto* const route = router.find(request, refusal);
    return route == nullptr ? refusal : router.handle(*route, request);
  }
  Response get(std::string_view target, std::string_view if_none_match = {}) {
    return send(router_, {.method = "GET", .target = target, .if_none_match = if_none_match});
  }
  json got(std::string_view target) { return json::parse(get(target).body); }
  static std::string field(const Response& response, std::string_view name) {
    for (const auto& [key, value] : response.fields)
      if (key == name) return value;
    return "";
  }

  StandInPool pool_;
  Router router_;
  Dashboard dashboard_{pool_, router_};
};

TEST_F(DashboardTest, ThePoolAtAGlance) {
  const json pool = got("/api/pool");
  EXPECT_EQ(pool["now"], "2026-11-30T00:00:00.000Z");
  EXPECT_EQ(pool["may_act"], true);
  EXPECT_EQ(pool["nodes"][0]["name"], "a");
  EXPECT_EQ(pool["runs_total"], 5);
  std::vector<uint64_t> runs;
  for (const json& run : pool["runs"]) runs.push_back(run["run"]);
  EXPECT_THAT(runs, ElementsAre(5, 3, 1, 4, 2)) << "those at work first, each the newest first";
  EXPECT_EQ(got("/api/pool?runs=1")["runs"].size(), 4u) << "all that are at work, and one other";
  EXPECT_EQ(got("/api/pool?runs=0")["runs_total"], 5);
  EXPECT_EQ(get("/api/pool?runs=-1").status, 400u);
}

TEST_F(DashboardTest, APoolThatHasNotChangedCostsNothing) {
  const std::string tag = field(get("/api/pool"), "ETag");
  pool_.state.nodes[0].silent_seconds = 3;
  pool_.state.runs[0].seconds = 17;
  const Response same = get("/api/pool", tag);
  EXPECT_EQ(same.status, 304u);
  EXPECT_EQ(same.body, "");
  EXPECT_EQ(get("/api/pool?runs=1", tag).status, 200u) << "another list";
  pool_.state.runs[0].step = 18;
  const Response changed = get("/api/pool", tag);
  EXPECT_EQ(changed.status, 200u);
  EXPECT_NE(field(changed, "ETag"), tag);
  Router other_router;
  Dashboard other(pool_, other_router);  // another process has the same version number
  EXPECT_EQ(send(other_router, {.method = "GET", .target = "/api/pool", .if_none_match = tag}).status, 200u);
}

TEST_F(DashboardTest, OneRun) {
  const json run = got("/api/runs/3");
  EXPECT_EQ(run["run"]["state"], "running");
  EXPECT_EQ(run["experiment"], "[model]\nhidden = [4]\n");
  EXPECT_EQ(run["placement"], json::parse(R"([{"node":"a","modelets":3,"bytes":1048576}])"));
  const json events = got("/api/runs/3/events");
  EXPECT_EQ(events["events"][1]["step"], 1);
  EXPECT_EQ(events["next"], 2);
  EXPECT_EQ(got("/api/runs/3/events?after=2")["events"], json::array());
  EXPECT_EQ(got("/api/runs/3/logs/a")["text"], "line \"1\"\n");
  for (const char* nothing :
       {"/api/runs/9", "/api/runs/x", "/api/runs/3/logs/b", "/api/runs/", "/api/runs/3/"})
    EXPECT_EQ(get(nothing).status, 404u) << nothing;
  EXPECT_EQ(get("/api/runs/3/events?after=x").status, 400u);
}

TEST_F(DashboardTest, TimeOfEachNode) {
  const json history = got("/api/history");
  EXPECT_EQ(history["first"], 7);
  EXPECT_EQ(history["nodes"][0]["compute_seconds"], json::parse("[0.5,null]"));
}

TEST_F(DashboardTest, ThePage) {
  const Response page = get("/");
  EXPECT_EQ(page.status, 200u);
  EXPECT_THAT(std::string(page.content_type), HasSubstr("text/html"));
  EXPECT_EQ(page.body, asset_named("index.html")->text);
  EXPECT_EQ(get("/", field(page, "ETag")).status, 304u);
  EXPECT_EQ(asset_named("nothing"), nullptr);
}

// Also what one of its files names in another one: a name that is not embedded would be asked for in vain.
TEST_F(DashboardTest, ThePageHasAllItsFiles) {
  const std::regex named("(?:src=|href=|from )[\"'](?:\\./)?([a-z][\\w./-]*)[\"']");
  size_t found = 0;
  for (const Asset& asset : assets()) {
    const std::string text(asset.text);
    for (std::sregex_iterator each(text.begin(), text.end(), named), end; each != end; ++each, ++found)
      EXPECT_EQ(get("/" + (*each)[1].str()).status, 200u) << asset.name << " names " << (*each)[1];
    EXPECT_EQ(text.find("https://"), text.rfind("https://github.com/leeoniya/uPlot"))
        << asset.name << " names another site";
  }
  EXPECT_GT(found, 10u);
  EXPECT_EQ(asset_named("uplot.js")->type, "text/javascript; charset=utf-8");
}

TEST_F(DashboardTest, Actions) {
  const auto post = [this](std::string_view target, std::string_view action) {
    return send(router_, {.method = "POST", .target = target, .body = "{}", .action = action});
  };
  EXPECT_EQ(post("/api/nodes/a/drain", "yes").status, 200u);
  EXPECT_EQ(post("/api/nodes/a/undrain", "yes").status, 200u);
  EXPECT_EQ(post("/api/runs/3/stop", "yes").status, 200u);
  EXPECT_THAT(pool_.done, ElementsAre("anybody drains a", "anybody undrains a", "stop 3"));
  const Response refused = post("/api/nodes/gone/drain", "yes");
  EXPECT_EQ(refused.status, 409u);
  EXPECT_THAT(refused.body, HasSubstr("there is no node"));
  EXPECT_EQ(post("/api/nodes/a/drain", "").status, 403u) << "perhaps sent by a page of another site";
  EXPECT_EQ(get("/api/nodes/a/drain").status, 405u);
  EXPECT_EQ(pool_.done.size(), 3u);
}

TEST_F(DashboardTest, AViewerLooksAndAnAdministratorActs) {
  Router router({{kLooker, false, "screen"}, {kBoss, true, "alice"}});
  Dashboard dashboard(pool_, router);
  const auto as = [&](const std::string& secret, std::string_view method, std::string_view target) {
    const std::string authorization = secret.empty() ? "" : "Bearer " + secret;
    return send(router,
                {.method = method, .target = target, .authorization = authorization, .action = "yes"});
  };
  for (const char* target :
       {"/api/pool", "/api/history", "/api/runs/3", "/api/runs/3/events", "/api/runs/3/logs/a", "/metrics"}) {
    EXPECT_EQ(as(kLooker, "GET", target).status, 200u) << target;
    EXPECT_EQ(as(kBoss, "GET", target).status, 200u) << target;
    EXPECT_EQ(as("", "GET", target).status, 401u) << target;
  }
  EXPECT_EQ(as("", "GET", "/").status, 200u) << "the page itself says nothing";
  EXPECT_EQ(json::parse(as(kLooker, "GET", "/api/pool").body)["may_act"], false);
  EXPECT_EQ(json::parse(as(kBoss, "GET", "/api/pool").body)["may_act"], true);
  for (const char* target : {"/api/nodes/a/drain", "/api/nodes/a/undrain", "/api/runs/3/stop"}) {
    EXPECT_EQ(as(kLooker, "POST", target).status, 403u) << target;
    EXPECT_EQ(as("", "POST", target).status, 401u) << target;
  }
  EXPECT_TRUE(pool_.done.empty());
  EXPECT_EQ(as(kBoss, "POST", "/api/nodes/a/drain").status, 200u);
  EXPECT_THAT(pool_.done, ElementsAre("alice drains a"));
}

TEST_F(DashboardTest, ATokenInTheAddressBecomesACookie) {
  Router router({{kLooker, false, "screen"}});
  Dashboard dashboard(pool_, router);
  const Response moved = send(router, {.method = "GET", .target = "/?token=viewer%2d0123456789"});
  EXPECT_EQ(moved.status, 303u);
  EXPECT_EQ(field(moved, "Location"), "/");
  const std::string cookie = field(moved, "Set-Cookie");
  EXPECT_EQ(
      send(router, {.method = "GET", .target = "/api/pool", .cookies = cookie.substr(0, cookie.find(';'))})
          .status,
      200u);
  EXPECT_EQ(send(router, {.method = "GET", .target = "/?token=wrong"}).status, 401u);
}

}  // namespace
}  // namespace modelet::scheduler
