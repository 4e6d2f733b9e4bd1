"""A table of mixed columns from its file to answers: `modelet train orders.csv --target product`."""
import csv
import io
import json
import random
import signal
import unittest
import urllib.request

from programs import ProgramTest, finished, wait_until

SHOPS, KINDS = ["North Street", "South Road", "West End"], ["lamp", "chair", "table"]


def orders(rows, seed):
    """Which product is bought follows from shop, kind and price together: no column tells it alone."""
    draw = random.Random(seed)
    lines = ["id,title,shop,price,day,tags,product"]
    for number in range(rows):
        shop, kind, dear = draw.randrange(3), draw.randrange(3), draw.randrange(2)
        price = draw.uniform(1, 40) + 60 * dear
        product = (shop + kind) % 3 + 3 * ((shop + dear) % 2)
        title = f"a {draw.choice(['fine', 'small', 'new', 'used'])} {KINDS[kind]} of colour {draw.randrange(500)}"
        shown = "" if draw.randrange(20) == 0 else f"2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
        lines.append(f'{number},"{title}",{SHOPS[shop]},{price:.2f},{shown},{draw.choice("abc")}|{draw.choice("abc")},P{product}')
    return "\n".join(lines) + "\n"


class Columns(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "orders.csv").write_text(orders(4000, 1))
        (cls.folder / "later.csv").write_text(orders(300, 2))

    def test_from_a_table_to_answers(self):
        program = self.modelet("train", "orders.csv", "--target", "product", "--out", "run", "--json", "--threads", "1")
        (recipe,) = program.events("recipe")
        chosen = {each["key"]: each["value"] for each in recipe["chosen"]}
        uses = {key.removeprefix("columns."): value for key, value in chosen.items() if key.startswith("columns.")}
        self.assertEqual(uses, {"id": "ignore", "title": "text", "shop": "category", "price": "number", "day": "date",
                                "tags": "category separator=pipe", "product": "target"})
        self.assertEqual(chosen["data.format"], "columns")
        self.assertIn("held out for the test: 400 of 4000 records", program.stderr)
        self.assertIn("columns.price = number", program.stderr)
        self.assertIn('"price" = "number"', (self.folder / "run/experiment.toml").read_text())
        self.assertGreater(finished(program)["p_at_1"], 0.8)  # the best column alone gives 0.33
        # The held-out records and the others are those of the file.
        train, test = ((self.folder / "run/data" / name).read_text().splitlines() for name in ("train.csv", "test.csv"))
        self.assertEqual(sorted(train[1:] + test[1:]), sorted((self.folder / "orders.csv").read_text().splitlines()[1:]))
        # The file of the run repeats it, and answers come from tables with and without the labels.
        (evaluated,) = self.modelet("eval", "run", "later.csv", "--json").events()
        self.assertGreater(evaluated["p_at_1"], 0.8)
        lines = (self.folder / "later.csv").read_text().splitlines()
        (self.folder / "without.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
        answers = [self.modelet("predict", "run", file, "--k", "1").stdout for file in ("later.csv", "without.csv")]
        self.assertEqual(*answers)
        self.assertEqual(len(answers[0].splitlines()), 300)

    def test_given_columns_stay(self):
        program = self.modelet("train", "orders.csv", "later.csv", "--target", "product", "--out", "given", "--json", "--trial-share", "0",
                               "--set", "train.epochs=1", "--set", "columns.price=ignore", "--set", "columns.shop=text")
        (recipe,) = program.events("recipe")
        chosen = {each["key"] for each in recipe["chosen"]}
        self.assertFalse({"columns.price", "columns.shop"} & chosen)
        text = (self.folder / "given/experiment.toml").read_text()
        self.assertIn('"shop" = "text"  # given', text)

    def test_describe(self):
        described = json.loads(self.modelet("data", "describe", "orders.csv", "--target", "product", "--json").stdout)
        columns = {column["name"]: column for column in described["columns"]}
        self.assertEqual(described["records"], 4000)
        self.assertEqual(columns["shop"]["distinct"], 3)
        self.assertEqual(columns["product"]["use"], "target")
        self.assertGreater(columns["day"]["missing"], 100)
        self.assertIn("category separator=pipe", self.modelet("data", "describe", "orders.csv").stdout)
        described = self.modelet("data", "describe", "orders.csv", "--target", "product", "--recipe", "--json").events()
        self.assertEqual(described[-1]["event"], "recipe")
        self.assertIn("model.hidden", {each["key"] for each in described[-1]["chosen"]})

    def test_label_texts(self):
        """A product that nobody has bought yet is found by words of its own text."""
        draw = random.Random(5)
        words = {f"P{number}": [f"w{number}x{word}" for word in range(6)] for number in range(12)}

        def rows(products, each):
            lines = [f"{' '.join(draw.sample(words[product], 3))},{draw.randrange(9)},{product}" for product in products for _ in range(each)]
            draw.shuffle(lines)
            return "title,amount,product\n" + "\n".join(lines) + "\n"

        products = list(words)
        (self.folder / "bought.csv").write_text(rows(products[:-2], 40))
        (self.folder / "asked.csv").write_text(rows(products, 10))
        (self.folder / "new.csv").write_text("title,amount,product\n" + "".join(f"{' '.join(words[product])},{amount},{product}\n" for product in products[-2:] for amount in range(9)))
        (self.folder / "texts.tsv").write_text("".join(f"{product}\t{' '.join(words[product])}\n" for product in products))
        given = ["--target", "product", "--set", "columns.title=text", "--trial-share", "0", "--json", "--threads", "1"]

        def found(out, *arguments):
            self.modelet("train", *arguments, "--out", out, *given)
            return self.modelet("eval", out, "new.csv", "--json").events()[-1]["p_at_1"]

        self.assertGreater(found("beside", "bought.csv", "asked.csv", "--label-texts", "texts.tsv"), 0.9)
        self.assertGreater(found("alone", "texts.tsv", "asked.csv", "--label-texts", "texts.tsv"), 0.9)
        added = (self.folder / "beside/data/train-with-texts.csv").read_text().splitlines()
        self.assertEqual(added[:401], (self.folder / "bought.csv").read_text().splitlines())
        amount = added[1].split(",")[1]  # other columns are those of the first records
        self.assertEqual(added[401], f'"{" ".join(words["P0"])}","{amount}","P0"')
        # Labelled text, and JSON Lines with a test set of their own.
        (self.folder / "clicks.txt").write_text("__label__tea green leaves hot water\n__label__cars four wheels engine\n" * 30)
        (self.folder / "names.tsv").write_text("pottery\tcups of clay from a kiln\n")
        self.modelet("train", "clicks.txt", "clicks.txt", "--label-texts", "names.tsv", "--out", "words", "--trial-share", "0", "--json")
        (self.folder / "kiln.txt").write_text("clay kiln\n")
        self.assertIn("pottery", self.modelet("predict", "words", "kiln.txt", "--k", "1").stdout)
        (self.folder / "bought.jsonl").write_text("".join(json.dumps(row) + "\n" for row in csv.DictReader(io.StringIO(rows(products[:-2], 40)))))
        self.assertGreater(found("json", "bought.jsonl", "--label-texts", "texts.tsv"), 0.9)
        # What is wrong.
        refuse = lambda code, what, *arguments: self.assert_refused(code, what, "modelet", "train", *arguments, "--out", "refused")  # noqa: E731
        (self.folder / "wrong.tsv").write_text("P0\ttitle\n\nP1 title\n")
        refuse(1, "wrong.tsv:3: a label's name, a tab and its text", "bought.csv", "asked.csv", "--target", "product", "--label-texts", "wrong.tsv")
        (self.folder / "empty.tsv").write_text("\n")
        refuse(1, "has no text of a label", "bought.csv", "asked.csv", "--target", "product", "--label-texts", "empty.tsv")
        refuse(2, "has no column of text", "bought.csv", "asked.csv", "--target", "product", "--set", "columns.title=category", "--label-texts", "texts.tsv")

    def test_histories(self):
        """What a customer buys follows from what the same customer bought last. Records are not in the order of their times."""
        draw = random.Random(4)
        rows, last = [], {}
        for day in range(3000):
            customer = draw.randrange(60)
            product = (last.get(customer, customer) * 3 + 1) % 17
            last[customer] = product
            rows.append(f"{customer},{day},{draw.randrange(5)},P{product}")
        early, late = rows[:2500], rows[2500:]
        for name, part in (("early.csv", early), ("late.csv", late)):
            draw.shuffle(part)
            (self.folder / name).write_text("customer,day,amount,product\n" + "\n".join(part) + "\n")
        program = self.modelet("train", "early.csv", "late.csv", "--target", "product", "--set", "columns.customer=entity", "--set", "columns.day=time windows=30",
                               "--out", "histories", "--trial-share", "0", "--json", "--threads", "1")
        self.assertIn('"customer" = "entity"', (self.folder / "histories/experiment.toml").read_text())
        self.assertGreater(finished(program)["p_at_1"], 0.9)  # 17 products
        # A question needs no more than the customer; without a time it comes after what training knows.
        (self.folder / "question.csv").write_text("day,customer,amount\n,7,\n")
        known = [row.split(",") for row in early if row.startswith("7,")]
        product = int(max(known, key=lambda row: int(row[1]))[3][1:])
        with open(self.folder / "question.csv") as question:
            (answer,) = self.modelet("predict", "histories", "-", "--k", "1", "--json", stdin=question).events()
        self.assertEqual(answer["labels"][0]["name"], f"P{(product * 3 + 1) % 17}")
        # What is told while it is served counts from then on, and is kept beside the model.
        rows = [dict(zip(("customer", "day", "amount", "product"), row.split(","))) for row in late]
        served = self.start("modelet", "serve", "histories", "--listen", "127.0.0.1:0", "--endpoint-file", self.folder / "endpoint", "--update",
                            "--no-probabilities", "--threads", "1")
        wait_until(lambda: (self.folder / "endpoint").exists(), "the server")
        address = (self.folder / "endpoint").read_text().strip()

        def ask(path, body):
            asked = urllib.request.Request(address + path, json.dumps(body).encode(),
                                           {"Content-Type": "application/json", "X-Modelet-Action": "yes"})
            return json.loads(urllib.request.urlopen(asked, timeout=60).read())

        def name_for_7():
            return ask("/v1/predict", {"fields": {"customer": 7}, "k": 1})["labels"][0]["name"]

        self.assertEqual(name_for_7(), answer["labels"][0]["name"])
        # What a question brings counts for its answer only.
        history = [{name: row[name] for name in ("day", "amount", "product")} for row in rows if row["customer"] == "7"]
        product = int(max(history, key=lambda row: int(row["day"]))["product"][1:])
        brought = ask("/v1/predict", {"fields": {"customer": 7, "history": history}, "k": 3})
        self.assertEqual(brought["labels"][0]["name"], f"P{(product * 3 + 1) % 17}")
        self.assertEqual(name_for_7(), answer["labels"][0]["name"])
        (self.folder / "brought.jsonl").write_text(json.dumps({"customer": 7, "history": history}) + "\n")
        with open(self.folder / "brought.jsonl") as question:
            (piped,) = self.modelet("predict", "histories", "-", "--k", "3", "--json", stdin=question).events()
        self.assertEqual([each["name"] for each in piped["labels"]], [each["name"] for each in brought["labels"]])
        # Where events cannot be kept, nobody learns of them.
        (self.folder / "histories/histories.jsonl").mkdir()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            ask("/v1/update", {"samples": rows})
        self.assertEqual(refused.exception.code, 500)
        self.assertEqual(name_for_7(), answer["labels"][0]["name"])
        (self.folder / "histories/histories.jsonl").rmdir()
        updated = ask("/v1/update", {"samples": rows})
        self.assertEqual((updated["added"], updated["unknown_labels"]), (len(late), 0))
        self.assertEqual(ask("/v1/update", {"samples": rows[:9]})["added"], 0)
        self.assertEqual(ask("/v1/predict", {"fields": {"customer": 7}, "k": 3})["labels"], brought["labels"])
        self.assertEqual(name_for_7(), f"P{(product * 3 + 1) % 17}")
        served.signal(signal.SIGTERM)
        self.assert_ends(served, 0)
        self.assertEqual(len((self.folder / "histories/histories.jsonl").read_text().splitlines()), len(late))
        with open(self.folder / "question.csv") as question:
            (answer,) = self.modelet("predict", "histories", "-", "--k", "1", "--json", stdin=question).events()
        self.assertEqual(answer["labels"][0]["name"], f"P{(product * 3 + 1) % 17}")

    def test_a_graph(self):
        """What an account's neighbours are like says more of a fraud than its own row, which alone reaches `own_auc`."""
        self.modelet("data", "synth", "fraud", "--preset", "accounts", "--rows", "4000", "--rows-test", "2000")
        (made,) = self.modelet("data", "graph", "fraud/nodes.csv", "fraud/graph.csv", "--id", "account", "--edges", "fraud/edges.csv", "--target", "fraud",
                               "--target", "part", "--json").events()
        self.assertEqual((made["event"], made["nodes"]), ("graph", 6000))
        self.modelet("data", "split", "fraud/graph.csv", "fraud/parts", "--owners", "2", "--by", "column:part")
        program = self.modelet("train", "fraud/parts/owner-0.csv", "fraud/parts/owner-1.csv", "--set", "columns.fraud=label", "--set", "columns.part=ignore",
                               "--set", "columns.neighbours=ignore", "--set", "train.epochs=5", "--set", "train.learning_rate=0.001",
                               "--trial-share", "0", "--out", "fraud/run", "--json", "--threads", "1")
        truth = json.loads((self.folder / "fraud/truth.json").read_text())
        self.assertGreater(finished(program)["auc"], (truth["own_auc"] + 2 * truth["auc"]) / 3)
        self.assert_refused(2, "give --edges FILE, or --neighbours COLUMN", "modelet", "data", "graph", "fraud/nodes.csv", "x.csv", "--target", "fraud")
        self.assert_refused(2, ["there is no column 'amuont'", "did you mean 'amount'?"], "modelet", "data", "graph", "fraud/nodes.csv", "x.csv", "--id", "amuont",
                            "--edges", "fraud/edges.csv", "--target", "fraud")

    def test_json_lines_are_the_same_table(self):
        rows = list(csv.DictReader(io.StringIO(orders(1000, 4))))
        lines = [json.dumps({**row, "price": float(row["price"]), "tags": row["tags"].split("|"), "day": row["day"] or None}) for row in rows]
        (self.folder / "orders.jsonl").write_text("\n".join(lines) + "\n")
        described = json.loads(self.modelet("data", "describe", "orders.jsonl", "--json").stdout)
        self.assertEqual({column["name"]: column["use"] for column in described["columns"]}["tags"], "category separator=pipe")
        self.assertIn("a table, JSON Lines; all 1000 records", self.modelet("data", "describe", "orders.jsonl").stdout)
        # The same records are held out, and the same is learned of the others.
        (self.folder / "same.csv").write_text(orders(1000, 4))
        few = ("--target", "product", "--json", "--threads", "1", "--trial-share", "0", "--set", "train.epochs=2")
        of_json, of_csv = (finished(self.modelet("train", file, *few, "--out", file.replace(".", "-"))) for file in ("orders.jsonl", "same.csv"))
        self.assertEqual(*([run[key] for key in ("p_at_1", "p_at_3", "p_at_5")] for run in (of_json, of_csv)))
        self.assertEqual(len((self.folder / "orders-jsonl/data/test.jsonl").read_text().splitlines()), 100)
        # A model of one form reads the other, also from a pipe.
        asked = [{key: json.loads(line)[key] for key in ("title", "shop", "price", "tags")} for line in lines[:50]]
        (self.folder / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
        with open(self.folder / "asked.jsonl") as piped:
            answers = self.modelet("predict", "same-csv", "-", stdin=piped).stdout
        self.assertEqual(self.modelet("predict", "orders-jsonl", "asked.jsonl").stdout, answers)
        self.assertEqual(len(answers.splitlines()), 50)

    def test_errors(self):
        self.assert_refused(2, ["there is no column 'produkt'", "did you mean 'product'?"], "modelet", "train", "orders.csv", "--target", "produkt")
        (self.folder / "few.csv").write_text("a,y\n1,2\n")
        self.assert_refused(2, "too few to hold out a tenth", "modelet", "train", "few.csv", "--target", "y")
        self.assert_refused(2, "--target is for data.format = columns", "modelet", "train", "orders.csv", "--target", "product",
                            "--set", "data.format=csv")
        wrong = self.folder / "wrong.csv"
        wrong.write_text(orders(60, 3) + '7,"a title",North Street,dear,,a,P1\n')
        self.assert_refused(1, "wrong.csv:62: column 'price': expected a number", "modelet", "train", "orders.csv", "wrong.csv",
                            "--target", "product", "--set", "train.epochs=1", "--trial-share", "0")


if __name__ == "__main__":
    unittest.main()
