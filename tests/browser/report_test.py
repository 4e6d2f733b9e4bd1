"""The file that `modelet report` writes, in a real browser. Needs MODELET_PROGRAMS, the folder of the programs; skipped without it
or without a browser (run.sh)."""
import pathlib
import sys
import unittest

from page_test import PHONE, BrowserTest, containing, expect, skip_without_browser

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from programs import LABELS, ProgramTest  # noqa: E402

HOSTILE = "<img src=x onerror=document.title='owned'>"


class ReportTest(BrowserTest, ProgramTest):
    def setUp(self):
        super().setUp()
        self.report = self.folder / "reported/report.html"
        if self.report.exists():
            return  # of an earlier test
        names = self.folder / "label-names.txt"
        names.write_text(f"{HOSTILE}\n" * LABELS)
        self.train("reported", "--nodes", "2", "--set", f"data.labels={names}", "--set", "train.epochs=3", "--set", "train.log_every=1")
        self.modelet("report", self.folder / "reported")

    def test_it_is_whole_and_asks_nobody(self):
        page = self.open(self.report.as_uri())  # fails for any other request
        expect(page.get_by_role("img", name="Loss: ")).to_have_attribute("aria-label", containing("loss (solid) from"))
        expect(page.get_by_role("img", name="Precision: ")).to_have_attribute("aria-label", containing("P@1 (solid) from"))
        expect(page.locator(".times li")).to_have_count(2)
        expect(page.locator("svg .mark.finished")).to_have_count(1)
        for heading in ("Figures", "Events", "Placement", "Hardest labels", "Wrong predictions", "Settings"):
            expect(page.get_by_role("heading", name=heading)).to_be_visible()
        expect(page.locator(".answer").first).to_contain_text(HOSTILE)
        self.assertEqual(page.locator("img[src]").count(), 0)
        self.assertEqual(page.title(), "reported – Modelet")
        self.assertGreater(page.evaluate("document.querySelector('.chart canvas').width"), 100)

    def test_on_a_phone(self):
        page = self.open(self.report.as_uri(), viewport=PHONE)
        expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), PHONE["width"])

    def test_accessibility(self):
        for scheme in ("light", "dark"):
            page = self.open(self.report.as_uri(), color_scheme=scheme, bypass_csp=True)
            expect(page.get_by_role("heading", name="Settings")).to_be_visible()
            self.assert_accessible(page, scheme)


if __name__ == "__main__":
    skip_without_browser()
    unittest.main(verbosity=2)
