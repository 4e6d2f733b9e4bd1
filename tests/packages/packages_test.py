"""The packages' parts that can be checked without making packages: units, the changelog, versions, what the archive's programs may need."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS, UNITS, SOURCE = (pathlib.Path(os.environ[name]) for name in ("MODELET_PROGRAMS", "MODELET_UNITS", "MODELET_SOURCE"))
SERVICES = ("modelet-agent", "modelet-scheduler")
VERSION = re.search(r'kVersion = "([0-9.]+)"', (SOURCE / "base/version.h").read_text()).group(1)


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def needs(tool):
    return unittest.skipUnless(shutil.which(tool), f"{tool} is not installed")


@needs("systemd-analyze")
class Units(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copy(SOURCE / "packaging/systemd/modelet.slice", self.folder)
        for service in SERVICES:  # the programs are not installed here
            text = (UNITS / f"{service}.service").read_text()
            (self.folder / f"{service}.service").write_text(re.sub(r"ExecStart=\S+/", f"ExecStart={PROGRAMS}/", text))

    def test_systemd_understands_them(self):
        checked = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
                      *(self.folder / f"{service}.service" for service in SERVICES), self.folder / "modelet.slice")
        complaints = [line for line in checked.stderr.splitlines() if "modelet" in line]
        self.assertEqual(complaints, [])

    def test_they_are_hardened(self):
        for service in SERVICES:
            checked = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", self.folder / f"{service}.service")
            if "unrecognized option" in checked.stderr:
                self.skipTest("this systemd-analyze cannot check files")
            self.assertEqual(checked.returncode, 0, checked.stdout[-300:] + checked.stderr)
            self.assertIn("Overall exposure level", checked.stdout)

    def test_the_agent_may_call_openat2(self):
        self.assertNotRegex((UNITS / "modelet-agent.service").read_text(), r"(?m)^RestrictSUIDSGID=")

    def test_the_scheduler_keeps_its_runs(self):
        self.assertRegex((SOURCE / "packaging/debian/scheduler/scheduler.toml").read_text(), r'(?m)^state = "/var/lib/modelet-scheduler"')


class Changelog(unittest.TestCase):
    def changelog(self, text, version):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "CHANGELOG.md"), pathlib.Path(folder, "changelog")
            source.write_text(text)
            made = run(sys.executable, "-B", SOURCE / "packaging/debian/changelog.py", source, "modelet-agent", version, "A B <a@b.c>", target)
            return made, target.read_text() if target.exists() else ""

    def test_it_becomes_debians(self):
        made, text = self.changelog("# Changelog\n\n## 1.2.0 (2026-02-03)\n\n- It [flies](docs/install.md).\n\n## 1.1.9 (2026-02-01)\n\n- It walks.\n", "1.2.0-1+deb12")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(text, "modelet-agent (1.2.0-1+deb12) unstable; urgency=medium\n\n  * It flies.\n\n"
                               " -- A B <a@b.c>  Tue, 03 Feb 2026 12:00:00 +0000\n\n"
                               "modelet-agent (1.1.9-1+deb12) unstable; urgency=medium\n\n  * It walks.\n\n"
                               " -- A B <a@b.c>  Sun, 01 Feb 2026 12:00:00 +0000\n\n")

    def test_a_version_without_an_entry_is_refused(self):
        made, _ = self.changelog("## 1.1.9 (2026-02-01)\n\n- It walks.\n", "1.2.0-1+deb12")
        self.assertEqual(made.returncode, 1)
        self.assertIn("'## 1.2.0 (YYYY-MM-DD)'", made.stderr)

    def test_it_says_what_is_new_in_this_version(self):
        made, text = self.changelog((SOURCE / "CHANGELOG.md").read_text(), f"{VERSION}-1")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertTrue(text.startswith(f"modelet-agent ({VERSION}-1)"), text[:200])


class Versions(unittest.TestCase):
    def test_all_programs_say_the_same(self):
        for program in ("modelet", "modelet-agent", "modelet-scheduler"):
            self.assertEqual(run(PROGRAMS / program, "--version").stdout, f"{program} {VERSION}\n")


@needs("objdump")
class Portable(unittest.TestCase):
    def check(self, *arguments):
        return run(sys.executable, "-B", SOURCE / "packaging/check-portable.py", *arguments)

    @needs("cc")
    def test_a_library_or_a_symbol_that_is_too_new_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "main.c"), pathlib.Path(folder, "main")
            source.write_text("#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n")
            self.assertEqual(run("cc", source, "-o", program).returncode, 0)
            self.assertEqual(self.check("--glibc", "99.0", program).stdout, "")
            old = self.check("--glibc", "2.1", program)
            self.assertEqual(old.returncode, 1)
            self.assertIn("needs __libc_start_main of glibc 2.", old.stdout)
        linked = self.check("--glibc", "99.0", PROGRAMS / "modelet-scheduler")
        self.assertEqual(linked.returncode, 1)
        self.assertIn("needs the library libzmq.so.5", linked.stdout)

    def test_what_is_no_program_is_found(self):
        self.assertEqual(self.check(SOURCE / "CHANGELOG.md").returncode, 1)


@needs("bash")
class Scripts(unittest.TestCase):
    def test_they_are_scripts(self):
        for script in (*SOURCE.glob("packaging/*.sh"), SOURCE / "packaging/helm/try.sh", *SOURCE.glob("packaging/debian/*/p*"), SOURCE / "tests/packages/run.sh"):
            checked = run("bash" if script.suffix == ".sh" else "sh", "-n", script)
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_their_help_says_how_they_are_used(self):
        for name in ("packaging/make-packages.sh", "packaging/make-image.sh", "packaging/helm/try.sh", "tests/packages/run.sh"):
            asked = run("bash", SOURCE / name, "--help")
            self.assertEqual(asked.returncode, 0, asked.stderr)
            self.assertIn("usage: ", asked.stdout)
            self.assertEqual(run("bash", SOURCE / name, "--nonsense").returncode, 2)


class Chart(unittest.TestCase):
    def test_it_fits_the_schemas(self):
        checked = run("sh", SOURCE / "packaging/helm/check.sh")
        if checked.returncode == 77:
            self.skipTest(checked.stdout.strip())
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
