"""modelet serve over real sockets: its answers are those of predict; what it refuses, and with which words; newer checkpoints; its end."""
import concurrent.futures
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import time
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
        questions = {"txt": lambda line: {"text": line.split(" ", 1)[1]},
                     "csv": lambda line: {"fields": dict(zip(("title", "body"), line.split(",")[1:]))},
                     "table": lambda line: {"fields": {"n": float(line.split(",")[1]), "c": line.split(",")[2]}},
                     "xmc": lambda line: {"features": line.split(" ", 1)[1]}}
        for kind, question in questions.items():
            with self.subTest(kind=kind):
                run = self.run_of(kind)
                test = self.folder / ("data/test.txt" if kind == "xmc" else f"test.{kind}")
                k = 1 if kind == "table" else 3
                expected = self.modelet("predict", run, test, "--json", "--proba", "--k", k, "--limit", "60").events()
                lines = test.read_text().splitlines()[0 if kind == "txt" else 1:][:60]
                asked = [question(line) for line in lines]
                server = self.serve(run)
                got = self.predict({"samples": asked, "k": k})
                self.assert_same_answers(got["predictions"], expected)
                connection = self.connect()
                self.assert_same_answers([self.predict({**one, "k": k}, connection=connection) for one in asked[:5]], expected[:5])
                server.signal(signal.SIGTERM)
                self.assertEqual(server.end(), 0, server)

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
        server = self.serve(self.run_of("txt"), "--body-bytes", "2000", "--header-bytes", "1100")
        self.assert_error(404, "/v1/predict", "GET", "/v2/predict")
        self.assert_error(405, "for POST", "GET", "/v1/predict")
        for path in ("/healthz", "/readyz", "/metrics", "/v1/model"):
            connection = self.connect()
            lengths = []
            for method in ("HEAD", "GET"):
                connection.request(method, path)
                answer = connection.getresponse()
                lengths.append((int(answer.headers["Content-Length"]) > 0, len(answer.read()) > 0))
                self.assertEqual(answer.status, 200, path)
            self.assertEqual(lengths, [(True, False), (True, True)])
        for method, path, allowed in (("POST", "/healthz", "GET, HEAD"), ("HEAD", "/v1/predict", "POST")):
            connection = self.connect()
            connection.request(method, path)
            answer = connection.getresponse()
            self.assertEqual((answer.status, answer.headers["Allow"]), (405, allowed))
        self.assert_error(415, "application/json", "POST", "/v1/predict", {"text": "a"}, headers={"Content-Type": "text/plain"})
        self.assert_error(413, "2000 bytes", "POST", "/v1/predict", {"text": "a" * 3000})
        self.assert_error(431, "1100 bytes", "GET", "/healthz", headers={"X": "a" * 5000})
        self.assert_error(400, "does not read columns", "POST", "/v1/predict", {"fields": {"a": 1}})
        # Bytes that are not HTTP get an answer; then the connection ends.
        self.assertIn(b" 400 ", self.all_of(self.raw(b"words, words\r\n\r\n")))
        # Chunks that are too many; and a question in chunks that is not.
        chunked = b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertIn(b" 413 ", self.all_of(self.raw(chunked + b"bb8\r\n" + b" " * 3000 + b"\r\n0\r\n\r\n")))
        self.assertIn(b" 200 ", self.all_of(self.raw(chunked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") +
                                                     b"8\r\n{\"text\":\r\n7\r\n\"apple\"\r\n1\r\n}\r\n0\r\n\r\n")))
        # Several questions at once are answered in their order.
        one = b"GET /healthz HTTP/1.1\r\n\r\n"
        pipelined = self.all_of(self.raw(one * 3 + one.replace(b"/healthz", b"/nowhere").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", pipelined), [b"200"] * 3 + [b"404"])
        self.assertTrue(server.running())

    def test_a_question_that_does_not_end_is_answered(self):
        server = self.serve(self.run_of("txt"), "--read-seconds", "0.5")
        answer = self.all_of(self.raw(b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"))
        self.assertIn(b" 408 ", answer)
        self.assertIn(b"--read-seconds", answer)
        self.assertTrue(server.running())

    def test_a_question_of_many_parts_has_the_same_time(self):
        """The next part is always there when the time is over."""
        self.serve(self.run_of("txt"), "--read-seconds", "0.5", "--body-bytes", "1000000000")
        connection = self.raw(b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n")
        part = b" " * 16384
        try:
            for _ in range(20000):  # for more than twenty seconds
                connection.sendall(part)
                time.sleep(0.001)
        except ConnectionError:
            return
        self.fail("the question was read for more than twenty seconds")

    def test_scores_that_are_no_numbers_are_no_answer(self):
        self.train("large", "--set", "train.epochs=1", "--set", "data.normalize=none")
        server = self.serve(self.folder / "large")
        for value in ("3e38", "-3e38"):
            features = " ".join(f"{feature}:{value}" for feature in range(100))
            self.assert_error(400, "scores are no numbers", "POST", "/v1/predict", {"features": features})
        self.assertEqual(len(self.predict({"features": "0:0.5 1:1"})["labels"]), 5)
        self.assertTrue(server.running())

    def test_short_questions_do_not_wait_for_long_ones(self):
        """Both threads make predictions when a third question is answered."""
        self.serve(self.run_of("txt"), "--no-probabilities")
        long = json.dumps({"samples": [{"text": "apple plum pear saw file " * 100}] * 1000})

        def answered_meanwhile():
            predicting = [self.connect() for _ in range(2)]
            for connection in predicting:
                connection.request("POST", "/v1/predict", long, JSON)
            asking = self.connect()
            found = any("modelet_requests_in_flight 3" in self.ask("GET", "/metrics", connection=asking)[1] for _ in range(50))
            for connection in predicting:
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.status, 200)
            return found
        wait_until(answered_meanwhile, "a third question is answered")

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
        (label, *_) = self.predict({"text": "apple"})["labels"]
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
        for scheme in ("bearer", "BEARER"):  # RFC 9110: case does not matter
            self.assertEqual(self.ask("GET", "/v1/model", headers={"Authorization": f"{scheme} {TOKEN}"})[0], 200)
        self.assert_error(401, "Authorization", "GET", "/v1/model", headers={"Authorization": f"Basic {TOKEN}"})
        for wrong in (TOKEN[:-1], TOKEN[:-1] + "x", TOKEN + "x", ""):
            self.assert_error(401, "Authorization", "POST", "/v1/predict", {"text": "apple"}, headers={"Authorization": f"Bearer {wrong}", **JSON})
        for path in ("/metrics", "/v1/model", "/openapi.json", "/nowhere"):
            self.assert_error(401, "Authorization", "GET", path)
        self.assertEqual(self.ask("GET", "/healthz")[0], 200)
        (scheme,) = self.ask("GET", "/openapi.json", headers=bearer)[1]["components"]["securitySchemes"].values()
        self.assertEqual(scheme, {"type": "http", "scheme": "bearer"})

    def from_address(self, address, data=b""):
        connection = socket.create_connection(("127.0.0.1", self.port), LIMIT, source_address=(address, 0))
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    def test_connections(self):
        """The one that has waited longest gives way: of the address that has its share, or of the one that has the most."""
        server = self.serve(self.run_of("txt"), "--connections", "6", "--connections-per-address", "4")
        health = b"GET /healthz HTTP/1.1\r\n\r\n"
        def answered(address):
            connection = self.from_address(address, health)
            self.assertIn(b" 200 ", connection.recv(65536))
            return connection
        def closed(connections):
            return [connection for connection in connections if is_shut(connection)]
        one = [answered("127.0.0.1") for _ in range(4)]
        self.assertEqual(closed(one), [])
        one.append(self.from_address("127.0.0.1", health[:9]))  # a question that does not end is no better than none
        wait_until(lambda: len(closed(one)) == 1, "one gives way to another of its address")
        others = [answered(f"127.0.0.{other}") for other in (2, 3, 4)]
        wait_until(lambda: len(closed(one)) == 2, "one gives way to another address")
        self.assertEqual(closed(others), [])
        others = [answered(f"127.0.0.{other}") for other in (5, 6, 7, 8)]
        wait_until(lambda: len(closed(one)) >= 4, "each has no more than others")
        self.assertEqual(self.ask("GET", "/healthz")[0], 200)
        self.assertTrue(server.running())

    def test_connections_on_which_questions_are_answered(self):
        """They do not give way."""
        self.serve(self.run_of("txt"), "--connections", "2", "--connections-per-address", "2", "--no-probabilities")
        long = json.dumps({"samples": [{"text": "apple plum pear saw file " * 400}] * 1000}).encode()
        question = b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(long)
        for _ in range(20):  # until both were still being answered
            asking = [self.raw(question + long + (question + long)) for _ in range(2)]
            time.sleep(0.2)
            answer = self.from_address("127.0.0.1", b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
            text = self.all_of(answer)
            for connection in asking:
                connection.close()
            if b" 503 " in text:
                self.assertIn(b"--connections-per-address", text)
                return
        self.fail("no connection was refused")

    def test_names_of_the_machine(self):
        """A page of another site must not ask, although its name leads to this address by now."""
        server = self.serve(self.run_of("txt"), "--host", "models.example")
        def status(host, *more):
            lines = "".join(f"{line}\r\n" for line in ("GET /v1/model HTTP/1.1", *([f"Host: {host}"] if host is not None else []), *more, "Connection: close"))
            return int(self.all_of(self.raw(f"{lines}\r\n".encode())).split()[1])
        for host in ("localhost", "LocalHost:80", f"127.0.0.1:{self.port}", "127.9.9.9", "[::1]", "[::1]:8080", "models.example:1", None):
            self.assertEqual(status(host), 200, host)
        for host in ("evil.example", f"evil.example:{self.port}", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", "", "[::]", "[",
                     "::1", "other.models.example"):
            self.assertEqual(status(host), 421, host)
        self.assertEqual(status("localhost", "Host: evil.example"), 400)
        self.assert_error(421, "--host", "POST", "/v1/predict", {"text": "apple"}, headers={**JSON, "Host": "evil.example"})
        self.assertTrue(server.running())

    def test_transfer_codings(self):
        """What one program takes for a body, the next must not take for a question."""
        self.serve(self.run_of("txt"))
        hidden = b"GET /v1/model HTTP/1.1\r\n\r\n"
        for lines in (b"Transfer-Encoding: identity\r\nContent-Length: %d", b"Transfer-Encoding: xchunked\r\nContent-Length: %d",
                      b"Content-Length: %d\r\nTransfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked\r\nContent-Length: %d",
                      b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nX: %d", b"Transfer-Encoding: gzip\r\nX: %d",
                      b"Transfer-Encoding: \r\nContent-Length: %d", b"Content-Length: 3\r\nContent-Length: %d"):
            for path in (b"POST /v1/predict", b"GET /healthz"):
                request = path + b" HTTP/1.1\r\nContent-Type: application/json\r\n" + lines % len(hidden) + b"\r\n\r\n"
                answers = re.findall(rb"HTTP/1.1 (\d+)", self.all_of(self.raw(request + hidden)))
                self.assertEqual(answers, [b"400"], request)

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

    def test_polls_for_newer_checkpoints(self):
        run = self.folder / "polled"
        experiment = ("--set", "train.evaluate_every=0")
        self.train("polled", "--set", "train.epochs=1", *experiment)
        self.serve(run, "--reload-seconds", "0.05", "--no-probabilities")
        first = self.predict({"features": ""})["step"]
        self.train("polled", "--set", "train.epochs=2", *experiment, "--resume", run)
        wait_until(lambda: self.predict({"features": ""})["step"] > first, "another model")

    def test_an_orderly_end(self):
        """A question that has begun is answered; idle connections are closed soon; new ones are not taken."""
        server = self.serve(self.run_of("txt"), "--grace-seconds", "60")
        idle = self.connect()
        self.assertEqual(self.ask("GET", "/healthz", connection=idle)[0], 200)
        begun = self.begin_question()
        server.signal(signal.SIGTERM)
        self.assertEqual(idle.sock.recv(10), b"", "closed")
        wait_until(lambda: "ending" in server.stderr, "it ends")
        with self.assertRaises(OSError):
            self.ask("GET", "/healthz")
        self.assertTrue(server.running())
        begun.sendall(b'{"text":"apple"}')
        answer = self.all_of(begun)
        self.assertIn(b" 200 ", answer)
        self.assertIn(b"Connection: close", answer)
        self.assertEqual(server.end(), 0, server)

    def test_an_end_under_load(self):
        """Clients that ask without a pause, and some that have just connected: no question is lost."""
        server = self.serve(self.run_of("txt"), "--no-probabilities", "--grace-seconds", "600")
        question = json.dumps({"samples": [{"text": "apple plum pear saw file " * 100}] * 100})
        answered = [0] * 8
        slow = 0.5  # seconds; the server waits at least so long for the next question

        def ask_on(client):
            connection, since = self.connect(), None
            while True:
                before = time.monotonic()
                try:
                    connection.request("POST", "/v1/predict", question, JSON)
                    answer = connection.getresponse()
                except OSError:
                    if since is not None and before - since > slow:
                        return "was too slow"
                    raise
                answer.read()
                since = time.monotonic()
                self.assertEqual(answer.status, 200)
                answered[client] += 1
                if answer.will_close:
                    return "knows that the server ends"

        with concurrent.futures.ThreadPoolExecutor(len(answered)) as threads:
            asking = [threads.submit(ask_on, client) for client in range(len(answered))]
            wait_until(lambda: min(answered) >= 2 or any(thread.done() for thread in asking), "each is answered")
            late = [self.raw(b"GET /healthz HTTP/1.1\r\n\r\n") for _ in range(8)]
            server.signal(signal.SIGTERM)
            for connection in late:
                answer = self.all_of(connection)
                self.assertIn(b" 200 ", answer)
            self.assertEqual({thread.result(LIMIT) for thread in asking} - {"was too slow"}, {"knows that the server ends"})
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

    def begin_question(self):
        """Begins a question: the server has read its header, and the body does not come."""
        connection = self.raw(b"POST /v1/predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 16\r\nExpect: 100-continue\r\n\r\n")
        self.assertIn(b"100 Continue", connection.recv(100))
        return connection

    def test_the_end_of_patience(self):
        server = self.serve(self.run_of("txt"), "--grace-seconds", "0.1", "--read-seconds", "1000")
        stuck = self.begin_question()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 1, server)
        self.assertIn("--grace-seconds", server.stderr)
        self.assertEqual(stuck.recv(10), b"")
        server = self.serve(self.run_of("txt"), "--grace-seconds", "1000", "--read-seconds", "1000")
        self.begin_question()
        server.signal(signal.SIGTERM)
        wait_until(lambda: "ending" in server.stderr, "it ends")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), -signal.SIGTERM, server)

    def test_addresses_that_are_taken(self):
        run = self.run_of("txt")
        self.serve(run)
        self.assert_refused(1, "cannot listen there", "modelet", "serve", run, "--listen", f"127.0.0.1:{self.port}")


if __name__ == "__main__":
    unittest.main()
