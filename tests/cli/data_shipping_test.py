"""Agents that cannot see the data: it goes from who submits through the scheduler's store to their caches."""
import signal
import unittest

from programs import PoolTest, finished, wait_until

MEBI = 1 << 20
# Of the features of the data; more than a few chunks of 1 MiB.
SHAPE = ("--rows", "20000", "--rows-test", "400", "--features", "400", "--labels", "200", "--features-per-row", "32", "--labels-per-row", "2")


class Shipping(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--store", self.pool / "store")

    def setUp(self):
        super().setUp()
        self.modelet("data", "synth", self.pool / "data", *SHAPE)
        self.files = {name: (self.pool / "data" / f"{name}.mlt").read_bytes() for name in ("train", "test")}
        self.size = sum(map(len, self.files.values()))
        # A path that leads each process to its own working folder, where only those of clients lead to data.
        self.experiment = self.pool / "far.toml"
        text = (self.folder / "small.toml").read_text().replace("epochs = 5", "epochs = 1").replace("log_every = 1", "log_every = 100")
        for name in self.files:
            text = text.replace(f"data/{name}.txt", f"/proc/self/cwd/{self.pool.name}/data/{name}.mlt")
        self.experiment.write_text(text)

    def far_agent(self, name, *arguments):
        elsewhere = self.pool / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        return self.agent(name, *arguments, cwd=elsewhere)

    def submit_far(self, out, *arguments):
        """The run's number, and the bytes that were sent to the scheduler."""
        *sent, answer = self.verb("submit", self.experiment, "--out", self.pool / out, *arguments)
        if sent:
            self.assert_documented(sent, {"sending"})
        return answer["run"], self.total(sent)

    @staticmethod
    def total(events):
        """Bytes of the events "sending" or "fetching" of one node: each file's last event has them all."""
        return sum(event["bytes"] for event in events if event["bytes"] == event["total_bytes"])

    def watch_to_the_end(self, run):
        """The run's end, and {node: bytes it fetched}."""
        watched = self.modelet("watch", run, "--scheduler", self.address, "--json")
        fetching = watched.events("fetching")
        if fetching:
            self.assert_documented(fetching, {"fetching"})
        return finished(watched), {node: self.total(event for event in fetching if event["node"] == node)
                                   for node in {event["node"] for event in fetching}}

    def cache(self, agent):
        return sorted((self.pool / agent / "cache").glob("*.data"))

    def chunks_there(self, agent):
        """How many chunks of the training data lie in the agent's cache."""
        train = self.files["train"]
        for file in self.cache(agent):
            data = file.read_bytes()
            if len(data) == len(train):
                return sum(data[at:at + MEBI] == train[at:at + MEBI] for at in range(0, len(train), MEBI))
        return 0

    def test_two_agents_that_have_nothing(self):
        exact = ("--nodes", "2", "--set", "exchange.codec=none")
        self.far_agent("a")
        self.far_agent("b")
        run, sent = self.submit_far("first", *exact)
        self.assertEqual(sent, self.size)
        end, fetched = self.watch_to_the_end(run)
        self.assertEqual(fetched, {"a": self.size, "b": self.size})
        for agent in "ab":
            self.assertEqual(sorted(file.read_bytes() for file in self.cache(agent)), sorted(self.files.values()))
        alone = finished(self.train("alone", "--set", "exchange.codec=none"))
        self.assertAlmostEqual(end["p_at_1"], alone["p_at_1"], delta=0.01)

        run, sent = self.submit_far("second", *exact)
        end_again, fetched = self.watch_to_the_end(run)
        self.assertEqual((sent, fetched), (0, {}), "all is there")
        self.assertEqual(end_again["p_at_1"], end["p_at_1"])

        # One chunk rots: it alone is fetched again.
        rotten = next(file for file in self.cache("a") if file.stat().st_size == len(self.files["train"]))
        with open(rotten, "r+b") as file:
            file.seek(MEBI + 5)
            byte = file.read(1)
            file.seek(MEBI + 5)
            file.write(bytes([byte[0] ^ 1]))
        run, _sent = self.submit_far("third", *exact)
        self.assertEqual(self.watch_to_the_end(run)[1], {"a": MEBI})

    def test_killed_while_data_is_fetched(self):
        """First the scheduler, then the agent; each time only the rest is fetched afterwards."""
        victim = self.far_agent("a", "--fetch-mib-per-second", "0.5")
        run, _sent = self.submit_far("run")
        self.wait_for(run, lambda status: "node 'a' fetches data" in status["detail"], "says what it waits for")
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        there = self.chunks_there("a")
        self.assertGreaterEqual(there, 1)
        self.scheduler = self.start("modelet-scheduler", "--config", self.pool / "scheduler.toml", "--listen", self.address,
                                    *self.scheduler_arguments)
        wait_until(lambda: "listening" in self.scheduler.stderr, "the scheduler is back")
        wait_until(lambda: self.nodes().get("a", {}).get("run") == 0, "the agent is back")

        run, sent = self.submit_far("again")
        self.assertEqual(sent, 0, "the store is as it was")
        wait_until(lambda: self.chunks_there("a") > there, lambda: f"another chunk arrives: {victim}")
        victim.signal(signal.SIGKILL)
        victim.end()
        there = self.chunks_there("a")
        self.assertLess(there * MEBI, len(self.files["train"]))
        self.assertEqual(self.wait_for_end(run)["state"], "failed")

        self.far_agent("a")
        run, _sent = self.submit_far("last")
        _end, fetched = self.watch_to_the_end(run)
        self.assertEqual(fetched, {"a": self.size - there * MEBI})

    def test_a_run_is_stopped_while_its_data_is_fetched(self):
        self.far_agent("a", "--fetch-mib-per-second", "0.1")
        run, _sent = self.submit_far("run")
        wait_until(lambda: self.chunks_there("a") >= 1, "a chunk arrives")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        wait_until(lambda: [node["run"] for node in self.nodes().values()] == [0], "a is free")

    def test_no_room(self):
        self.far_agent("a", "--cache-mib", "1")
        run, _sent = self.submit_far("run")
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "failed")
        self.assertIn("raise --cache-mib of the agent", status["detail"])
        self.assertEqual(self.cache("a"), [])


if __name__ == "__main__":
    unittest.main()
