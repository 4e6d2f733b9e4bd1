"""modelet serve over real sockets: its answers are those of predict; what it refuses, and with which words; newer checkpoints; its end. HTTP itself
is tested in tests/comm/http."""
import concurrent.futures
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import unittest

from programs import LABELS, LIMIT, ProgramTest, finished, is_shut, newest_checkpoint, wait_until
from text_test import EXPERIMENT, samples

JSON = {"Content-Type": "application/json"}
TOKEN = "0123456789abcdefghij"


class Serving(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = samples(60, "test")
        for name, rows in (("train", samples(400, "train")), ("test", cls.rows)):
            (cls.folder / f"{name}.csv").write_text("topic,title,body\n" + "".join(
                f"my {topic},{' '.join(words[:2])},{' '.join(words[2:])}\n" for topic, words in rows))
            (cls.folder / f"{name}.txt").write_text("".join(f"__label__{topic} {' '.join(words)}\n" for topic, words in rows))
            (cls.folder / f"{name}.table").write_text("y,n,c\n" + "".join(
                f"{int(topic == 'fruit')},{len(words[0])},{words[1]}\n" for topic, words in rows))
        cls.trained = set()

    def run_of(self, kind):
        if kind not in self.trained:
            self.trained.add(kind)
            if kind == "xmc":
                self.train(kind, "--set", "train.epochs=2")
            else:
                experiment = self.folder / f"{kind}.toml"
                text = EXPERIMENT.format(train=f"train.{kind}", test=f"test.{kind}", format={"txt": "text"}.get(kind, kind))
                if kind == "table":
                    text = text.replace("[text]", '[table]\ncolumns = ["label:y", "num:n", "cat:c"]\n\n[text]').replace(
                        "[model]", '[model]\nloss = "sigmoid"')
                experiment.write_text(text)
                finished(self.modelet("train", experiment, "--out", kind, "--json"))
        return self.folder / kind

    def serve(self, run, *arguments):
        """Starts the program, which listens at self.port."""
        endpoint = self.folder / f"{self._testMethodName}-{len(self._started)}.endpoint"
        server = self.start("modelet", "serve", run, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint, "--threads", "2", *arguments)
        def there():
            if not server.running():
                raise AssertionError(server)
            return endpoint.exists()
        wait_until(there, lambda: f"listens: {server}")
        self.port = int(endpoint.read_text().rsplit(":", 1)[1])
        return server

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method, path, body=None, headers=None, connection=None):
        """(status, answer as JSON or text)"""
        connection = connection or self.connect()
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method, path, body, (JSON if headers is None else headers) if body is not None else headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def predict(self, body, **options):
        status, answer = self.ask("POST", "/v1/predict", body, **options)
        self.assertEqual(status, 200, answer)
        return answer

    def assert_error(self, status, text, *arguments, **options):
        found, answer = self.ask(*arguments, **options)
        self.assertEqual((found, list(answer)), (status, ["error"]), answer)
        self.assertIn(text, answer["error"])

    def raw(self, data):
        """Sends bytes on a connection of their own, and returns the connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), LIMIT)
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    @staticmethod
    def all_of(connection):
        return b"".join(iter(lambda: connection.recv(65536), b""))

    def assert_same_answers(self, got, expected):
        self.assertEqual(len(got), len(expected))
        for one, two in zip(got, expected):
            for label, other in zip(one["labels"], two["labels"]):
                self.assertEqual((label["label"], label.get("name")), (other["label"], other.get("name")))
                self.assertAlmostEqual(label["score"], other["score"], places=3)
                self.assertAlmostEqual(label["probability"], other["probability"], places=3)

    def test_answers_are_those_of_predict(self):
        requests = {"txt": lambda line: {"text": line.split(" ", 1)[1]},
                     "csv": lambda line: {"fields": dict(zip(("title", "body"), line.split(",")[1:]))},
                     "table": lambda line: {"fields": {"n": float(line.split(",")[1]), "c": line.split(",")[2]}},
                     "xmc": lambda line: {"features": line.split(" ", 1)[1]}}
        for kind, request in requests.items():
            with self.subTest(kind=kind):
                run = self.run_of(kind)
                test = self.folder / ("data/test.txt" if kind == "xmc" else f"test.{kind}")
                k = 1 if kind == "table" else 3
                expected = self.modelet("predict", run, test, "--json", "--proba", "--k", k, "--limit", "60").events()
                lines = test.read_text().splitlines()[0 if kind == "txt" else 1:][:60]
                asked = [request(line) for line in lines]
                server = self.serve(run)
                got = self.predict({"samples": asked, "k": k})
                self.assert_same_answers(got["predictions"], expected)
                connection = self.connect()
                self.assert_same_answers([self.predict({**one, "k": k}, connection=connection) for one in asked[:5]], expected[:5])
                server.signal(signal.SIGTERM)
                self.assertEqual(server.end(), 0, server)

    def test_among_threshold_and_explain(self):
        run = self.run_of("txt")
        subset = self.folder / "subset.txt"
        subset.write_text("fruit\ntools\n")
        self.serve(run, "--subset", f"grown={subset}", "--examples", "2")
        question = {"text": "baltic black dead", "k": 3}
        best = self.predict(question)["labels"]
        self.assertEqual(best[0]["name"], "seas")
        others = best[1:]
        for among in ("grown", ["tools", "fruit"], [label["label"] for label in others]):
            self.assertEqual([label["name"] for label in self.predict({**question, "among": among})["labels"]], [label["name"] for label in others])
        self.assertEqual(self.predict({**question, "threshold": best[0]["probability"]})["labels"], best[:1])
        self.assertEqual(self.predict({**question, "threshold": 2})["labels"], [])
        for label in self.predict({**question, "explain": 2})["labels"]:
            why = label["because"]
            self.assertAlmostEqual(sum(each["share"] for each in why["features"]) + why["other_features"] + why["rest"], label["score"], places=4)
            examples = [(self.folder / "train.txt").read_text().splitlines()[each["sample"]] for each in why["examples"]]
            self.assertTrue(len(examples) == 2 or label["name"] != "seas", label)
            self.assertTrue(all(line.startswith(f"__label__{label['name']} ") for line in examples), examples)
        for text, wish in (("no set 'sold'", {"among": "sold"}), ("not among the names", {"among": ["fish"]}), ("there is no label 99", {"among": [99]}),
                           ("a list of labels", {"among": []}), ("names of labels", {"among": [1.5]}), ("a number", {"threshold": "high"}),
                           ("1 to 100", {"explain": 0})):
            self.assert_error(400, text, "POST", "/v1/predict", {**question, **wish})

    def test_the_next_word(self):
        (self.folder / "rhyme.txt").write_text("one two three four five\nsix seven eight nine ten\n" * 100)
        finished(self.modelet("train", "rhyme.txt", "rhyme.txt", "--out", "next", "--json", *[argument for setting in (
            "data.format=words", "words.task=next", "words.min_count=1", "words.subsample=0", "model.hidden=[32]", "sampling.mode=full",
            "train.epochs=30", "train.batch=32", "train.learning_rate=0.02") for argument in ("--set", setting)]))
        self.serve(self.folder / "next")
        for text, word in (("one two", "three"), ("six\nseven eight", "nine"), ("unknown four", "five")):
            self.assertEqual(self.predict({"text": text})["labels"][0]["name"], word)

    def test_names_features_and_sparse(self):
        run = self.run_of("xmc")
        names = self.folder / "names.txt"
        names.write_text("".join(f"a name \"{i}\" <ä>\n" for i in range(LABELS)))
        self.serve(run, "--labels", names, "--sparse", "--most-samples", "3", "--most-labels", "7")
        dense = self.predict({"features": "0:1.5 3:2", "sparse": False})
        self.assertEqual(dense["labels"][0]["name"], f"a name \"{dense['labels'][0]['label']}\" <ä>")
        self.assertEqual(len(dense["labels"]), 5)
        for same in ({"ids": [3, 0], "values": [2, 1.5]}, "3:2 0:1.5", "7,9 0:1.5 3:2", {"ids": [0, 3, 0], "values": [1, 2, 0.5]}):
            self.assertEqual(self.predict({"features": same, "sparse": False}), dense)
        self.assertEqual(self.predict({"features": {"ids": [0]}, "sparse": False}), self.predict({"features": "0:1", "sparse": False}))
        self.assertEqual(self.predict({"features": "0:1.5 3:2"})["labels"][0]["label"], dense["labels"][0]["label"])
        self.assertEqual(len(self.predict({"features": "", "k": 7})["labels"]), 7)
        for text, body in (("samples: 4 samples", {"samples": [{"features": ""}] * 4}), ("k: 8 labels", {"features": "", "k": 8}),
                           ("k: 0 labels", {"features": "", "k": 0}), ("'k'", {"features": "", "k": -1}),
                           ("there is no key 'feature'", {"feature": ""}), ("'text', 'fields' and 'features'", {}),
                           ("does not read text", {"text": "words"}), ("does not read columns", {"fields": {"a": 1}}),
                           ("feature id 400 is not below 400, the number of features of the model", {"samples": [{"features": "1:1"}, {"features": "400:1"}]}),
                           ("FEATURE:VALUE", {"features": "1:x"}), ("features.values", {"features": {"ids": [1], "values": []}}),
                           ("features.ids", {"features": {"ids": [-1]}}), ("belongs into an entry", {"samples": [{"features": ""}], "text": ""}),
                           ("samples[0]", {"samples": [7]}), ("JSON object", []), ("sparse", {"features": "", "sparse": 1}),
                           ("there is 'text' already", {"features": "", "text": ""}), ("nested", {"samples": [[[[[[[[]]]]]]]]})):
            with self.subTest(body=body):
                self.assert_error(400, text, "POST", "/v1/predict", body)
        self.assert_error(400, "twice", "POST", "/v1/predict", '{"k": 1, "k": 2}')
        self.assert_error(400, "not valid JSON", "POST", "/v1/predict", '{"text": ')
        self.assert_error(400, "not valid JSON", "POST", "/v1/predict", b'{"text": "\xff"}')

    def test_data_of_the_run_that_is_no_file(self):
        """A run need not have data, but then its experiment names /dev/null."""
        test = self.folder / "removed.txt"
        shutil.copy(self.folder / "data/test.txt", test)
        self.train("without-data", "--set", "train.epochs=1", "--set", f"data.test={test}")
        test.unlink()
        test.symlink_to("/dev/null")
        run = self.folder / "without-data"
        self.assert_refused(2, "give --queries FILE", "modelet", "serve", run, "--sparse")
        self.assert_refused(2, "give --calibrate FILE", "modelet", "predict", run, "data/test.txt", "--proba")
        self.assertIn("give --calibrate FILE", self.serve(run).stderr)
        test.unlink()
        test.symlink_to(test)  # where nobody can look, as in a folder of another user
        self.assertIn("give --calibrate FILE", self.serve(run).stderr)

    def test_missing_names_of_the_experiment(self):
        names = self.folder / "names-of-run.txt"
        names.write_text("".join(f"label {i}\n" for i in range(LABELS)))
        self.train("named", "--set", "train.epochs=1", "--set", f"data.labels={names}")
        names.unlink()
        (self.folder / "named/labels.txt").unlink()
        server = self.serve(self.folder / "named")
        self.assertNotIn("name", self.predict({"features": ""})["labels"][0])
        self.assertIn("names-of-run.txt: no such file", server.stderr)
        names.symlink_to(names)  # where nobody can look, as in a folder of another user
        self.assertIn("names-of-run.txt: no such file", self.serve(self.folder / "named").stderr)

    def test_what_is_refused(self):
        """The limits of the server are those of its options. tests/comm/http has the others."""
        server = self.serve(self.run_of("txt"), "--body-bytes", "2000", "--header-bytes", "1100", "--read-seconds", "0.5", "--host", "models.example")
        self.assert_error(404, "/v1/predict", "GET", "/v2/predict")
        self.assert_error(405, "for POST", "GET", "/v1/predict")
        self.assert_error(415, "application/json", "POST", "/v1/predict", {"text": "a"}, headers={"Content-Type": "text/plain"})
        self.assert_error(413, "2000 bytes", "POST", "/v1/predict", {"text": "a" * 3000})
        self.assert_error(431, "1100 bytes", "GET", "/healthz", headers={"X": "a" * 5000})
        self.assert_error(421, "--host", "GET", "/healthz", headers={"Host": "evil.example"})
        self.assertEqual(self.ask("GET", "/healthz", headers={"Host": "models.example"})[0], 200)
        self.assertIn(b" 408 ", self.all_of(self.raw(b"POST /v1/predict HTTP/1.1\r\n")))
        self.assert_error(400, "does not read columns", "POST", "/v1/predict", {"fields": {"a": 1}})
        self.assertTrue(server.running())

    def test_connections(self):
        self.serve(self.run_of("txt"), "--connections", "4", "--connections-per-address", "2", "--idle-seconds", "1000")
        connections = [self.connect() for _ in range(3)]
        for connection in connections:
            self.assertEqual(self.ask("GET", "/healthz", connection=connection)[0], 200)
        # Not always the first one: the server may not have noticed yet that it waits again.
        wait_until(lambda: any(is_shut(connection.sock) for connection in connections[:2]), "one gives way to another of its address")
        self.assertFalse(is_shut(connections[2].sock))

    def test_scores_that_are_no_numbers_are_no_answer(self):
        self.train("large", "--set", "train.epochs=1", "--set", "data.normalize=none")
        server = self.serve(self.folder / "large")
        for value in ("3e38", "-3e38"):
            features = " ".join(f"{feature}:{value}" for feature in range(100))
            self.assert_error(400, "scores are no numbers", "POST", "/v1/predict", {"features": features})
        self.assertEqual(len(self.predict({"features": "0:0.5 1:1"})["labels"]), 5)
        self.assertTrue(server.running())

    def test_the_model_and_what_was_counted(self):
        run = self.run_of("txt")
        self.serve(run)
        _, model = self.ask("GET", "/v1/model")
        self.assertEqual((model["format"], model["labels"], model["checkpoint"]), ("text", 3, str(newest_checkpoint(run))))
        self.assertEqual(self.ask("GET", "/healthz"), (200, {"status": "ok"}))
        self.assertEqual(self.ask("GET", "/readyz"), (200, {"status": "ok"}))
        self.predict({"samples": [{"text": "apple"}, {"text": "saw\nhammer"}]})
        self.assert_error(400, "a string", "POST", "/v1/predict", {"text": 1})
        _, text = self.ask("GET", "/metrics")
        metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        self.assertEqual(metrics['modelet_requests_total{path="/v1/predict",code="200"}'], "1")
        self.assertEqual(metrics['modelet_requests_total{path="/v1/predict",code="400"}'], "1")
        self.assertEqual(metrics["modelet_samples_total"], "2")
        self.assertEqual(metrics['modelet_predict_seconds_bucket{le="+Inf"}'], "2")
        self.assertEqual(metrics["modelet_model_step"], str(model["step"]))
        for name in {line.split("{")[0].split(" ")[0] for line in metrics}:
            self.assertIn(f"# TYPE {re.sub('_(bucket|sum|count)$', '', name)} ", text)

    def test_description(self):
        """The description is valid OpenAPI 3 and complete."""
        self.serve(self.run_of("txt"))
        status, description = self.ask("GET", "/openapi.json")
        self.assertEqual(status, 200)
        self.assertRegex(description["openapi"], r"^3\.0\.\d$")
        self.assertTrue(description["info"]["title"] and description["info"]["version"])
        self.assertEqual(set(description["paths"]), {"/v1/predict", "/v1/model", "/healthz", "/readyz", "/metrics", "/openapi.json"})

        def walk(value):
            if isinstance(value, dict):
                if "nullable" in value:
                    self.assertIsInstance(value.get("type"), str, f"without a type, nullable means nothing: {value}")
                if "$ref" in value:
                    place = description
                    for part in value["$ref"].removeprefix("#/").split("/"):
                        place = place[part]  # KeyError: it leads nowhere
                for inner in value.values():
                    walk(inner)
            elif isinstance(value, list):
                for inner in value:
                    walk(inner)
        walk(description)
        names = []
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                names.append(operation["operationId"])
                for code, answer in operation["responses"].items():
                    self.assertRegex(code, r"^[1-5]\d\d$")
                    self.assertTrue("$ref" in answer or answer["description"])
                if method == "get":
                    self.assertEqual(self.ask("GET", path)[0], 200, path)
        self.assertEqual(len(set(names)), len(names))
        described = description["components"]["schemas"]["Label"]["properties"]
        (label, *_) = self.predict({"text": "apple", "explain": 1})["labels"]
        self.assertEqual(set(label), set(described))
        self.assertEqual(set(self.ask("GET", "/v1/model")[1]), set(description["components"]["schemas"]["Model"]["properties"]))

    def test_token(self):
        run = self.run_of("txt")
        token = self.folder / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o644)
        self.assert_refused(2, "chmod 600", "modelet", "serve", run, "--token-file", token)
        token.chmod(0o600)
        for address in ("0.0.0.0:0", "[::]:0"):
            self.assert_refused(2, "--token-file", "modelet", "serve", run, "--listen", address)
        self.assert_refused(2, "ADDRESS:PORT", "modelet", "serve", run, "--listen", "8080")
        self.serve(run, "--token-file", token)
        bearer = {"Authorization": f"Bearer {TOKEN}", **JSON}
        self.assertEqual(self.ask("POST", "/v1/predict", {"text": "apple"}, headers=bearer)[0], 200)
        for path in ("/metrics", "/v1/model", "/openapi.json", "/nowhere"):
            self.assert_error(401, "Authorization", "GET", path)
        self.assertEqual(self.ask("GET", "/healthz")[0], 200)
        (scheme,) = self.ask("GET", "/openapi.json", headers=bearer)[1]["components"]["securitySchemes"].values()
        self.assertEqual(scheme, {"type": "http", "scheme": "bearer"})

    def test_newer_checkpoints(self):
        """Clients do not notice that another model takes over, or that one cannot be loaded."""
        run = self.folder / "grows"
        experiment = ("--set", "train.evaluate_every=0", "--set", "train.keep_checkpoints=9")
        self.train("grows", "--set", "train.epochs=1", *experiment)
        server = self.serve(run, "--reload-seconds", "0", "--no-probabilities")
        steps, stop = set(), False

        def ask_on():
            connection, done = self.connect(), 0
            while not stop:
                steps.add(self.predict({"features": "1:1 2:1"}, connection=connection)["step"])
                done += 1
            return done

        def counted(name):
            return int(re.search(rf"^{name} (\d+)$", self.ask("GET", "/metrics")[1], re.MULTILINE).group(1))

        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            asking = [threads.submit(ask_on) for _ in range(3)]
            try:
                wait_until(lambda: steps, "an answer")
                self.train("grows", "--set", "train.epochs=2", *experiment, "--resume", run)
                server.signal(signal.SIGHUP)
                wait_until(lambda: len(steps) == 2, lambda: f"another model: {server}")
                # A damaged checkpoint is logged, and the old model stays.
                newest = newest_checkpoint(run)
                damaged = newest.parent / "step-0000009999"
                shutil.copytree(newest, newest.parent / "copied")
                (newest.parent / "copied" / "index.json").write_text("{")
                os.rename(newest.parent / "copied", damaged)
                server.signal(signal.SIGHUP)
                wait_until(lambda: counted("modelet_reloads_failed_total") >= 1, "it is noticed")
                before = set(steps)
                self.predict({"features": ""})
                self.assertIn("served on", server.stderr)
            finally:
                stop = True
            self.assertTrue(all(thread.result(LIMIT) > 0 for thread in asking))
        self.assertEqual(steps, before)
        self.assertEqual(counted("modelet_reloads_total"), 1)

    def change(self, what, body, **fields):
        return self.ask("POST", f"/v1/labels/{what}", body, headers={**JSON, "X-Modelet-Action": "yes", **fields})

    def test_labels_change_while_it_answers(self):
        run = self.folder / "changing"
        shutil.copytree(self.run_of("txt"), run)
        self.serve(run, "--reload-seconds", "0", "--no-probabilities", "--change-labels")
        text = "gravel concrete mortar"
        steps, stop = set(), False

        def ask_on():
            connection = self.connect()
            while not stop:
                steps.add(self.predict({"text": text}, connection=connection)["step"])

        def names():
            return [label["name"] for label in self.predict({"text": text, "k": 9})["labels"]]

        def step_of(what, body):
            status, answer = self.change(what, body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(self.predict({"text": text})["step"], answer["step"])  # at once
            return answer

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            asking = threads.submit(ask_on)
            try:
                answer = step_of("add", {"samples": "__label__building hammer saw file\n" * 3 + "__label__building saw pliers\n"})
                self.assert_documented([{key: value for key, value in answer.items() if key != "step"}], {"labels"})
                self.assertEqual((answer["what"], answer["changed"], answer["labels"], answer["samples"]), ("added", 1, 4, 4))
                self.assertGreater(answer["background"], 0)
                self.assertIn("building", names())
                step_of("learn", {"samples": f"__label__building {text}\n__label__building hammer saw file\n"})
                step_of("rename", {"label": "building", "to": "houses"})
                self.assertIn("houses", names())
                step_of("remove", {"labels": ["houses"]})
                self.assertEqual(len(names()), 3)
                # Nothing has changed after these.
                for what, body, error in (
                        ("learn", {"samples": "__label__houses hammer\n"}, "samples: has samples of the label 'houses', which was removed"),
                        ("learn", {"samples": "__label__boats hammer\n"}, "samples: has no label that the model"),
                        ("add", {"samples": "__label__fruit apple\n"}, "samples: has no label that the model"),
                        ("add", {"samples": 7}, "text as that of the training data is expected"), ("add", {}, "'samples' is missing"),
                        ("add", {"samples": "", "fitt": True}, "there is no key 'fitt'"), ("add", {"samples": "", "fit": 1}, "true or false"),
                        ("remove", {"labels": ["houses"]}, "was removed already"), ("remove", {"labels": ["boats"]}, "'boats'"),
                        ("remove", {"labels": []}, "a list of labels"), ("rename", {"label": "boats", "to": "ships"}, "'boats'"),
                        ("rename", {"label": "fruit", "to": "tools"}, "another label has the name"), ("rename", [], "a JSON object")):
                    status, answer = self.change(what, body)
                    self.assertEqual(status, 400, answer)
                    self.assertIn(error, answer["error"])
            finally:
                stop = True
            asking.result(LIMIT)
        self.assertEqual(len({*steps, self.predict({"text": text})["step"]}), 5)
        self.assertEqual(self.change("add", {}, **{"X-Modelet-Action": ""})[0], 403)
        _, description = self.ask("GET", "/openapi.json")
        self.assertLess({f"/v1/labels/{what}" for what in ("add", "learn", "remove", "rename")}, set(description["paths"]))

    def test_labels_of_a_table_change(self):
        rows = [json.dumps({"title": f"a {color} {kind}", "price": price, "product": f"{color} {kind}"})
                for color in ("red", "blue") for kind, price in (("lamp", 3), ("chair", 20)) for _ in range(20)]
        (self.folder / "products.jsonl").write_text("\n".join(rows))
        self.modelet("train", "products.jsonl", "products.jsonl", "--target", "product", "--out", "products", "--json", "--set", "train.epochs=20")
        self.serve(self.folder / "products", "--change-labels", "--no-probabilities")
        asked = {"fields": {"title": "a red blue lamp chair", "price": 3}, "k": 1}
        status, answer = self.change("add", {"samples": [{"title": "a blue red chair lamp", "price": 3, "product": "puzzle"}] * 3})
        self.assertEqual((status, answer["changed"]), (200, 1), answer)
        self.assertEqual(self.predict(asked)["labels"][0]["name"], "puzzle")
        status, answer = self.change("add", {"samples": [{"title": "a", "price": "dear", "product": "new"}]})
        self.assertEqual((status, answer["error"][:27]), (400, "samples:1: column 'price': "), answer)

    def test_labels_stay_without_leave(self):
        run = self.run_of("txt")
        self.serve(run)
        self.assertEqual(self.change("remove", {"labels": ["fruit"]})[0], 404)
        token = self.folder / "labels-token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        self.serve(run, "--change-labels", "--token-file", token)
        self.assertEqual(self.change("remove", {"labels": ["fruit"]})[0], 401)
        self.assert_refused(2, "outside of a run", "modelet", "serve", shutil.copytree(newest_checkpoint(run), self.folder / "alone"),
                            "--change-labels")

    def test_polls_for_newer_checkpoints(self):
        run = self.folder / "polled"
        experiment = ("--set", "train.evaluate_every=0")
        self.train("polled", "--set", "train.epochs=1", *experiment)
        self.serve(run, "--reload-seconds", "0.05", "--no-probabilities")
        first = self.predict({"features": ""})["step"]
        self.train("polled", "--set", "train.epochs=2", *experiment, "--resume", run)
        wait_until(lambda: self.predict({"features": ""})["step"] > first, "another model")

    def test_an_orderly_end(self):
        """A request that has begun is answered."""
        server = self.serve(self.run_of("txt"), "--grace-seconds", "60")
        begun = self.begin_request()
        server.signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in server.stderr, "it shuts down")
        begun.sendall(b'{"text":"apple"}')
        self.assertIn(b" 200 ", self.all_of(begun))
        self.assertEqual(server.end(), 0, server)

    def test_an_end_while_a_model_is_loaded(self):
        """It need not wait for the disk, from which a newer checkpoint and its data are read."""
        run, experiment = self.folder / "loading", ("--set", "train.evaluate_every=0")
        self.train("loading", "--set", "train.epochs=1", *experiment)
        calibrated = self.folder / "calibrated.txt"
        shutil.copy(self.folder / "data/test.txt", calibrated)
        server = self.serve(run, "--reload-seconds", "0", "--calibrate", calibrated)
        self.train("loading", "--set", "train.epochs=2", *experiment, "--resume", run)
        with open(calibrated, "r+b") as held:
            # Who opens the file waits until this lease is given back, or for /proc/sys/fs/lease-break-time, 45 s.
            fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)  # the signal that somebody waits; by default it is ignored
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            server.signal(signal.SIGHUP)
            wait_until(lambda: f"loading {run}" in server.stderr, "it loads")
            server.signal(signal.SIGTERM)
            self.assertEqual(server.end(20), 0, server)
        self.assertIn("ended", server.stderr)

    def begin_request(self):
        """Begins a request: the server has read its header, and the body does not come."""
        connection = self.raw(b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 16\r\nExpect: 100-continue\r\n\r\n")
        self.assertIn(b"100 Continue", connection.recv(100))
        return connection

    def test_the_end_of_patience(self):
        server = self.serve(self.run_of("txt"), "--grace-seconds", "0.1", "--read-seconds", "1000")
        stuck = self.begin_request()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 1, server)
        self.assertIn("--grace-seconds", server.stderr)
        self.assertEqual(stuck.recv(10), b"")
        server = self.serve(self.run_of("txt"), "--grace-seconds", "1000", "--read-seconds", "1000")
        self.begin_request()
        server.signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in server.stderr, "it shuts down")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), -signal.SIGTERM, server)

    def test_addresses_that_are_taken(self):
        run = self.run_of("txt")
        self.serve(run)
        self.assert_refused(1, "cannot listen there", "modelet", "serve", run, "--listen", f"127.0.0.1:{self.port}")


if __name__ == "__main__":
    unittest.main()
