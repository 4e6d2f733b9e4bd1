"""Data that stays with its owners: what is learned of it, who may learn, and that nothing else leaves."""
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import tomllib
import unittest

from programs import PROGRAMS, PoolTest, ProgramTest, finished, losses, wait_until

OWNERS = 3
SETTINGS = ("--set", "exchange.local_steps=4", "--set", "train.batch=32")


def divide(folder, environment, owners=OWNERS):
    """Divides the training data of the test by chance. Returns the files."""
    out = folder / f"owners-{owners}"
    if not out.exists():
        subprocess.run([PROGRAMS / "modelet", "data", "split", folder / "data/train.txt", out, "--owners", str(owners)],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
    files = sorted(out.glob("*.txt"))
    assert len(files) == owners, files
    return files


class Owners(ProgramTest):
    def owners(self):
        return ",".join(map(str, divide(self.folder, self.environment)))

    def test_learn_what_one_learns_from_all(self):
        alone = finished(self.train("one-owner", "--set", f"data.train={divide(self.folder, self.environment)[0]}"))
        together = finished(self.train("all-in-one"))
        for privacy in ("sums", "rows"):
            run = self.train(f"owners-{privacy}", "--owners", self.owners(), *SETTINGS, "--set", f"cluster.privacy={privacy}",
                             "--set", "train.learning_rate=2e-2")
            (started,) = run.events("started")
            self.assertEqual((started["nodes"], started["replicas"], started["validation_rows"]), (OWNERS, OWNERS, 0))
            last = finished(run)
            self.assertEqual(last["steps"], 5 * 17, "an epoch of 1600 samples in steps of 3 x 32")
            self.assertAlmostEqual(last["p_at_1"], together["p_at_1"], delta=0.05)
            self.assertGreater(last["p_at_1"], alone["p_at_1"] + 0.03)
            # It is an ordinary model.
            evaluated = self.modelet("eval", self.folder / f"owners-{privacy}", self.folder / "data/test.txt", "--json").events()[-1]
            self.assertAlmostEqual(evaluated["p_at_1"], last["p_at_1"], places=6)
        self.assert_no_pool_folders()

    def test_words_without_public_data(self):
        """Labels are listed and words are hashed; a label that is not in the list counts for its owner only."""
        folder = self.folder / "words"
        folder.mkdir()
        kinds = [(f"kind{kind}", [f"w{kind}x{word}" for word in range(4)]) for kind in range(6)]
        lines = [f"__label__{name} {' '.join(words[row % 4:] + words[:row % 4][:2])}\n" for row in range(200) for name, words in kinds]
        (folder / "names.txt").write_text("".join(f"{name}\n" for name, _ in kinds))
        (folder / "test.txt").write_text("".join(lines[::10]))
        for owner in range(OWNERS):
            (folder / f"{owner}.txt").write_text("".join(lines[owner::OWNERS]) + "__label__mine alone\n")
        self.modelet("data", "prepare", folder / "test.txt", folder / "test.mlt", "--labels", folder / "names.txt", "--set", "text.buckets=4096",
                     "--set", "data.format=text")
        run = self.train("words-owned", "--owners", ",".join(str(folder / f"{owner}.txt") for owner in range(OWNERS)), *SETTINGS,
                         "--set", f"data.test={folder / 'test.mlt'}", "--set", "train.epochs=20", "--set", "train.learning_rate=2e-2")
        self.assertGreater(finished(run)["p_at_1"], 0.9)
        asked = self.modelet("predict", self.folder / "words-owned", folder / "test.txt", "--k", "1")
        self.assertIn("kind0", asked.stdout)
        refused = self.start("modelet", "data", "prepare", folder / "test.txt", folder / "other.mlt", "--labels", folder / "names.txt", "--set",
                             "text.weight=tfidf", "--set", "data.format=text")
        self.assertEqual(refused.end(), 2, refused)
        self.assertIn("tfidf", refused.stderr)

    def test_goes_on(self):
        settings = (*SETTINGS, "--set", "train.checkpoint_every=0", "--owners", self.owners())
        whole = self.train("whole", *settings, "--set", "train.epochs=2")
        half = self.folder / "whole/checkpoints" / f"step-{17:010}"
        rest = self.train("rest", *settings, "--set", "train.epochs=2", "--resume", half)
        self.assertEqual(losses(rest), {step: loss for step, loss in losses(whole).items() if step > 17})

    def test_some_of_each_round(self):
        alone = finished(self.train("one-owner-only", "--set", f"data.train={divide(self.folder, self.environment)[0]}"))
        run = self.train("some", "--owners", self.owners(), *SETTINGS, "--set", "cluster.owners_per_round=2")
        self.assertRegex(run.stderr, "learning rate 0.0141: .* the root of 2 owners in a round")
        last = finished(run)
        self.assertEqual(last["steps"], 5 * 25, "an epoch of 1600 samples in steps of 2 x 32")
        self.assertGreater(last["p_at_1"], alone["p_at_1"] + 0.03)
        # A run goes on with its own rate, also by the file that it has recorded, in which the rate is the higher one.
        rest = self.modelet("train", self.folder / "some/experiment.toml", "--out", self.folder / "some-rest", "--json", "--owners", self.owners(),
                            "--set", "train.epochs=6", "--resume", self.folder / "some")
        self.assertEqual({round(event["learning_rate"], 5) for event in rest.events("progress")}, {0.01414})

    def test_keys_for_owners(self):
        def learned(name, owners, *more):
            files = ",".join(map(str, divide(self.folder, self.environment, owners)))
            run = self.train(name, "--owners", files, "--set", "train.epochs=1", *more)
            experiment = tomllib.loads((self.folder / name / "experiment.toml").read_text())
            return run.stderr, experiment.get("exchange", {}).get("local_steps", 16), experiment.get("optimizer", {}).get("epsilon", 1e-8)
        text, steps, epsilon = learned("few", OWNERS)
        self.assertEqual(steps, 16)
        self.assertAlmostEqual(epsilon, 1e-8, 10)
        text, steps, epsilon = learned("many", 16)
        self.assertEqual(steps, 64)
        self.assertAlmostEqual(epsilon, 1e-3)
        self.assertRegex(text, "a round after 64 steps; --set exchange.local_steps=STEPS chooses another number")
        self.assertRegex(text, "optimizer.epsilon 0.001, so that")
        _text, steps, epsilon = learned("given", 16, "--set", "exchange.local_steps=8", "--set", "optimizer.epsilon=1e-7")
        self.assertEqual(steps, 8)
        self.assertAlmostEqual(epsilon, 1e-7, 9)

    def test_noise(self):
        run = self.train("noise", "--owners", self.owners(), *SETTINGS, "--set", "cluster.noise=0.05", "--set", "cluster.clip=0.5", "--set",
                         "train.epochs=1")
        self.assertEqual({event["event"] for event in run.events() if "loss" in event}, set(), "losses tell of samples")
        self.assertIn("p_at_1", finished(run))

    def test_held_out_samples(self):
        run = self.train("held-out", "--owners", self.owners(), *SETTINGS, "--set", "data.validation=0.1")
        self.assertIn("p_at_1", finished(run)["validation"])

    def test_mistakes(self):
        train = ("modelet", "train", self.experiment, "--out", self.folder / "no", "--owners")
        files = [str(file) for file in divide(self.folder, self.environment)]
        self.assert_refused(2, "at least two files", *train, files[0])
        self.assert_refused(2, ["no.txt", "no such file"], *train, f"{files[0]},no.txt")
        self.assert_refused(2, "leave --nodes out", *train, ",".join(files), "--nodes", "2")
        self.assert_refused(2, ["model.centroids", "with private data nobody has them"], *train, ",".join(files),
                            "--set", "model.centroids=true")
        other = self.folder / "other.txt"
        other.write_text("1 401 200\n0 1:1\n")
        self.assert_refused(2, [str(other), "has 401 features and 200 labels, data.test 400 and 200"], *train, f"{files[0]},{other}")
        self.assert_refused(2, "modelet train --owners", "modelet", "train", self.experiment, "--out", self.folder / "no",
                            "--set", "data.train=private:clinic", "--set", "cluster.epoch_steps=5")
        self.assert_refused(2, "letters, digits", "modelet", "train", self.experiment, "--set", "data.train=private:a/b")


class Tap:
    """Passes TCP connections on to a port, and keeps all bytes."""

    def __init__(self, address):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = bytearray()
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for each in self._open:
            each.close()


class Wire:
    """Keeps the payload of all TCP segments on the machine's own network, a connection after the other. Needs root."""

    SO_RCVBUFFORCE = 33  # which Python does not know

    def __init__(self):
        every_protocol = 3  # ETH_P_ALL
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(every_protocol))
        self._socket.setsockopt(socket.SOL_SOCKET, self.SO_RCVBUFFORCE, 1 << 28)  # 256 MB: nothing must be lost
        self._socket.bind(("lo", every_protocol))
        self._flows = {}  # (sender, receiver) -> sequence number -> payload
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        tcp = 6
        while True:
            try:
                packet, address = self._socket.recvfrom(1 << 17)
            except OSError:
                return
            if address[2] == socket.PACKET_OUTGOING or packet[0] >> 4 != 4 or packet[9] != tcp:  # each is seen twice
                continue
            segment = packet[4 * (packet[0] & 15):int.from_bytes(packet[2:4], "big") or len(packet)]
            payload = segment[4 * (segment[12] >> 4):]
            if payload:
                self._flows.setdefault((packet[12:20], segment[:4]), {})[int.from_bytes(segment[4:8], "big")] = payload

    def close(self):
        self._socket.close()

    def everything(self):
        return b"\n".join(b"".join(payload for _, payload in sorted(flow.items())) for flow in list(self._flows.values()))


def traces_of(sample):
    """What a line of XMC text is in a machine's memory: its labels and the numbers of its features, and the features' values."""
    labels, *features = sample.split()
    ids, values = zip(*(feature.split(":") for feature in features))
    numbers = [[int(label) for label in labels.split(",")], [int(number) for number in ids]]
    traces = [struct.pack(f"<{len(row)}{size}", *row) for row in numbers if len(row) >= 4 for size in ("H", "I", "Q")]
    return [*traces, struct.pack(f"<{len(values)}f", *map(float, values)), sample.encode(), " ".join(features).encode()]


class Pool(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def setUp(self):
        super().setUp()
        self.tap = Tap(self.address)
        self.addCleanup(self.tap.close)
        self.files = divide(self.folder, self.environment)

    def owner(self, number, file=None, *arguments):
        """An agent whose private data lies where the file system says a word that must not leave."""
        secret = self.pool / f"whereabouts-{number}"
        secret.mkdir()
        data = secret / "notes.txt"
        data.write_bytes((file or self.files[number]).read_bytes())
        address, self.address = self.address, self.tap.address
        try:
            return self.agent(f"owner-{number}", "--private", f"clinic={data}", *arguments)
        finally:
            self.address = address

    def submit_private(self, *arguments):
        return self.submit("--set", "data.train=private:clinic", "--set", f"cluster.replicas={OWNERS}", "--set", "cluster.epoch_steps=17",
                           *SETTINGS, *arguments)

    def everything_outside(self):
        """All bytes that the agents and the scheduler exchanged, and all that the scheduler keeps and says."""
        text = bytes(self.tap.seen) + self.scheduler.stderr.encode() + self.scheduler.stdout.encode()
        for file in sorted((self.pool / "state").rglob("*")):
            if file.is_file():
                text += file.read_bytes()
        return text

    def assert_nothing_left(self, *words):
        outside = self.everything_outside()
        self.assertIn(b"clinic", outside, "the name is known, so the test can fail")
        for word in (b"whereabouts", b"notes.txt", *words):
            self.assertNotIn(word, outside)

    def test_nothing_else_leaves(self):
        for number in range(OWNERS):
            self.owner(number)
        self.agent("idle")  # has no such data
        self.assertEqual({name: node["private_data"] for name, node in self.nodes().items()},
                         {"idle": [], **{f"owner-{number}": ["clinic"] for number in range(OWNERS)}})
        run = self.submit_private("--set", "train.epochs=2")
        self.assert_finishes(run)
        self.assertEqual(sorted(self.runs()[run]["nodes"]), [f"owner-{number}" for number in range(OWNERS)])
        lines = [line.encode() for file in self.files for line in file.read_text().splitlines()[1:20]]
        self.assert_nothing_left(*lines)
        self.assert_no_prepared_samples(self.everything_outside())

    def assert_no_prepared_samples(self, content):
        """Nor are they there in the form in which a machine keeps them."""
        prepared = [file.read_bytes() for file in (self.folder / "cache").iterdir() if file.name.startswith("notes")]
        self.assertGreaterEqual(len(prepared), OWNERS)
        for data in prepared:
            pieces = [data[at:at + 48] for at in range(0, len(data), len(data) // 40)]
            pieces = [piece for piece in pieces if len(set(piece)) > 24]
            self.assertGreater(len(pieces), 5)
            for piece in pieces:
                self.assertNotIn(piece, content)

    def test_no_sample_is_on_the_wire_or_on_another_disk(self):
        """The pool has no keys, so the wire shows whatever agents and scheduler say, also to each other."""
        if os.geteuid() != 0:
            self.skipTest("only root may listen to the network")
        wire = Wire()
        self.addCleanup(wire.close)
        for number in range(OWNERS):
            self.owner(number)
        run = self.submit_private("--set", "train.epochs=2", "--set", "data.validation=0.1", "--set", "cluster.snapshot_every=10")
        self.assert_finishes(run)
        kept = {file: file.read_bytes() for file in sorted(self.pool.rglob("*")) if file.is_file() and file.name != "notes.txt"}
        self.assertGreater(sum(b"F32" in data for data in kept.values()), OWNERS, "there are weights on the disks, so the test can fail")
        outside = wire.everything() + b"".join(kept.values())
        self.assertGreater(len(wire.everything()), OWNERS * 20 * 4 * 400 * 16, "twenty rounds of all rows of the first layer are there, too")
        samples = [line for file in self.files for line in file.read_text().splitlines()[1:60]]
        here = b"".join(file.read_bytes() for file in (self.folder / "cache").iterdir() if file.name.startswith("notes"))
        found = 0
        for sample in samples:
            for trace in traces_of(sample):
                found += trace in here
                self.assertNotIn(trace, outside, f"a part of the sample '{sample}'")
        self.assertGreater(found, len(samples), "the machine itself has its samples in such a form, so the test can fail")

    def test_dedicated_agents_count_as_well(self):
        preferences = self.pool / "preferences.toml"
        preferences.write_text("[private]\nmost_rounds = 6\n")
        agents = [self.owner(number, None, "--preferences", preferences) for number in range(OWNERS)]
        self.assert_finishes(self.submit_private("--set", "train.epochs=1"))  # 17 steps in rounds of 4
        agents[0].kill_all()
        (known,) = self.pool.rglob("*owner-0.learned")
        self.assertRegex(known.read_text(), r"^clinic \d+ 5 ", "each round is written down before it takes place")
        self.start("modelet-agent", "--config", self.pool / "owner-0.toml", "--private", f"clinic={self.pool / 'whereabouts-0/notes.txt'}",
                   "--preferences", preferences)
        wait_until(lambda: "owner-0" in {node["name"] for node in self.present_nodes() if node["state"] == "free"}, self.nodes)
        self.assertIn("more rounds than are left: 1 of 6", self.wait_for_end(self.submit_private("--wait", "--set", "train.epochs=1"))["detail"])

    def test_an_owner_sums_with_those_it_knows(self):
        preferences = self.pool / "preferences.toml"
        preferences.write_text(f'[private]\nowners = ["{"ab" * 32}"]\n')
        for number in range(OWNERS):
            self.owner(number, None, *(("--preferences", preferences) if number == 1 else ()))
        status = self.wait_for_end(self.submit_private())
        self.assertEqual(status["state"], "failed")
        self.assertIn("this pool has no keys by which they could prove who they are; nothing was sent", status["detail"])

    def test_an_error_says_nothing_of_the_data(self):
        broken = self.pool / "broken.txt"
        broken.write_text("2 400 200\n0 3:0.5\n1 secretword:0.25\n")
        agent = self.owner(0, broken)
        for number in range(1, OWNERS):
            self.owner(number)
        run = self.submit_private()
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "failed")
        self.assertIn("private:clinic: the data that goes by this name on this node cannot be read", status["detail"])
        self.assertIn("owner-0", status["detail"])
        self.assertIn("secretword", agent.stderr, "the owner is told")
        self.assert_nothing_left(b"secretword")

    def test_too_few_owners(self):
        for number in range(OWNERS - 1):
            self.owner(number)
        self.agent("idle")
        refused = self.modelet("submit", self.experiment, "--set", "data.train=private:clinic", "--set", f"cluster.replicas={OWNERS}", "--set",
                               "cluster.epoch_steps=5", "--scheduler", self.address, code=1)
        self.assertIn("needs 3 nodes with private data 'clinic'", refused.stderr)
        run = self.submit_private("--wait", "--set", "train.epochs=1")
        self.wait_for(run, lambda status: "the pool has 2, of which 2 are free" in status["detail"], "says what it waits for")
        self.owner(OWNERS - 1)
        self.assert_finishes(run)

    def test_an_owner_that_is_killed_comes_back(self):
        agents = [self.owner(number) for number in range(OWNERS)]
        self.agent("idle")
        run = self.submit_private("--set", "train.epochs=60", "--set", "train.evaluate_every=0", "--set", "cluster.snapshot_every=40")
        self.wait_for(run, lambda status: status["stable_step"] > 0, "has a snapshot")
        agents[1].kill_all()
        self.wait_for(run, lambda status: status["state"] == "waiting", "waits: nobody else has what the owner has")
        address, self.address = self.address, self.tap.address
        self.start("modelet-agent", "--config", self.pool / "owner-1.toml", "--private", f"clinic={self.pool / 'whereabouts-1/notes.txt'}")
        self.address = address
        self.wait_for(run, lambda status: status["state"] == "running" and status["recoveries"] > 0, "goes on")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        self.assert_nothing_left()
        # What agents keep of a run, also the one that was killed: snapshots, checkpoints, logs.
        kept = b"".join(file.read_bytes() for owner in range(OWNERS) for file in sorted((self.pool / f"owner-{owner}").rglob("*")) if file.is_file())
        self.assertIn(b"F32", kept, "there are weights, so the test can fail")
        for line in [line.encode() for file in self.files for line in file.read_text().splitlines()[1:20]]:
            self.assertNotIn(line, kept)
        self.assert_no_prepared_samples(kept)

    def test_the_others_go_on_and_take_an_owner_back(self):
        preferences = self.pool / "preferences.toml"
        preferences.write_text("[private]\nleast_owners = 2\n")
        agents = [self.owner(number, None, "--preferences", preferences) for number in range(OWNERS)]
        run = self.submit_private("--set", "train.epochs=5000", "--set", "train.evaluate_every=0", "--set", "train.log_every=10", "--set",
                                  "cluster.snapshot_every=40", "--set", "cluster.least_owners=2")
        self.wait_for(run, lambda status: status["stable_step"] > 0, "has a snapshot")
        agents[1].kill_all()
        self.wait_for(run, lambda status: status["state"] == "running" and sorted(status["nodes"]) == ["owner-0", "owner-2"], "goes on")
        step = self.runs()[run]["step"]
        self.wait_for(run, lambda status: status["step"] > step + 20, "learns without the owner")
        self.start("modelet-agent", "--config", self.pool / "owner-1.toml", "--private", f"clinic={self.pool / 'whereabouts-1/notes.txt'}",
                   "--preferences", preferences)
        self.wait_for(run, lambda status: status["state"] == "running" and len(status["nodes"]) == OWNERS, "takes the owner back")
        self.assertGreaterEqual(self.runs()[run]["step"], step)
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        self.assert_nothing_left()

    def test_a_budget_of_privacy(self):
        preferences = self.pool / "preferences.toml"
        preferences.write_text("[private]\nbudget = 5\n[back_off]\ntolerated_percent = 100\nmemory_pressure_percent = 100\n"
                               "patience_seconds = 86400\n")
        environment, self.environment = self.environment, {key: value for key, value in self.environment.items() if key != "MODELET_DEDICATED"}
        self.addCleanup(setattr, self, "environment", environment)
        agents = [self.owner(number, None, "--preferences", preferences) for number in range(OWNERS)]
        refused = self.submit_private()
        self.assertIn("epsilon 5, so cluster.noise must be above 0", self.wait_for_end(refused)["detail"])
        # Five rounds with noise 2 have epsilon 4.99, a fifth is kept for a stop; so an epoch of 17 steps, five rounds, is too much.
        noise = ("--set", "cluster.noise=2", "--set", "cluster.clip=1", "--set", "train.epochs=1")
        run = self.submit_private(*noise)
        self.assertRegex(self.wait_for_end(run)["detail"], "0 is spent, and what is left is enough for 5 rounds")
        self.assert_finishes(self.submit_private(*noise, "--set", "exchange.local_steps=6"))  # rounds of 6, 6 and 5 steps

        def clinic():
            (known,) = json.loads(self.run_program("modelet-agent", "--status", "--work-dir", self.pool / "owner-0", "--name", "owner-0",
                                                   "--json").stdout)["private"]
            return known
        known = wait_until(lambda: clinic() if clinic()["rounds"] == 3 else None, clinic)
        self.assertAlmostEqual(known["epsilon"], 3.709, delta=0.01)
        self.assertAlmostEqual(known["epsilon"] + known["epsilon_left"], 5)
        wait_until(lambda: [file for file in self.pool.rglob("*owner-0.learned") if re.match(r"clinic \d+ 3 ", file.read_text())],
                   "it is written down, which may take a second")
        agents[0].kill_all()
        self.start("modelet-agent", "--config", self.pool / "owner-0.toml", "--private", f"clinic={self.pool / 'whereabouts-0/notes.txt'}",
                   "--preferences", preferences)
        wait_until(lambda: "owner-0" in {node["name"] for node in self.present_nodes() if node["state"] == "free"}, self.nodes)
        self.assertAlmostEqual(clinic()["epsilon"], 3.709, delta=0.01)
        self.assertIn("is spent, and what is left is enough for 2 rounds",
                      self.wait_for_end(self.submit_private("--wait", *noise, "--set", "exchange.local_steps=6"))["detail"])

    def test_memory_is_not_written_to_a_core_file(self):
        def dumps_core(agent):
            agent.signal(signal.SIGSEGV)
            _pid, status = os.waitpid(agent.pid, 0)
            self.assertTrue(os.WIFSIGNALED(status), status)
            return os.WCOREDUMP(status)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        if not dumps_core(self.agent("public", cwd=self.pool)):
            self.skipTest("this machine makes no core files")
        self.assertFalse(dumps_core(self.owner(0)))

    def test_the_owner_decides(self):
        preferences = self.pool / "preferences.toml"
        preferences.write_text("[private]\nleast_owners = 4\n")
        for number in range(OWNERS):
            self.owner(number, None, "--preferences", preferences)
        run = self.submit_private()
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "failed")
        self.assertIn("a sum must be of at least 4 owners, and cluster.replicas is 3", status["detail"])
        run = self.submit_private("--set", "cluster.privacy=rows")
        self.assertIn("cluster.privacy must be sums", self.wait_for_end(run)["detail"])


if __name__ == "__main__":
    unittest.main()
