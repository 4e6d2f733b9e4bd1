"""modelet top, in a terminal (a pty) and without one."""
import fcntl
import os
import pty
import re
import select
import struct
import termios
import unittest

from programs import ENDLESS, PoolTest, wait_until

ROWS, COLUMNS = 12, 100


class Terminal:
    """A terminal in which a program runs. `screen` is what it shows now."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.output = ""

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65536).decode()
        return self.output

    @property
    def screen(self):
        """Each refresh begins at the upper left corner. The last one may be under way."""
        refreshes = self.read().split("\x1b[H")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", refreshes[-2]) if len(refreshes) > 2 else ""

    def press(self, key):
        os.write(self.master, key.encode())

    def settings(self):
        return termios.tcgetattr(self.slave)


class TopTest(PoolTest):
    def test_it_is_kept_up_to_date(self):
        self.agent("a")
        run = self.submit("--nodes", "1", *ENDLESS)
        self.wait_for_step(run, 5)
        terminal = Terminal()
        before = terminal.settings()
        top = self.start("modelet", "top", "--scheduler", self.address, stdout=terminal.slave, stdin=terminal.slave)
        wait_until(lambda: "1 node: 1 training" in terminal.screen, lambda: terminal.output)
        wait_until(lambda: re.search(rf"\b{run}\b.*running", terminal.screen), lambda: terminal.screen)
        def step():
            found = re.search(r"running +(\d+)", terminal.screen)
            return int(found.group(1)) if found else 0
        first = wait_until(step, lambda: terminal.screen)
        wait_until(lambda: step() > first, lambda: terminal.screen)
        self.agent("b")
        wait_until(lambda: "2 nodes: 1 free, 1 training" in terminal.screen, lambda: terminal.screen)
        lines = terminal.screen.split("\r\n")
        self.assertEqual(len(lines), ROWS)
        self.assertLessEqual(max(map(len, lines)), COLUMNS)
        self.assertNotEqual(terminal.settings(), before)
        terminal.press("q")
        self.assert_ends(top, 0)
        self.assertEqual(terminal.settings(), before)
        self.assertIn("\x1b[?1049l", terminal.read())  # the screen from before is back

    def test_signals_and_a_scheduler_that_goes_away(self):
        terminal = Terminal()
        top = self.start("modelet", "top", "--scheduler", self.address, stdout=terminal.slave, stdin=terminal.slave)
        wait_until(lambda: "0 nodes" in terminal.screen, lambda: terminal.output)
        self.scheduler.kill_all()
        wait_until(lambda: self.address in terminal.screen.split("\r\n")[0], lambda: terminal.screen)
        self.assertTrue(top.running())
        top.signal(15)
        self.assertEqual(top.end(), 0)
        self.assertIn("\x1b[?1049l", terminal.read())

    def test_without_a_terminal_it_shows_the_pool_once(self):
        self.agent("a")
        shown = self.modelet("top", "--scheduler", self.address).stdout
        self.assertIn("1 node: 1 free", shown)
        self.assertNotIn("\x1b", shown)


if __name__ == "__main__":
    unittest.main()
