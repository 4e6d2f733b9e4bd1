"""The page of a pool, its JSON and its metrics (docs/dashboard.md), served by the real scheduler."""
import json
import re
import time
import unittest
import urllib.error
import urllib.request

from programs import ENDLESS, PoolTest, ProgramTest, wait_until

VIEWER, ADMIN = "viewer-0123456789", "admin-0123456789"


class Answer:
    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text

    @property
    def json(self):
        return json.loads(self.text)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments):
        return None


OPENER = urllib.request.build_opener(NoRedirect)


def ask(url, method="GET", headers=None, body=None):
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=body)
    try:
        with OPENER.open(request, timeout=60) as answer:
            return Answer(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read().decode())


def page_of(scheduler):
    """The address of the page, as the scheduler logs it."""
    return wait_until(lambda: re.search(r"the page of the pool is at (\S+)", scheduler.stderr),
                      lambda: f"the page is there: {scheduler}").group(1)


class PageTest(PoolTest):
    def setUp(self):
        state = self.folder / f"state-{self._testMethodName}"
        self.scheduler_arguments = ("--http", "127.0.0.1:0", "--state", state)
        super().setUp()
        self.page = page_of(self.scheduler)

    def get(self, path, **options):
        return ask(self.page + path, **options)

    def got(self, path):
        answer = self.get(path)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def post(self, path, **headers):
        return ask(self.page + path, "POST", {"Content-Type": "application/json", "X-Modelet-Action": "yes", **headers}, b"{}")

    def test_a_run_is_seen_from_its_beginning_to_its_end(self):
        empty = self.got("/api/pool")
        self.assertEqual((empty["nodes"], empty["runs"], empty["may_act"]), ([], [], True))
        self.assertEqual(empty["scheduler"]["address"], self.address)
        self.agent("a")
        self.agent("b")
        run = self.submit("--nodes", "2", *ENDLESS)
        self.wait_for_step(run, 30)
        pool = self.got("/api/pool")
        (seen,) = pool["runs"]
        self.assertEqual(set(seen), set(self.runs()[run]))  # one writer
        self.assertEqual(set(pool["nodes"][0]), set(self.nodes()["a"]))
        self.assertGreater(seen["step"], 0)
        self.assertGreater(seen["samples_per_second"], 0)
        self.assertGreater(seen["loss"], 0)
        self.assertEqual(seen["steps"], 100000 * 25)
        wait_until(lambda: any(node["wait_seconds"] > 0 for node in self.got("/api/pool")["nodes"]), "waiting is measured")
        details = self.got(f"/api/runs/{run}")
        self.assertIn("hidden = [64]", details["experiment"])
        self.assertEqual([each["node"] for each in details["placement"]], ["a", "b"])
        self.assertEqual(sum(each["modelets"] for each in details["placement"]), 64 // 16 + 8)
        self.assertEqual(self.got("/api/history")["interval_seconds"], 10)
        wait_until(lambda: any(sum(node["compute_seconds"]) > 0 for node in self.got("/api/history")["nodes"]), "history")

        after, events = 0, []
        while (page := self.got(f"/api/runs/{run}/events?after={after}"))["next"] > after:
            after, events = page["next"], events + page["events"]
        self.assertIn("started", [event["event"] for event in events])
        self.assertGreater(sum(event["event"] == "progress" for event in events), 20)
        wait_until(lambda: self.get(f"/api/runs/{run}/logs/a").status == 200 and self.got(f"/api/runs/{run}/logs/a")["text"],
                   "node a has logged something")
        self.assertEqual(self.get(f"/api/runs/{run}/logs/nobody").status, 404)
        self.assertEqual(self.get("/api/runs/77").status, 404)

        self.assertEqual(self.post("/api/nodes/b/drain").status, 200)
        self.assertTrue(self.nodes()["b"]["draining"])
        self.assertEqual(self.post("/api/nodes/b/undrain").status, 200)
        self.assertFalse(self.nodes()["b"]["draining"])
        self.assertEqual(self.post("/api/nodes/c/drain").status, 409)
        self.assertEqual(self.post(f"/api/runs/{run}/stop").status, 200)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        self.assertEqual(self.got("/api/pool")["runs"][0]["state"], "stopped")

    def test_an_idle_pool_answers_not_modified(self):
        self.agent("a")
        def settled():
            tag = self.get("/api/pool").headers["ETag"]
            time.sleep(1.2)  # longer than a state is kept: the next one is a new one
            again = self.get("/api/pool", headers={"If-None-Match": tag})
            return again if again.status == 304 else None
        self.assertEqual(wait_until(settled, "nothing changes").text, "")

    def test_what_a_browser_gets(self):
        page = self.get("/")
        self.assertEqual(page.status, 200)
        self.assertIn("default-src 'self'", page.headers["Content-Security-Policy"])
        self.assertIn("frame-ancestors 'none'", page.headers["Content-Security-Policy"])
        self.assertEqual(page.headers["X-Content-Type-Options"], "nosniff")
        self.assertTrue(page.headers["Content-Type"].startswith("text/html"))
        # What another site's page can make a browser send.
        path = "/api/nodes/a/drain"
        self.assertEqual(ask(self.page + path, "POST", {"Content-Type": "text/plain"}, b"{}").status, 415)
        self.assertEqual(ask(self.page + path, "POST", {"Content-Type": "application/json"}, b"{}").status, 403)
        self.assertEqual(self.get("/api/pool", headers={"Host": "evil.example"}).status, 421)

    def test_it_ends_with_the_scheduler(self):
        self.get("/api/pool")
        self.scheduler.signal(15)
        self.assert_ends(self.scheduler, 0)


class TokensTest(ProgramTest):
    def tokens(self, text, mode=0o600):
        file = self.folder / f"{self._testMethodName}.tokens"
        file.write_text(text)
        file.chmod(mode)
        return file

    def test_viewers_look_and_administrators_act(self):
        tokens = self.tokens(f"viewer {VIEWER} screen\nadmin {ADMIN} alice\n")
        scheduler = self.start("modelet-scheduler", "--insecure", "--listen", "tcp://127.0.0.1:*", "--http", "127.0.0.1:0", "--http-tokens", tokens)
        page = page_of(scheduler)
        def status(path, token, method="GET"):
            headers = {"Content-Type": "application/json", "X-Modelet-Action": "yes"}
            if token:
                headers["Authorization"] = f"Bearer {token}"
            return ask(page + path, method, headers, b"{}" if method == "POST" else None).status
        for path in ("/api/pool", "/metrics", "/api/history"):
            self.assertEqual([status(path, token) for token in (VIEWER, ADMIN, None, "wrong-0123456789")], [200, 200, 401, 401], path)
        self.assertEqual([status("/api/nodes/a/drain", token, "POST") for token in (VIEWER, ADMIN, None)], [403, 409, 401])
        moved = ask(f"{page}/?token={VIEWER}")
        self.assertEqual((moved.status, moved.headers["Location"]), (303, "/"))
        cookie = moved.headers["Set-Cookie"]
        self.assertIn("HttpOnly", cookie)
        self.assertIn("SameSite=Strict", cookie)
        self.assertNotIn(VIEWER, cookie)
        self.assertEqual(ask(page + "/api/pool", headers={"Cookie": cookie.split(";")[0]}).json["may_act"], False)

    def test_what_is_refused_at_the_start(self):
        self.assert_refused(2, ["--http 0.0.0.0:0", "--http-tokens"], "modelet-scheduler", "--insecure", "--http", "0.0.0.0:0")
        self.assert_refused(2, "is not a role", "modelet-scheduler", "--insecure", "--http", "127.0.0.1:0", "--http-tokens",
                            self.tokens(f"root {ADMIN} a\n"))
        self.assert_refused(2, "chmod 600", "modelet-scheduler", "--insecure", "--http", "127.0.0.1:0", "--http-tokens",
                            self.tokens(f"admin {ADMIN} a\n", 0o644))
        self.assert_refused(2, "--http ADDRESS:PORT", "modelet-scheduler", "--insecure", "--http-tokens", self.tokens(f"admin {ADMIN} a\n"))
        self.run_program("modelet", "keygen", self.folder / "scheduler.key")
        (self.folder / "allowed").write_text("")
        self.assert_refused(2, ["this pool has keys", "--http-tokens"], "modelet-scheduler", "--key", self.folder / "scheduler.key", "--allow-list",
                            self.folder / "allowed", "--http", "127.0.0.1:0")


if __name__ == "__main__":
    unittest.main()
