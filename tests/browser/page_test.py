"""The page of a pool in a real browser. Run by run.sh, which brings the browser, or by ctest, which skips it without one.

The page gets its JSON from mock_pool.py.
"""
import io
import os
import pathlib
import re
import sys
import time
import unittest

from mock_pool import MockPool, MockServer

SKIPPED = 77  # for ctest
INSTALLED = pathlib.Path(__file__).resolve().parents[2] / "build/browser"  # by run.sh
AXE = INSTALLED / "axe/pytest_playwright_axe/resources/axe.min.js"
PICTURES = os.environ.get("MODELET_PICTURES")  # a folder for pictures of the documents
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
LONG = 60_000  # milliseconds; the machine may be busy
# Parts that views show once they have everything.
SHOWN_LAST = {"#/": ".heat canvas", "#/nodes": ".heat canvas", "#/runs": "tbody tr", "#/runs/7": ".placement li", "#/compare": "[aria-label^='Loss: ']"}


def browser_path():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        for folder in os.environ["PATH"].split(":"):
            if os.access(f"{folder}/{name}", os.X_OK):
                return f"{folder}/{name}"
    return None


try:
    from playwright.sync_api import expect, sync_playwright
    expect.set_options(timeout=LONG)
except ImportError:
    expect = sync_playwright = None
    python = INSTALLED / "venv/bin/python"
    if sys.argv[0].endswith(("_test.py", "page_speed.py")) and python.exists() and pathlib.Path(sys.prefix) != INSTALLED / "venv":
        os.execv(python, [str(python), "-B", *sys.argv])


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        cls.addClassCleanup(cls.playwright.stop)
        cls.addClassCleanup(cls.browser.close)

    @staticmethod
    def settle(page):
        """Returns when what has changed is laid out and drawn."""
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def open(self, address, **options):
        """A page of its own, which must not complain and must not ask anybody but its own server."""
        context = self.browser.new_context(**{"viewport": DESK, "color_scheme": "light", "timezone_id": "UTC", **options})
        self.addCleanup(context.close)
        context.set_default_timeout(LONG)
        page = context.new_page()
        complaints = []
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(address.split("/?")[0].split("#")[0]) or complaints.append(request.url))
        page.on("dialog", lambda dialog: dialog.accept())
        self.addCleanup(lambda: self.assertEqual(complaints, self.expected_complaints))
        self.expected_complaints = []
        page.goto(address)
        return page

    def assert_accessible(self, page, what):
        if not AXE.exists():
            self.skipTest("axe-core is not here: tests/browser/run.sh brings it")
        if not page.evaluate("'axe' in globalThis"):
            page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})")
        problems = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]]
        self.assertEqual(problems, [], what)

    def is_red(self, element):
        red, green, blue = map(int, element.evaluate("element => getComputedStyle(element).color.match(/\\d+/g)")[:3])
        return red > 2 * max(green, blue)

    def picture(self, page, name, height=900):
        if PICTURES:
            page.set_viewport_size({"width": 1100, "height": height})
            self.settle(page)
            self.save(page, name)

    def save(self, page, name):
        from PIL import Image
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(f"{PICTURES}/{name}.png", optimize=True)


class PageTest(BrowserTest):
    nodes, runs = 8, 6

    def setUp(self):
        self.pool = MockPool(self.nodes, self.runs)
        self.server = MockServer(self.pool)
        self.addCleanup(self.server.close)

    def view(self, hash_="#/", **options):
        page = self.open(self.server.address + hash_, **options)
        expect(page.locator("#connection")).to_have_text("live")
        return page

    def views(self, compare="1,2", **options):
        """Pairs of hash and page, which shows one view after the other without being loaded again."""
        page = None
        for name, part in SHOWN_LAST.items():
            hash_ = f"{name}?runs={compare}" if name == "#/compare" else name
            if page is None:
                page = self.view(hash_, **options)
            else:  # the page's own listener has heard of it before
                page.evaluate("""(hash) => new Promise((done) => {
                    addEventListener('hashchange', () => done(), {once: true});
                    location.hash = hash;
                })""", hash_)
            expect(page.locator(part).first).to_be_visible()
            yield hash_, page

    def row(self, page, table, text):
        return page.get_by_role("table", name=table).get_by_role("row").filter(has=page.get_by_text(text, exact=True))

    def test_the_pool_in_one_line(self):
        page = self.view()
        expect(page.locator(".heat canvas")).to_be_visible()
        expect(page.locator(".line")).to_have_text("8 nodes: 8 training · 2 runs at work · 1 waiting · 18,000 samples/s")
        if PICTURES:
            self.pool.lose("node-002")
            with self.pool.lock:
                self.pool.nodes["node-005"].update(run=0, draining=True, state="drained", why="modelet drain node-005 --undo")
            page.wait_for_timeout(1500)
            self.picture(page, "dashboard-pool", 1080)

    def test_a_run_appears(self):
        page = self.view("#/runs")
        expect(page.get_by_role("table", name="runs").get_by_text("deps-77")).to_have_count(0)
        with self.pool.lock:
            self.pool.add_run(77, "running", ["node-007"])
        expect(page.get_by_role("table", name="runs").get_by_text("deps-77")).to_be_visible()

    def test_the_queue_says_what_a_run_waits_for(self):
        page = self.view()
        expect(self.row(page, "queue", "place 1 in the queue; waits for 4 nodes; 1 is free")).to_contain_text("queued")

    def test_a_curve_grows(self):
        page = self.view("#/runs/7")
        loss = page.get_by_role("img", name="Loss: loss")
        expect(loss).to_have_attribute("aria-label", containing("at step 2000"))
        before = self.pixels(page)
        self.pool.train(7, 4000)
        expect(loss).to_have_attribute("aria-label", containing("at step 4000"))
        expect(page.get_by_role("img", name="Precision: P@1")).to_have_attribute("aria-label", containing("P@5 (dots) from"))
        self.assertNotEqual(self.pixels(page), before)  # drawn, not only said

    def pixels(self, page):
        return page.evaluate("document.querySelector('.chart canvas').toDataURL()")

    def test_steps_that_are_repeated_replace_the_earlier_ones(self):
        self.pool.train(7, 1500)  # it goes on from step 1400
        page = self.view("#/runs/7")
        expect(page.get_by_role("img", name="Loss: loss")).to_have_attribute("aria-label", containing("at step 1500"))
        page.get_by_text("Values of Loss").click()
        expect(page.locator("figure").first.locator("tbody tr")).to_have_count(15)

    def test_many_epochs_hide_no_recovery(self):
        self.pool.lose("node-002")
        for number in range(1, 3000):
            self.pool.emit(7, {"event": "epoch", "epoch": number, "step": 2000 + number, "loss": 2.0})
        page = self.view("#/runs/7")
        expect(page.locator(".marks")).to_contain_text("epoch 2999 done")
        expect(page.locator(".marks")).to_contain_text("lost node-002")
        expect(page.locator("svg .mark.regrouped")).to_have_count(1)
        self.assertLessEqual(page.locator(".marks li").count(), 50)

    def test_figures_of_a_run(self):
        page = self.view("#/runs/7")
        for title, text in (("step", "2,000 of 5,000"), ("time left", "2 min 00 s"), ("labels", "36,969"), ("recoveries", "0")):
            expect(page.locator(f"dt:text-is('{title}') + dd")).to_have_text(text)
        self.picture(page, "dashboard-run", 1250)

    def test_a_killed_node_turns_red_and_its_run_goes_on(self):
        page = self.view()
        state = self.row(page, "nodes", "node-002").locator(".state")
        expect(state).to_have_text("training 7")
        self.assertFalse(self.is_red(state))
        self.pool.lose("node-002")
        expect(state).to_have_text("lost for 3 min 20 s")
        expect(state).to_have_attribute("data-sign", "✕")  # told without colour, too
        self.assertTrue(self.is_red(state))
        expect(self.row(page, "nodes", "node-002")).to_contain_text("start modelet-agent on its machine again")
        page.get_by_role("table", name="runs at work").get_by_role("link", name="deps-7").click()
        expect(page.locator(".marks")).to_contain_text("lost node-002")
        expect(page.locator("svg .mark.regrouped")).to_have_count(1)

    def test_states_of_nodes_say_why(self):
        states = {"node-000": {"suspended": "a user of the machine is active"}, "node-001": {"state": "pending", "why": "modelet approve node-001"},
                  "node-002": {"state": "leaving", "why": "its machine goes away"}, "node-003": {"state": "drained", "why": "modelet drain node-003 --undo"}}
        with self.pool.lock:
            for name, state in states.items():
                self.pool.nodes[name].update(state)
        page = self.view("#/nodes")
        for name, (word, sign, why) in {"node-000": ("suspended", "‖", "its owner comes first: a user of the machine is active"),
                                        "node-001": ("pending", "?", "modelet approve node-001"), "node-002": ("leaving", "↓", "its machine goes away"),
                                        "node-003": ("drained", "⊘", "--undo"), "node-004": ("training 8", "▶", "")}.items():
            row = self.row(page, "nodes", name)
            expect(row.locator(".state")).to_have_text(word)
            expect(row.locator(".state")).to_have_attribute("data-sign", sign)
            expect(row.locator(".why")).to_contain_text(why)
        expect(page.locator(".line")).to_have_text("8 nodes: 1 suspended, 1 pending, 1 leaving, 1 drained, 4 training")

    def test_the_slowest_node_is_named(self):
        page = self.view("#/runs/7")
        expect(page.get_by_text("node-001 is the slowest: 40 % longer than the others")).to_be_visible()
        expect(page.locator(".times li")).to_have_count(4)

    def test_placement(self):
        page = self.view("#/runs/7")
        expect(page.locator(".placement li").first).to_contain_text("12 modelets, 30.0 MiB")

    def test_logs_open_and_grow(self):
        self.pool.write_log(7, "node-001", "first line\n<b>not bold</b>\n")
        page = self.view("#/runs/7")
        page.get_by_text("Logs", exact=True).click()
        page.get_by_label("node whose log is shown").select_option("node-001")
        log = page.get_by_role("region", name="log", exact=True)
        expect(log).to_have_text("first line\n<b>not bold</b>\n")
        self.pool.write_log(7, "node-001", "second line\n")
        expect(log).to_contain_text("second line")
        self.assertEqual(log.locator("*").count(), 0)

    def test_texts_of_others_are_no_html(self):
        hostile = "<img src=x onerror=document.title='owned'>"
        with self.pool.lock:
            self.pool.runs[7].update(name=hostile, detail=hostile, submitter=hostile)
            self.pool.nodes["node-000"].update(why=hostile, address=hostile)
            self.pool.emit(7, {"event": "regrouped", "why": hostile, "epoch": 2, "step": 5, "nodes": []})
        for _, page in self.views(compare="7"):
            expect(page.locator("main")).to_contain_text(hostile)
            self.assertEqual(page.locator("img[src]").count(), 0)
            self.assertNotIn("owned", page.title())

    def test_a_viewer_can_look_and_nothing_else(self):
        with self.pool.lock:
            self.pool.may_act = False
        page = self.view("#/nodes")
        expect(self.row(page, "nodes", "node-003")).to_be_visible()
        expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        page.goto(self.server.address + "#/runs/7")
        expect(page.get_by_role("heading", name="Run 7")).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)

    def test_an_administrator_drains_and_stops(self):
        page = self.view("#/nodes")
        page.get_by_role("button", name="Drain node-003", exact=True).click()
        expect(self.row(page, "nodes", "node-003").locator(".state")).to_have_text("drained")
        page.get_by_role("button", name="Undrain node-003").click()
        expect(page.get_by_role("button", name="Drain node-003", exact=True)).to_be_visible()
        page.goto(self.server.address + "#/runs/7")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".state").first).to_have_text("stopping")
        self.assertEqual(self.pool.posts, ["/api/nodes/node-003/drain", "/api/nodes/node-003/undrain", "/api/runs/7/stop"])

    def test_runs_are_compared(self):
        page = self.view("#/runs")
        for number in (2, 5):
            page.get_by_label(f"Compare run {number}", exact=True).check()
        page.get_by_role("button", name="Compare 2 runs").click()
        expect(page.get_by_role("table", name="settings in which they differ").get_by_role("row", name="optimizer.learning_rate")).to_contain_text("0.005")
        expect(page.get_by_role("img", name="Loss: ")).to_have_attribute("aria-label", containing("5 deps-5 (long dashes)"))
        expect(page.get_by_role("img", name="Loss: ")).to_have_attribute("aria-label", containing("2 deps-2 (solid)"))
        self.picture(page, "dashboard-compare", 900)

    def test_a_cell_of_the_map_is_read_by_keyboard(self):
        self.pool.lose("node-001")
        page = self.view("#/nodes")
        cells = page.locator(".heat canvas")
        cells.focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".heat .said")).to_contain_text("node-001, ")
        for _ in range(60):
            page.keyboard.press("ArrowRight")
        expect(page.locator(".heat .said")).to_contain_text("not there")
        page.keyboard.press("ArrowUp")
        expect(page.locator(".heat .said")).to_contain_text("% of a step")

    def test_without_a_server_the_page_says_so_and_recovers(self):
        page = self.view()
        port = self.server.http.server_port
        self.server.close()
        page.context.set_offline(True)
        expect(page.locator("#connection")).to_contain_text("no connection")
        expect(page.locator(".line")).to_contain_text("8 nodes")  # what was last known stays
        page.context.set_offline(False)
        self.server = MockServer(self.pool, port)
        expect(page.locator("#connection")).to_have_text("live")
        self.expected_complaints = AnyOf("net::ERR")

    def test_a_run_that_does_not_exist(self):
        page = self.view("#/compare?runs=99")
        expect(page.get_by_text("run 99: there is no run 99")).to_be_visible()
        self.expected_complaints = AnyOf("404")

    def test_an_unchanged_pool_costs_nothing(self):
        page = self.view()
        statuses = []
        page.on("response", lambda response: "api/pool" in response.url and statuses.append(response.status))
        deadline = time.monotonic() + LONG / 1000
        while len(statuses) < 2 and time.monotonic() < deadline:
            page.wait_for_timeout(100)
        self.assertGreaterEqual(len(statuses), 2)
        self.assertEqual(set(statuses), {304})

    def test_themes(self):
        page = self.view()
        background = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = background()
        page.get_by_role("button", name="Theme").click()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        dark = background()
        self.assertNotEqual(light, dark)
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        self.assertEqual(background(), dark)
        page = self.view(color_scheme="dark")
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), dark)

    def test_nothing_is_cut_off_on_any_screen(self):
        self.pool.lose("node-001")
        with self.pool.lock:
            self.pool.nodes["node-003"].update(suspended="a user of the machine is active", state_seconds=86000.0, address="fd00:1111:2222:3333:4444:5555:6666:7777")
        for hash_, page in self.views():
            for width in (360, 600, 768, 900, 1024, 1100, 1280, 1440, 1920):
                page.set_viewport_size({"width": width, "height": 800})
                self.settle(page)
                self.assertEqual(self.cut_off(page), [], f"{hash_} {width}")

    def cut_off(self, page):
        """Names of the sections that are wider than their place, and the width of the page if that is."""
        return page.evaluate("""[...document.querySelectorAll('section')].filter((part) => part.scrollWidth > part.clientWidth + 1)
            .map((part) => part.getAttribute('aria-label')).concat(document.documentElement.scrollWidth > innerWidth ? ['page'] : [])""")

    def test_on_a_phone_nothing_is_wider_than_the_screen(self):
        if PICTURES:
            page = self.view(viewport=PHONE, color_scheme="dark")
            expect(page.locator(SHOWN_LAST["#/"])).to_be_visible()
            self.settle(page)
            self.save(page, "dashboard-phone")
        with self.pool.lock:
            self.pool.nodes["node-000"].update(name="a-node-with-a-very-long-name-indeed-and-more.example", why="x" * 90)
            self.pool.runs[7]["name"] = "an_experiment_with_a_very_long_name_without_any_blank_in_it"
        for hash_, page in self.views(viewport=PHONE, color_scheme="dark"):
            self.settle(page)
            self.assertEqual(self.cut_off(page), [], hash_)

    def test_accessibility(self):
        self.pool.lose("node-001")
        self.pool.write_log(7, "node-000", "a line\n")
        for scheme in ("light", "dark"):
            for hash_, page in self.views(color_scheme=scheme, bypass_csp=True):
                for summary in page.locator("summary").all():
                    summary.click()
                self.settle(page)
                self.assert_accessible(page, f"{hash_} {scheme}")

    def test_the_keyboard_is_enough(self):
        page = self.view("#/nodes")
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))
            if seen[-1] == "Drain node-001":
                break
        self.assertEqual(seen[:3], ["To the content", "Modelet", "Pool"])
        page.keyboard.press("Enter")
        expect(self.row(page, "nodes", "node-001").locator(".state")).to_have_text("drained")

    def test_focus_survives_updates(self):
        page = self.view("#/nodes")
        button = page.get_by_role("button", name="Drain node-002", exact=True)
        button.focus()
        for step in (2100, 2200):
            self.pool.train(7, step)
            page.wait_for_timeout(1200)
        expect(button).to_be_focused()


class LargePoolTest(BrowserTest):
    """200 nodes and 1,000 runs."""

    def test_each_view_keeps_up(self):  # how fast it is, experiments/bench/page_speed.py measures
        pool = MockPool(200, 1000)
        server = MockServer(pool)
        self.addCleanup(server.close)
        page = self.open(server.address)
        for hash_ in ("#/", "#/nodes", "#/runs"):
            page.goto(server.address + hash_)
            expect(page.locator("tbody tr").first).to_be_visible()
            self.assertTrue(keeps_up(page, pool, 5), hash_)
            self.assertLess(page.locator("tbody tr").count(), 120)  # not all of them

    def test_the_rest_is_a_page_or_a_search_away(self):
        server = MockServer(MockPool(200, 1000))
        self.addCleanup(server.close)
        page = self.open(server.address + "#/runs")
        expect(page.get_by_role("status").filter(has_text="1 to 50 of 1041")).to_be_visible()
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_role("status").filter(has_text="51 to 100 of 1041")).to_be_visible()
        page.get_by_label("Search runs").fill("deps-777")
        expect(page.get_by_role("table", name="runs").get_by_role("link", name="deps-777")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="1 to 1 of 1")).to_be_visible()


def updates(page):
    return page.evaluate("performance.getEntriesByName('modelet update').length")


def keeps_up(page, pool, count):
    """Whether the page shows `count` more states of a pool whose runs go on."""
    wanted, deadline = updates(page) + count, time.monotonic() + LONG / 1000
    while updates(page) < wanted and time.monotonic() < deadline:
        with pool.lock:
            for number, run in pool.runs.items():
                if run["state"] == "running":
                    pool.train(number, run["step"] + 10)
        page.wait_for_timeout(500)
    return updates(page) >= wanted


def containing(part):
    """A pattern for a text that contains the part."""
    return re.compile(re.escape(part))


class AnyOf:
    """Equal to a list of complaints that all contain a text."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, complaints):
        return all(self.text in complaint for complaint in complaints)

    def __repr__(self):
        return f"complaints with '{self.text}'"


def skip_without_browser():
    if sync_playwright is None or browser_path() is None:
        print("skipped: the page is tested with Playwright and Chromium, which tests/browser/run.sh installs")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    skip_without_browser()
    unittest.main(verbosity=2)
