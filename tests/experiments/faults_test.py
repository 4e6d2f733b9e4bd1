"""experiments: the bounds of kill_nodes.py and churn.py, on figures made by hand."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments/bench"), str(ROOT / "experiments/cluster")]
import churn
import kill_nodes

MB = 1_000_000


class KillNodes(unittest.TestCase):
    @staticmethod
    def missed(*seconds):
        rows = [{"regrouped": 1, "seconds_to_next_step": each} for each in seconds]
        return kill_nodes.missed_bounds([*rows, {"regrouped": 2}])  # judge() refuses that run

    def test_reached(self):
        self.assertEqual(self.missed(3, 3, 10), [])

    def test_missed(self):
        self.assertEqual(self.missed(1, 1, 10.5), ["10.50 s to the next step (max), more than 10"])
        self.assertEqual(self.missed(1, 3.25, 9), ["3.25 s to the next step (median), more than 3"])
        self.assertEqual(len(self.missed(4, 12)), 2)
        self.assertEqual(self.missed(), ["no run has a next step"])


class Churn(unittest.TestCase):
    @staticmethod
    def life(name, memory, descriptors=lambda share: 100, seconds=600, begins=0):
        """Samples every ten seconds; memory in MB and descriptors are functions of the share of the life that is over."""
        return [{"process": name, "id": begins, "time": float(begins + second), "own_bytes": memory(second / seconds) * MB,
                 "descriptors": descriptors(second / seconds), "disk_bytes": 0} for second in range(0, seconds + 1, 10)]

    @staticmethod
    def missed(*lives, snapshots=0.1, learned=None):
        rows = sorted((row for life in lives for row in life), key=lambda row: row["time"])
        return churn.missed_bounds({"snapshot_share_of_links": snapshots, "usage": rows, "learned": learned})

    def test_a_process_that_grows_at_first_is_flat(self):
        self.assertEqual(self.missed(self.life("node0", lambda share: 165 if share < 0.3 else 400), self.life("node1", lambda share: 500 - 300 * share)), [])

    def test_single_samples_mean_little(self):
        spikes = self.life("node0", lambda share: 900 if round(share * 600) in (510, 560) else 400)
        self.assertEqual(self.missed(spikes), [])

    def test_snapshots(self):
        self.assertEqual(self.missed(self.life("node0", lambda share: 400), snapshots=0.118), ["copies of snapshots take 11.80% of the links, more than 10%"])

    def test_what_is_learned(self):
        life = self.life("node0", lambda share: 400)
        self.assertEqual(self.missed(life, learned={"p_at_1": [0.633, 0.635], "loss_apart_median": 0.001}), [])
        (other,) = self.missed(life, learned={"p_at_1": [0.633, 0.629], "loss_apart_median": 0.001})
        self.assertRegex(other, "P@1 0.6290 instead of 0.6330")
        self.assertEqual(len(self.missed(life, learned={"p_at_1": [0.633, 0.633], "loss_apart_median": 0.01})), 1)

    def test_leaks(self):
        leaks = self.life("node0", lambda share: 10 + 400 * share)
        (memory,) = self.missed(leaks, self.life("node1", lambda share: 400))
        self.assertRegex(memory, "node0: .* bytes of memory in the last quarter")
        (descriptors,) = self.missed(self.life("node0", lambda share: 400, lambda share: round(40 + 400 * share)))
        self.assertRegex(descriptors, "node0: .* descriptors in the last quarter")

    def test_less_than_a_mebibyte_is_no_leak(self):
        self.assertEqual(self.missed(self.life("watch-2", lambda share: 1 if share < 0.75 else 1.6)), [])
        self.assertEqual(len(self.missed(self.life("watch-2", lambda share: 1 if share < 0.75 else 2.6))), 1)

    def test_entries_of_the_store_that_stay_open_are_no_leak(self):
        self.assertEqual(self.missed(self.life("scheduler", lambda share: 20, lambda share: round(30 + 250 * share))), [])
        self.assertEqual(len(self.missed(self.life("scheduler", lambda share: 20, lambda share: round(30 + 500 * share)))), 1)

    def test_short_lives_are_not_judged(self):
        young = self.life("node0", lambda share: 10 + 400 * share, seconds=300)
        self.assertEqual(self.missed(young, self.life("node1", lambda share: 400)), [])
        again = self.life("node0", lambda share: 10 + 400 * share, seconds=300, begins=310)  # another process
        self.assertRegex(self.missed(young, again)[0], "no process lived for 360 s")


if __name__ == "__main__":
    unittest.main()
