#!/usr/bin/env python3
"""Is the page of a large pool fluid? Opens it in Chromium, which tests/browser/run.sh --install brings, for 200 nodes and 1,000 runs that
exist only here, and prints for three views, as medians:

first paint  milliseconds from the request to the first row of what the server knows, of a page that is opened anew each time
update       milliseconds of scripts, styles and layout for one new state of the pool

Exit code 1: a first paint takes --paint or more, an update --update or more.
"""

import argparse
import pathlib
import statistics
import sys

import measuring

sys.path.append(str(measuring.ROOT / "tests/browser"))
from mock_pool import MockPool, MockServer  # noqa: E402
from page_test import DESK, LONG, browser_path, expect, keeps_up, skip_without_browser, sync_playwright, updates  # noqa: E402

VIEWS = ("#/", "#/nodes", "#/runs")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7, help="first paints, and updates, of each view (default: 7)")
    parser.add_argument("--paint", type=float, default=1000, metavar="MS", help="(default: 1000)")
    parser.add_argument("--update", type=float, default=100, metavar="MS", help="(default: 100)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def open_page(browser, address):
    context = browser.new_context(viewport=DESK)
    context.set_default_timeout(LONG)
    page = context.new_page()
    page.goto(address)
    expect(page.locator("tbody tr").first).to_be_visible()
    return page


def first_paint(browser, address):
    page = open_page(browser, address)
    painted = page.evaluate("""new Promise((resolve) => new PerformanceObserver((list) => resolve(list.getEntries()[0].startTime))
        .observe({type: 'paint', buffered: true}))""")
    updated = page.evaluate("(([entry]) => entry.startTime + entry.duration)(performance.getEntriesByName('modelet update'))")
    page.context.close()
    return max(painted, updated)


def update(browser, address, pool, count):
    page = open_page(browser, address)
    costs = page.context.new_cdp_session(page)
    costs.send("Performance.enable")

    def work():
        seconds = {each["name"]: each["value"] for each in costs.send("Performance.getMetrics")["metrics"]}
        return seconds["ScriptDuration"] + seconds["LayoutDuration"] + seconds["RecalcStyleDuration"]

    shown, worked = updates(page), work()
    if not keeps_up(page, pool, count):
        sys.exit(f"{address} shows nothing new")
    each = 1000 * (work() - worked) / (updates(page) - shown)
    page.context.close()
    return each


def main():
    arguments = parse_arguments()
    skip_without_browser()
    pool = MockPool(arguments.nodes, arguments.runs)
    server = MockServer(pool)
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        for view in VIEWS:
            address = server.address + view
            paints = [first_paint(browser, address) for _ in range(arguments.repeats)]
            rows.append({"view": view, "first_paint_ms": statistics.median(paints), "first_paints_ms": paints,
                         "update_ms": update(browser, address, pool, arguments.repeats)})
            print("{view:8} first paint {first_paint_ms:.0f} ms, update {update_ms:.1f} ms".format(**rows[-1]), flush=True)
        browser.close()
    server.close()
    passed = all(row["first_paint_ms"] < arguments.paint and row["update_ms"] < arguments.update for row in rows)
    measuring.finish({"views": rows}, arguments.json, passed)


if __name__ == "__main__":
    main()
