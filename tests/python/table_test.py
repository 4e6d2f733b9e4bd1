"""A table of mixed columns gives one model and one answer, whether it comes as a frame, as Parquet or as a file of text."""
import datetime
import decimal
import math
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from pyarrow import parquet

import modelet

FAST = {"settings": {"train.epochs": 30}, "threads": 1, "random_state": 0, "progress": False}


def orders(rows, seed):
    """Columns as lists; the product follows from the shop and from the price together."""
    draw = np.random.default_rng(seed)
    shop, dear = draw.integers(3, size=rows), draw.integers(2, size=rows)
    day = [datetime.date(2026, int(month), 1) for month in draw.integers(1, 13, size=rows)]
    return {"shop": [f"shop {number}" for number in shop],
            "price": [None if draw.integers(20) == 0 else float(60 * each + draw.integers(1, 400) / 10) for each in dear],
            "day": day, "tags": [[f"t{number}", "x"] for number in draw.integers(5, size=rows)], "new": [bool(each) for each in draw.integers(2, size=rows)],
            "cost": [decimal.Decimal(int(each)) / 4 for each in draw.integers(100, size=rows)],
            "product": [int(a + 3 * b) for a, b in zip(shop, dear)]}


TRAIN, TEST = orders(600, 1), orders(100, 2)


@pytest.fixture(scope="module")
def fitted():
    return modelet.fit(pl.DataFrame(TRAIN), target="product", test=pl.DataFrame(TEST), **FAST)


def used(classifier):
    return {each["key"]: each["value"] for each in classifier.recipe_["chosen"]}


def test_a_frame(fitted):
    chosen = used(fitted)
    assert {name: chosen[f"columns.{name}"] for name in TRAIN} == {
        "shop": "category", "price": "number", "day": "date", "tags": "category separator=pipe", "new": "category", "cost": "number",
        "product": "target"}
    assert sorted(fitted.classes_.tolist()) == list(range(6)) and fitted.classes_.dtype.kind == "i"
    frame = pl.DataFrame(TEST)
    assert fitted.score(frame) > 0.85  # the best column alone gives 0.33 or 0.5
    assert fitted.training_["p_at_1"] == pytest.approx(fitted.score(frame), abs=1e-6)
    found = fitted.predict(frame)
    assert np.mean(found == np.array(TEST["product"])) == pytest.approx(fitted.score(frame))
    probabilities = fitted.predict_proba(frame)
    assert probabilities.shape == (100, 6)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], found)
    np.testing.assert_array_equal(fitted.predict_top(frame, 2)[0][:, 0], found)
    assert fitted.predict(frame[:0]).shape == (0,)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(frame), found)


def test_every_frame_is_the_same_table(fitted, tmp_path):
    expected = fitted.model_.scores(fitted._encode(TEST)[0])
    pandas = pd.DataFrame(TEST)
    path = tmp_path / "test.parquet"
    parquet.write_table(pa.table(TEST), path, row_group_size=30)
    odd = pandas.assign(price=[pd.NA if value is None else value for value in TEST["price"]],
                        shop=pandas["shop"].astype("category"), tags=[tuple(each) for each in TEST["tags"]])
    for frame in (pandas, pandas.drop(columns="product"), pandas[reversed(pandas.columns)].assign(more=7), odd,
                  pandas.convert_dtypes(), pandas.set_index(pandas.index[::-1]), pl.DataFrame(TEST), pl.DataFrame(TEST, schema_overrides={"shop": pl.Categorical}),
                  pa.table(TEST), path, str(path)):
        np.testing.assert_array_equal(fitted.model_.scores(fitted._encode(frame)[0]), expected)
    modelet.table.write(path, tmp_path / "test.jsonl")
    np.testing.assert_array_equal(fitted.model_.scores(fitted.model_.read(tmp_path / "test.jsonl")[0]), expected)
    assert fitted.score(pandas.drop(columns="product"), pandas["product"]) == fitted.score(pandas) == fitted.score(path)
    assert fitted.score(pandas, pandas["product"] + 1) < 0.2


def test_parquet_as_the_command_line_reads_it(tmp_path):
    """The same keys are chosen for the table that `python3 -m modelet.table` writes, and the same is learned."""
    table = tmp_path / "orders.parquet"
    parquet.write_table(pa.table(TRAIN), table)
    subprocess.run([sys.executable, "-m", "modelet.table", table, tmp_path / "orders.jsonl"], check=True)
    of_file, of_frame = (modelet.fit(given, target="product", **FAST) for given in (tmp_path / "orders.jsonl", table))
    assert used(of_file) == used(of_frame)
    np.testing.assert_array_equal(*(each.model_.scores(each._encode(TEST)[0]) for each in (of_file, of_frame)))
    with pytest.raises(modelet.Error, match="is a file of Parquet.*python3 -m modelet.table"):
        modelet.train({"data.train": str(table), "data.test": str(table), "data.format": "columns", "columns.product": "target", "columns.shop": "category"}, out=tmp_path / "run", progress=False)


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), pd.NA, pd.NaT, decimal.Decimal("NaN"), ""])
def test_what_is_missing(fitted, missing):
    row = {"shop": "shop 1", "price": 7, "day": "2026-05-01", "tags": "t1", "new": True, "cost": 3}
    names = ["shop", "price", "day", "tags", "cost"]
    given = pd.DataFrame([{**row, name: missing} for name in names], dtype=object)
    nothing = pd.DataFrame([{**row, name: None} for name in names], dtype=object)
    assert (fitted._encode(given)[0] != fitted._encode(nothing)[0]).nnz == 0
    assert (fitted._encode(given)[0] != fitted._encode(pd.DataFrame([row] * 5))[0]).nnz > 0


def test_several_labels(tmp_path):
    labels = [["a", "b"] if each % 2 else ["c"] for each in TRAIN["product"]]
    frame = pl.DataFrame({**TRAIN, "product": labels})
    classifier = modelet.fit(frame, target="product", out=tmp_path / "run", **FAST)
    assert used(classifier)["columns.product"] == "target separator=pipe"
    found = classifier.predict(frame)
    assert np.mean([sorted(a) == sorted(b) for a, b in zip(found, labels)]) > 0.8
    assert classifier.score(frame) > 0.9
    assert sorted(path.name for path in (tmp_path / "run/data").iterdir()) == ["test.jsonl", "train.jsonl"]
    modelet.load(tmp_path / "run")


def test_errors_name_table_row_and_column(fitted, tmp_path):
    pandas = pd.DataFrame(TEST)

    def refused(text, call, kind=(modelet.Error, modelet.UsageError, TypeError)):
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value), caught.value

    refused("the table has no column 'price'", lambda: fitted.predict(pandas.drop(columns="price")))
    wrong = pandas.assign(price=pandas["price"].astype(object))
    wrong.loc[70, "price"] = "dear"
    refused("the table, row 70: column 'price': expected a number", lambda: fitted.predict(wrong))
    big = pd.concat([pd.DataFrame(TRAIN), wrong], ignore_index=True)
    given = {**FAST, "settings": {"columns.price": "number"}}
    refused("the table, row 670: column 'price': expected a number", lambda: modelet.fit(big, target="product", **given))
    refused("the test table, row 70: column 'price'", lambda: modelet.fit(pd.DataFrame(TRAIN), target="product", test=wrong, **given))
    nested = pandas.assign(tags=[[["a"]]] * 100)
    refused("the table, row 0: column 'tags'", lambda: fitted.predict(nested))
    refused("the table, row 0: column 'tags': {'a': 1}", lambda: fitted.predict(pandas.assign(tags=[{"a": 1}] * 100)))
    refused("there is no column 'produkt'", lambda: modelet.fit(pandas, target="produkt", **FAST))
    refused("two columns of one name", lambda: fitted.predict(pd.concat([pandas, pandas], axis=1)))
    refused("0 is no name of a column", lambda: fitted.predict(pd.DataFrame(np.eye(3))))
    refused("is lazy", lambda: fitted.predict(pl.DataFrame(TEST).lazy()))
    refused("give a data frame", lambda: fitted.predict([1, 2]))
    refused("labels are given twice", lambda: modelet.fit(pandas, pandas["product"], target="product"))
    refused("columns differ in length", lambda: fitted.predict({**TEST, "price": [1.0]}))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1\x15 and then nothing")
    refused("cut.parquet", lambda: fitted.predict(tmp_path / "cut.parquet"))
    refused("call fit()", lambda: modelet.TableClassifier("product").predict(pandas), modelet.UsageError)


def purchases(rows, seed, first_day):
    draw = np.random.default_rng(seed)
    return pd.DataFrame({"customer": [f"c{each}" for each in draw.integers(9, size=rows)], "day": first_day + draw.permutation(rows),
                         "paid": draw.integers(1, 4000, size=rows) / 8, "product": [f"p{each}" for each in draw.integers(5, size=rows)]})


def test_what_customers_did_since():
    settings = {"columns.customer": "entity", "columns.day": "time windows=30", "train.epochs": 1}
    early, late = purchases(300, 3, 0), purchases(60, 4, 300)
    classifier = modelet.fit(early, target="product", test=early[:9], settings=settings, threads=1, random_state=0, progress=False)
    asked = late.drop(columns="product")
    before, expected = classifier._encode(asked)[0], classifier._encode(late, "product")[0]
    assert (before != expected).nnz > 0
    events = late.to_dict("records")
    history = [[{key: event[key] for key in ("day", "paid", "product")} for event in events if event["customer"] == customer]
               for customer in late["customer"]]
    assert (classifier._encode(asked.assign(history=history))[0] != expected).nnz == 0
    rows = [{**row, "history": each} for row, each in zip(asked.to_dict("records"), history)]
    assert (classifier.model_.encode(rows) != expected).nnz == 0
    assert (classifier.model_.encode({**asked.to_dict("list"), "history": history}) != expected).nnz == 0
    assert (classifier.model_.encode([*rows[:1], asked.to_dict("records")[1]]) != scipy.sparse.vstack([expected[:1], before[1:2]])).nnz == 0
    with pytest.raises(modelet.Error, match=r"rows\[1\]: history: event:1: column 'day'"):
        classifier.model_.encode([rows[0], {"customer": "c1", "history": [{"day": "soon", "product": "p1"}]}])
    assert (classifier._encode(asked)[0] != before).nnz == 0  # nothing is kept
    assert classifier.update(late[30:]) == 30
    assert classifier.update(late) == 30
    assert (classifier._encode(asked)[0] != expected).nnz == 0
    copy = pickle.loads(pickle.dumps(classifier))
    assert (copy._encode(asked)[0] != expected).nnz == 0
    with pytest.raises(modelet.Error, match="row 1.*column 'day': expected a time"):
        classifier.update(pd.DataFrame({**late[:2], "day": ["301", "soon"]}))
