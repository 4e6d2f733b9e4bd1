"""The file that `modelet report` writes, in a real browser. Needs MODELET_PROGRAMS, the folder of the programs; skipped without it
or without a browser (run.sh)."""
import pathlib
import sys
import unittest

import page_test
from page_test import BrowserTest, containing, skip_without_browser

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))


class ReportTest(BrowserTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from programs import LABELS, ProgramTest
        cls.programs = type("Programs", (ProgramTest,), {"runTest": lambda self: None})
        cls.programs.setUpClass()
        cls.addClassCleanup(cls.programs.doClassCleanups)
        cls.hostile = "<img src=x onerror=document.title='owned'>"
        programs = cls.programs()
        programs.setUp()
        names = programs.folder / "label-names.txt"
        names.write_text(f"{cls.hostile}\n" * LABELS)
        programs.train("reported", "--nodes", "2", "--set", f"data.labels={names}", "--set", "train.epochs=3", "--set", "train.log_every=1")
        cls.report = pathlib.Path(programs.modelet("report", programs.folder / "reported").stdout.strip())

    def test_it_is_whole_and_asks_nobody(self):
        page = self.open(self.report.as_uri())  # fails for any other request
        page_test.expect(page.get_by_role("img", name="Loss: ")).to_have_attribute("aria-label", containing("loss (solid) from"))
        page_test.expect(page.get_by_role("img", name="Precision: ")).to_have_attribute("aria-label", containing("P@1 (solid) from"))
        page_test.expect(page.locator(".times li")).to_have_count(2)
        page_test.expect(page.locator("svg .mark.finished")).to_have_count(1)
        for heading in ("Figures", "Events", "Placement", "Hardest labels", "Wrong predictions", "Settings"):
            page_test.expect(page.get_by_role("heading", name=heading)).to_be_visible()
        page_test.expect(page.locator(".answer").first).to_contain_text(self.hostile)
        self.assertEqual(page.locator("img[src]").count(), 0)
        self.assertEqual(page.title(), "reported – Modelet")
        self.assertGreater(page.evaluate("document.querySelector('.chart canvas').width"), 100)

    def test_on_a_phone(self):
        page = self.open(self.report.as_uri(), viewport=page_test.PHONE)
        page_test.expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), page_test.PHONE["width"])

    def test_accessibility(self):
        for scheme in ("light", "dark"):
            page = self.open(self.report.as_uri(), color_scheme=scheme, bypass_csp=True)
            page_test.expect(page.get_by_role("heading", name="Settings")).to_be_visible()
            self.assert_accessible(page, scheme)


if __name__ == "__main__":
    skip_without_browser()
    unittest.main(verbosity=2)
