"""The page of a real pool, and of a run that one process trains, in a real browser. Needs MODELET_PROGRAMS, the folder of the
programs; skipped without a browser (run.sh)."""
import pathlib
import re
import signal
import sys
import unittest

from page_test import AnyOf, BrowserTest, containing, expect, skip_without_browser

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from programs import ENDLESS, PoolTest, ProgramTest, wait_until  # noqa: E402

VIEWER, ADMIN = "viewer-0123456789", "admin-0123456789"


def address_in(program, pattern):
    return wait_until(lambda: re.search(pattern, program.stderr), lambda: f"the page is there: {program}").group(1)


class RealPoolTest(BrowserTest, PoolTest):
    def setUp(self):
        tokens = self.folder / f"tokens-{self._testMethodName}"
        tokens.write_text(f"viewer {VIEWER} screen\nadmin {ADMIN} alice\n")
        tokens.chmod(0o600)
        state = self.folder / f"state-{self._testMethodName}"
        self.scheduler_arguments = ("--http", "127.0.0.1:0", "--http-tokens", tokens, "--state", state)
        super().setUp()
        self.page = address_in(self.scheduler, r"the page of the pool is at (\S+)") + "/"

    def row(self, page, table, text):
        return page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has=page.get_by_text(text, exact=True))

    def test_a_run_with_its_nodes(self):
        page = self.open(f"{self.page}?token={ADMIN}")
        expect(page.locator("#connection")).to_have_text("live")
        self.assertNotIn(ADMIN, page.url)
        agents = {name: self.agent(name) for name in "ab"}
        expect(page.locator(".line")).to_have_text("2 nodes: 2 free · 0 runs at work · 0 waiting")
        run = self.submit("--nodes", "2", *ENDLESS)
        expect(self.row(page, "runs at work", str(run))).to_be_visible()
        page.get_by_role("table", name="runs at work").get_by_role("link").first.click()
        loss = page.get_by_role("img", name="Loss: loss")
        expect(loss).to_have_attribute("aria-label", re.compile(r"at step \d{2,}"))
        before = loss.get_attribute("aria-label")
        expect(loss).not_to_have_attribute("aria-label", before)  # it grows
        expect(page.locator(".times li")).to_have_count(2)
        expect(page.locator(".placement li")).to_have_count(2)
        page.get_by_text("Logs", exact=True).click()
        page.get_by_label("node whose log is shown").select_option("a")
        expect(page.get_by_role("region", name="log", exact=True)).to_contain_text(re.compile(r"\S{3}"))

        agents["b"].kill_all()
        expect(page.locator(".marks")).to_contain_text("goes on from step")
        expect(page.locator("svg .mark.regrouped").first).to_be_attached()
        page.get_by_role("link", name="Nodes").click()
        killed, left = (self.row(page, "nodes", name).locator(".state") for name in "ba")
        expect(killed).to_have_text(re.compile("^lost"))
        expect(left).to_have_text(f"training {run}")
        self.assertEqual((self.is_red(killed), self.is_red(left)), (True, False))
        expect(self.row(page, "nodes", "b")).to_contain_text("look at its machine")

        page.get_by_role("button", name="Drain a", exact=True).click()
        expect(self.row(page, "nodes", "a").locator(".state")).to_contain_text("drain")
        page.goto(f"{self.page}#/runs/{run}")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".line .state")).to_have_text("stopped")
        self.expected_complaints = AnyOf("404")  # of a log without lines yet

    def test_a_viewer_cannot_drain(self):
        self.agent("a")
        page = self.open(f"{self.page}?token={VIEWER}")
        expect(self.row(page, "nodes", "a")).to_be_visible()
        expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        status = page.evaluate("""fetch('api/nodes/a/drain', {method: 'POST', headers: {'X-Modelet-Action': 'yes',
            'Content-Type': 'application/json'}, body: '{}'}).then((answer) => answer.status)""")
        self.assertEqual(status, 403)
        self.assertFalse(self.nodes()["a"]["draining"])
        self.expected_complaints = AnyOf("403")

    def test_without_a_token_there_is_nothing_to_see(self):
        page = self.open(self.page)
        expect(page.locator("#connection")).to_contain_text("This page needs a token")
        self.expected_complaints = AnyOf("401")


class DashboardTest(BrowserTest, ProgramTest):
    def test_the_page_of_one_run(self):
        for nodes in ("1", "2"):
            run = self.start("modelet", "train", self.experiment, "--out", self.folder / f"shown-{nodes}", "--nodes", nodes, "--dashboard", *ENDLESS)
            url = address_in(run, r"page of the run: (\S+)")
            page = self.open(url)
            expect(page.get_by_role("heading", name="Run 1: small")).to_be_visible()
            expect(page.get_by_role("img", name="Loss: loss")).to_have_attribute("aria-label", containing("at step"))
            expect(page.locator(".times li")).to_have_count(int(nodes))
            expect(page.get_by_role("button", name="Stop")).to_have_count(0)
            page.get_by_text("Experiment", exact=True).click()
            expect(page.locator("pre").filter(has_text="[train]")).to_be_visible()
            run.kill_all()
            expect(page.locator("#connection")).to_contain_text("no connection")
            expect(page.get_by_role("img", name="Loss: loss")).to_be_visible()  # what was last known
            page.context.close()
        self.expected_complaints = AnyOf("net::ERR")

    def test_the_page_sees_the_end(self):
        run = self.start("modelet", "train", self.experiment, "--out", self.folder / "ends", "--dashboard", *ENDLESS)
        page = self.open(address_in(run, r"page of the run: (\S+)"))
        expect(page.get_by_role("img", name="Loss: loss")).to_have_attribute("aria-label", containing("at step"))
        run.signal(signal.SIGINT)
        expect(page.locator("svg .mark.interrupted")).to_have_count(1)
        self.assertEqual(run.end(), 130, run)
        self.expected_complaints = AnyOf("net::ERR")


if __name__ == "__main__":
    skip_without_browser()
    unittest.main(verbosity=2)
