"""Agents that cannot see the data. It travels from the client through the scheduler's store to their caches."""
import signal
import unittest

from programs import PoolTest, finished, wait_until

MEBI = 1 << 20
# The shape of the data. It has more than a few chunks of 1 MiB.
SHAPE = ("--rows", "20000", "--rows-test", "400", "--features", "400", "--labels", "200", "--features-per-row", "32", "--labels-per-row", "2")


class FarPool(PoolTest):
    """Agents that do not see the data."""
    shape = ()

    @property
    def scheduler_arguments(self):
        return ("--store", self.pool / "store")

    def setUp(self):
        super().setUp()
        self.modelet("data", "synth", self.pool / "data", *self.shape)
        self.files = {name: (self.pool / "data" / f"{name}.mlt").read_bytes() for name in ("train", "test")}
        self.size = sum(map(len, self.files.values()))
        # The path leads each process to its own working folder. Only the working folders of clients have data there.
        self.experiment = self.pool / "far.toml"
        text = (self.folder / "small.toml").read_text().replace("epochs = 5", "epochs = 1").replace("log_every = 1", "log_every = 100")
        for name in self.files:
            text = text.replace(f"data/{name}.txt", f"/proc/self/cwd/{self.pool.name}/data/{name}.mlt")
        self.experiment.write_text(text)

    def far_agent(self, name, *arguments):
        elsewhere = self.pool / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        return self.agent(name, *arguments, cwd=elsewhere)

    def submit_far(self, *arguments):
        """Returns the number of the run, and how many bytes were sent to the scheduler."""
        *sent, answer = self.verb("submit", self.experiment, *arguments)
        if sent:
            self.assert_documented(sent, {"sending"})
        return answer["run"], self.total(sent)

    @staticmethod
    def total(events):
        """Bytes in the events "sending" or "fetching" of one node. The last event of each file has the total."""
        return sum(event["bytes"] for event in events if event["bytes"] == event["total_bytes"])

    def watch_to_the_end(self, run):
        """Returns the end of the run, and {node: bytes that it fetched}."""
        watched = self.modelet("watch", run, "--scheduler", self.address, "--json")
        fetching = watched.events("fetching")
        if fetching:
            self.assert_documented(fetching, {"fetching"})
        return finished(watched), {node: self.total(event for event in fetching if event["node"] == node)
                                   for node in {event["node"] for event in fetching}}

    def cache(self, agent):
        return sorted((self.pool / agent / "cache").glob("*.data"))

    def chunks_there(self, agent):
        """How many chunks of the training data are in the cache of the agent."""
        train = self.files["train"]
        for file in self.cache(agent):
            data = file.read_bytes()
            if len(data) == len(train):
                return sum(data[at:at + MEBI] == train[at:at + MEBI] for at in range(0, len(train), MEBI))
        return 0


class Shipping(FarPool):
    shape = SHAPE

    def test_two_agents_that_have_nothing(self):
        exact = ("--nodes", "2", "--set", "exchange.codec=none")
        self.far_agent("a")
        self.far_agent("b")
        run, sent = self.submit_far(*exact)
        self.assertEqual(sent, self.size)
        end, fetched = self.watch_to_the_end(run)
        self.assertEqual(fetched, {"a": self.size, "b": self.size})
        for agent in "ab":
            self.assertEqual(sorted(file.read_bytes() for file in self.cache(agent)), sorted(self.files.values()))
        alone = finished(self.train("alone", "--set", "exchange.codec=none"))
        self.assertAlmostEqual(end["p_at_1"], alone["p_at_1"], delta=0.01)

        run, sent = self.submit_far(*exact)
        end_again, fetched = self.watch_to_the_end(run)
        self.assertEqual((sent, fetched), (0, {}), "all is there")
        self.assertEqual(end_again["p_at_1"], end["p_at_1"])

        # One chunk is damaged: only this chunk is fetched again.
        rotten = next(file for file in self.cache("a") if file.stat().st_size == len(self.files["train"]))
        with open(rotten, "r+b") as file:
            file.seek(MEBI + 5)
            byte = file.read(1)
            file.seek(MEBI + 5)
            file.write(bytes([byte[0] ^ 1]))
        run, _sent = self.submit_far(*exact)
        self.assertEqual(self.watch_to_the_end(run)[1], {"a": MEBI})

    def test_killed_while_data_is_fetched(self):
        """First the scheduler is killed, then the agent. Each time only the rest is fetched afterwards."""
        victim = self.far_agent("a", "--fetch-mib-per-second", "0.5")
        run, _sent = self.submit_far()
        self.wait_for(run, lambda status: "node 'a' fetches data" in status["detail"], "says what it waits for")
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        there = self.chunks_there("a")
        self.assertGreaterEqual(there, 1)
        self.scheduler = self.start("modelet-scheduler", "--config", self.pool / "scheduler.toml", "--listen", self.address,
                                    *self.scheduler_arguments)
        wait_until(lambda: "listening" in self.scheduler.stderr, "the scheduler is back")
        wait_until(lambda: self.nodes().get("a", {}).get("run") == 0, "the agent is back")

        run, sent = self.submit_far()
        self.assertEqual(sent, 0, "the store is as it was")
        wait_until(lambda: self.chunks_there("a") > there, lambda: f"another chunk arrives: {victim}")
        victim.signal(signal.SIGKILL)
        victim.end()
        there = self.chunks_there("a")
        self.assertLess(there * MEBI, len(self.files["train"]))
        wait_until(lambda: self.nodes()["a"]["state"] == "lost", "a is lost")
        self.verb("stop", run)  # otherwise it would not end
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")

        self.far_agent("a")
        run, _sent = self.submit_far()
        _end, fetched = self.watch_to_the_end(run)
        self.assertEqual(fetched, {"a": self.size - there * MEBI})

    def test_a_run_is_stopped_while_its_data_is_fetched(self):
        self.far_agent("a", "--fetch-mib-per-second", "0.1")
        run, _sent = self.submit_far()
        wait_until(lambda: self.chunks_there("a") >= 1, "a chunk arrives")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        wait_until(lambda: [node["run"] for node in self.nodes().values()] == [0], "a is free")

    def test_no_room(self):
        self.far_agent("a", "--cache-mib", "1")
        run, _sent = self.submit_far()
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "failed")
        self.assertIn("raise --cache-mib of the agent", status["detail"])
        self.assertEqual(self.cache("a"), [])


class LabelsOfANode(FarPool):
    """A node fetches only the labels of its output neurons."""
    shape = ("--rows", "60000", "--rows-test", "100", "--features", "400", "--labels", "4000", "--features-per-row", "4",
             "--labels-per-row", "30")
    # There are few steps of training. Some samples are held out, so all of their labels are needed.
    exact = ("--set", "exchange.codec=none", "--set", "modelets.output_modelets=6", "--set", "train.batch=4000",
             "--set", "data.validation=0.02", "--set", "train.evaluate_every=1")

    def setUp(self):
        super().setUp()
        train = self.files["train"]
        # docs/data_format.md: the last section has the samples of each label, and the last row of the table says where.
        row = 64 * int.from_bytes(train[24:28], "little")
        self.assertTrue(train[row:].startswith(b"labels.samples\0"))
        self.labels_begin = int.from_bytes(train[row + 48:row + 56], "little")
        self.labels = len(train) - self.labels_begin
        self.assertGreater(self.labels, 6 * MEBI)

    def ranges_there(self, agent):
        """Chunks of the training data in the cache of the agent: those that are right, and others that are not all zeros."""
        train = self.files["train"]
        (file,) = (file for file in self.cache(agent) if file.stat().st_size == len(train))
        data = file.read_bytes()
        right = {at for at in range(0, len(train), MEBI) if data[at:at + MEBI] == train[at:at + MEBI]}
        others = {at for at in range(0, len(train), MEBI) if at not in right and data[at:at + MEBI].strip(b"\0")}
        return right, others

    def test_two_nodes_have_half_of_the_labels_each(self):
        for agent in "ab":
            self.far_agent(agent)
        run, sent = self.submit_far("--nodes", "2", *self.exact)
        self.assertEqual(sent, self.size)
        end, fetched = self.watch_to_the_end(run)
        for agent in "ab":
            # Half of the labels, and the rest of the chunks at both ends of the range.
            self.assertLess(abs(fetched[agent] - (self.size - self.labels / 2)), 1.5 * MEBI, fetched)
            right, others = self.ranges_there(agent)
            self.assertEqual(others, set(), "nothing of what it did not fetch")
            self.assertLess(len(right) * MEBI, len(self.files["train"]) - self.labels / 2 + 2.5 * MEBI)
        (first, _), (second, _) = self.ranges_there("a"), self.ranges_there("b")
        self.assertEqual(len(first | second), -(-len(self.files["train"]) // MEBI), "all of them together")
        alone = finished(self.train("alone", *self.exact, "--set", "train.epochs=1", "--set", "train.log_every=100",
                                    "--set", f"data.train={self.pool}/data/train.mlt",
                                    "--set", f"data.test={self.pool}/data/test.mlt"))
        for name in ("p_at_1", "p_at_5"):
            self.assertAlmostEqual(end[name], alone[name], delta=0.03)
            self.assertAlmostEqual(end["validation"][name], alone["validation"][name], delta=0.01)

        # Other ranges on the same agents: exactly what is missing is fetched.
        run, sent = self.submit_far("--nodes", "1", *self.exact)
        _end, fetched_then = self.watch_to_the_end(run)
        self.assertEqual(sent, 0)
        ((agent, bytes_then),) = fetched_then.items()
        self.assertEqual(bytes_then, self.size - fetched[agent])
        self.assertIn(self.files["train"], [file.read_bytes() for file in self.cache(agent)])

    def test_killed_while_labels_are_fetched(self):
        victim = self.far_agent("a", "--fetch-mib-per-second", "2")
        self.far_agent("b", "--fetch-mib-per-second", "2")
        run, _sent = self.submit_far("--nodes", "2", *self.exact)
        before = -(-self.labels_begin // MEBI)
        wait_until(lambda: self.chunks_there("a") > before, "some of the labels arrive")
        victim.signal(signal.SIGKILL)
        victim.end()
        there = self.chunks_there("a")
        wait_until(lambda: self.nodes()["a"]["state"] == "lost", "a is lost")
        self.verb("stop", run)  # otherwise it would not end
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        self.far_agent("a")
        run, _sent = self.submit_far("--nodes", "2", *self.exact)
        _end, fetched = self.watch_to_the_end(run)
        self.assertLess(abs(fetched["a"] + there * MEBI - (self.size - self.labels / 2)), 1.5 * MEBI, fetched)


if __name__ == "__main__":
    unittest.main()
