"""Metrics of a pool for Prometheus, and the files in packaging/monitoring. What needs Debian's package `prometheus` is left out without it."""
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest
import urllib.parse
import urllib.request

from page_test import ask, page_of
from programs import ENDLESS, PoolTest, die_with_parent, wait_until

MONITORING = pathlib.Path(__file__).parents[2] / "packaging/monitoring"
needs_prometheus = unittest.skipUnless(shutil.which("promtool") and shutil.which("prometheus"), "Debian's package prometheus is not installed")


def documented_metrics():
    rows = re.findall(r"^\| (`modelet_[^|]+)\|", (MONITORING.parents[1] / "docs/monitoring.md").read_text(), re.M)
    return {name for row in rows for name in re.findall(r"modelet_\w+", row)}


def promtool(*arguments, **options):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, **options)


class Files(unittest.TestCase):
    @needs_prometheus
    def test_prometheus_understands_them(self):
        for arguments in (("check", "config", MONITORING / "prometheus.yml"), ("check", "rules", MONITORING / "alerts.yml"),
                          ("test", "rules", MONITORING / "alerts_test.yml")):
            result = promtool(*arguments)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_metrics_that_they_name_are_documented(self):
        documented = documented_metrics()
        for name in ("alerts.yml", "grafana.json"):
            self.assertLessEqual(set(re.findall(r"\bmodelet_\w+", (MONITORING / name).read_text())), documented, name)
        dashboard = json.loads((MONITORING / "grafana.json").read_text())
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))


class Metrics(PoolTest):
    scheduler_arguments = ("--http", "127.0.0.1:0")

    def metrics(self):
        return ask(page_of(self.scheduler) + "/metrics").text

    def test_a_run_comes_and_goes(self):
        self.agent("a")
        run = self.submit("--nodes", "1", *ENDLESS)
        self.wait_for_step(run, 30)
        wait_until(lambda: re.search(rf'modelet_run_samples_per_second{{run="{run}",name="small"}} \d', self.metrics()), self.metrics)
        text = self.metrics()
        self.assertIn('modelet_nodes{state="training"} 1\n', text)
        documented = documented_metrics()
        shown = set(re.findall(r"^# TYPE (modelet_\w+)", text, re.M))
        self.assertEqual(shown, documented)
        self.verb("stop", run)
        self.wait_for_end(run)
        wait_until(lambda: f'run="{run}"' not in self.metrics(), self.metrics)

    @needs_prometheus
    def test_promtool_has_no_complaint(self):
        self.agent("a")
        self.wait_for_step(self.submit("--nodes", "1", *ENDLESS), 5)
        result = promtool("check", "metrics", input=self.metrics())
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    @needs_prometheus
    def test_an_alert_fires_when_an_agent_is_killed(self):
        agent = self.agent("a")
        self.agent("b")
        target = page_of(self.scheduler).removeprefix("http://")
        configuration = (MONITORING / "prometheus.yml").read_text()
        for old, new in (("scrape_interval: 15s", "scrape_interval: 1s"), ("evaluation_interval: 15s", "evaluation_interval: 1s"),
                         ("127.0.0.1:5571", target), ("- alerts.yml", f"- {MONITORING / 'alerts.yml'}")):
            self.assertIn(old, configuration)
            configuration = configuration.replace(old, new)
        file = self.pool / "prometheus.yml"
        file.write_text(configuration)
        log = open(self.pool / "prometheus.log", "w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(["prometheus", f"--config.file={file}", f"--storage.tsdb.path={self.pool / 'tsdb'}", "--web.listen-address=127.0.0.1:0"],
                                   stdout=log, stderr=subprocess.STDOUT, preexec_fn=functools.partial(die_with_parent, os.getpid()))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        def address():
            found = re.search(r"Listening on\" address=(\S+)", (self.pool / "prometheus.log").read_text())
            return f"http://{found.group(1)}" if found else None
        prometheus = wait_until(address, lambda: (self.pool / "prometheus.log").read_text())
        wait_until(lambda: ask(f"{prometheus}/-/ready").status == 200, "Prometheus is ready")
        def query(what):
            with urllib.request.urlopen(f"{prometheus}/api/v1/query?query={urllib.parse.quote(what)}", timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        wait_until(lambda: any(each["value"][1] == "2" for each in query('modelet_nodes{state="free"}')), "it scrapes")
        wait_until(lambda: query("count_over_time(modelet_node_losses_total[1m])>2"), "it has scraped some times")
        self.assertEqual(query("ALERTS{alertname=\"ModeletNodeLost\"}"), [])
        agent.signal(signal.SIGKILL)
        alerts = wait_until(lambda: query("ALERTS{alertname=\"ModeletNodeLost\"}"), "the alert")
        self.assertEqual(alerts[0]["metric"]["alertstate"], "firing")


if __name__ == "__main__":
    unittest.main()
