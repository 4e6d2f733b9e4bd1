"""Raw text end to end: labelled text, CSV and running text, trained, evaluated and predicted with names."""
import csv
import json
import random
import unittest

from programs import ProgramTest, finished

TOPICS = {"fruit": "apple pear plum cherry", "tools": "hammer saw drill file", "seas": "baltic black red dead"}
FILLERS = "the a of with on"

EXPERIMENT = """
[data]
train = "{train}"
test = "{test}"
format = "{format}"

[text]
word_ngrams = 2

[words]
window = 2
min_count = 2
subsample = 0

[csv]
labels = "topic"
text = ["title", "body"]

[model]
hidden = [32]

[sampling]
mode = "full"

[train]
epochs = 6
batch = 16
learning_rate = 2e-2
threads = 1
"""


def samples(count, seed):
    """[(topic, words)]"""
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        topic = rng.choice(list(TOPICS))
        result.append((topic, [rng.choice(TOPICS[topic].split() if rng.random() < 0.6 else FILLERS.split()) for _ in range(8)]))
    return result


class Text(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, count in (("train", 600), ("test", 100)):
            rows = samples(count, name)
            (cls.folder / f"{name}.txt").write_text("".join(f"__label__{topic} {' '.join(words)}\n" for topic, words in rows))
            (cls.folder / f"{name}-words.txt").write_text("".join(" ".join(words) + "\n" for _, words in rows))
            with open(cls.folder / f"{name}.csv", "w", newline="") as file:
                csv.writer(file).writerows([("title", "topic", "body"), *((" ".join(words[:2]), topic, ",\n".join(words[2:]))
                                                                          for topic, words in rows)])
        cls.trained = {}

    def run_of(self, kind, *arguments):
        """Returns the folder of a run, which is trained once for all tests."""
        if kind not in self.trained:
            train, test, data_format = {"text": ("train.txt", "test.txt", "auto"), "csv": ("train.csv", "test.csv", "csv"),
                                        "words": ("train-words.txt", "test-words.txt", "words")}[kind.split("-")[0]]
            experiment = self.folder / f"{kind}.toml"
            experiment.write_text(EXPERIMENT.format(train=train, test=test, format=data_format))
            self.trained[kind] = finished(self.modelet("train", experiment, "--out", kind, "--json", *arguments))
        return kind, self.trained[kind]

    def test_labelled_text_and_csv(self):
        for kind in ("text", "csv"):
            run, end = self.run_of(kind)
            self.assertGreater(end["p_at_1"], 0.95)
            test = "test.txt" if kind == "text" else "test.csv"
            (line,) = self.modelet("eval", run, test, "--json").events()
            self.assertAlmostEqual(line["p_at_1"], end["p_at_1"], places=12)
            first = self.modelet("predict", run, test, "--json", "--k", "2").events()
            names = [sample["labels"][0]["name"] for sample in first]
            right = sum(name == topic for name, (topic, _) in zip(names, samples(100, "test")))
            self.assertAlmostEqual(right / 100, end["p_at_1"], places=6)

    def test_a_line_is_a_sample_whatever_labels_hold(self):
        (self.folder / "lines.csv").write_text('label,text\n' + '"red\nand blue",rose sky\ngreen,grass leaf\n' * 30)
        for reading in (["csv.text=text"], ['csv.text="text"'], ['csv.text=["text"]']):
            described = json.loads(self.modelet("data", "describe", "--json", "--set", "data.format=csv", "--set", *reading, "lines.csv").stdout)
            self.assertEqual(described["features"], 4)
        self.modelet("train", "lines.csv", "lines.csv", "--set", "data.format=csv", "--set", "train.epochs=1", "--out", "lines")
        lines = self.modelet("predict", "lines", "lines.csv", "--k", "2").stdout.splitlines()
        self.assertEqual(len(lines), 60)
        self.assertTrue(all(r"red\nand blue:" in line for line in lines))

    def test_agents_read_the_same(self):
        _, one = self.run_of("text")
        _, two = self.run_of("text-pool", "--nodes", "2")
        self.assertAlmostEqual(one["p_at_1"], two["p_at_1"], delta=0.02)

    def test_new_text_and_labels(self):
        run, _ = self.run_of("text")
        (self.folder / "new.txt").write_text("apple the pear __label__fruit __label__plants\n\nhammer __label__metal nevermore\n")
        predicted = self.modelet("predict", run, "new.txt", "--k", "1")
        lines = predicted.stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual([lines[0].split(":")[0], lines[2].split(":")[0]], ["fruit", "tools"])
        self.assertIn("new.txt: 2 labels", predicted.stderr)
        (self.folder / "bad.txt").write_text("apple\n__label__ pear\n")
        self.assert_refused(1, "bad.txt:2: a label without a name", "modelet", "predict", run, "bad.txt")

    def test_data_that_the_model_cannot_know(self):
        for kind in ("text", "csv", "words"):
            run, _ = self.run_of(kind)
            for verb in ("eval", "predict"):
                self.assert_refused(2, ["data/test.txt", "XMC"], "modelet", verb, run, "data/test.txt")
        run, _ = self.run_of("text")
        strangers = self.folder / "strangers.txt"
        for text in ("__label__plants apple\n", "apple\npear\n"):
            strangers.write_text(text)
            self.assert_refused(1, ["strangers.txt", "none of its samples has a label"], "modelet", "eval", run, strangers)
            self.modelet("predict", run, strangers)
        self.train("xmc", "--set", "train.epochs=1")
        for verb in ("eval", "predict"):
            self.assert_refused(2, ["test.txt", "labelled words"], "modelet", verb, "xmc", "test.txt")
            self.assert_refused(1, ["test.csv", "header"], "modelet", verb, "xmc", "test.csv")

    def test_prepared_like_the_training_data(self):
        run, end = self.run_of("text")
        self.modelet("data", "prepare", "--set", "text.word_ngrams=2", "train.txt", "train.mlt")
        for like in ("train.mlt", run):
            self.modelet("data", "prepare", "--force", "--like", like, "test.txt", "test.mlt")
            (line,) = self.modelet("eval", run, "test.mlt", "--json").events()
            self.assertAlmostEqual(line["p_at_1"], end["p_at_1"], places=12)
        described = json.loads(self.modelet("data", "describe", "train.mlt", "--json").stdout)
        self.assertEqual({entry["name"] for entry in described["label_statistics"]["most_frequent"]}, set(TOPICS))
        self.modelet("data", "prepare", "train.txt", "other.mlt")
        self.assert_refused(2, ["other.mlt", "--like"], "modelet", "eval", run, "other.mlt")
        self.assert_refused(2, "--like", "modelet", "data", "prepare", "--like", "train.mlt", "--set", "text.min_count=2", "test.txt",
                            "x.mlt")
        self.assert_refused(2, "text.word_ngrams", "modelet", "data", "prepare", "--set", "text.word_ngram=2", "test.txt", "x.mlt")

    def test_resume_wants_the_same_encoding(self):
        run, _ = self.run_of("text")
        self.assert_refused(2, "another", "modelet", "train", "text.toml", "--resume", run, "--set", "text.min_count=2", "--set",
                            "train.epochs=9")

    def test_neighbours(self):
        run, _ = self.run_of("words")
        self.assertEqual(len(self.modelet("neighbours", run, "apple", "--k", "3").stdout.splitlines()), 3)
        lines = self.modelet("neighbours", run, "hammer", "--k", "3", "--json").events()
        self.assert_documented(lines, {"Neighbours"})
        self.assertEqual({entry["word"] for entry in lines[0]["neighbours"]}, {"saw", "drill", "file"})
        self.assert_refused(2, ["'hamer' is not among the 17 words", "did you mean hammer?"], "modelet", "neighbours", run, "hamer")
        text, _ = self.run_of("text")
        self.assert_refused(2, "was not trained on running text", "modelet", "neighbours", text, "hammer")

    def test_neighbours_are_those_of_the_best_weights(self):
        run, _ = self.run_of("words-best", "--set", "train.epochs=2", "--set", "train.keep_checkpoints=2")
        first, last = sorted((self.folder / run / "checkpoints").iterdir())

        def neighbours(of):
            return self.modelet("neighbours", of, "hammer", "--k", "5", "--json").stdout
        self.assertNotEqual(neighbours(first), neighbours(last))
        self.assertEqual(neighbours(run), neighbours(last))
        index = json.loads((last / "index.json").read_text())
        index["best_step"] = int(first.name.split("-")[1])
        (last / "index.json").write_text(json.dumps(index))
        self.assertEqual(neighbours(run), neighbours(first))


if __name__ == "__main__":
    unittest.main()
