// The experiment file: every rule of the parser, round trips, and a parser that survives any bytes.
#include "base/experiment/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/reader.h"
#include "base/rng.h"

namespace modelet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::StartsWith;

const std::string kData = "[data]\ntrain = \"train.txt.xz\"\ntest = \"/sets/test.txt\"\n";

Experiment parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_experiment(text, "/runs/quickstart.toml", overrides);
}

// The text of the UsageError that parsing throws.
std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const UsageError& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::kUsage);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

TEST(Experiment, MinimalFileHasDefaults) {
  const Experiment e = parse(kData);
  EXPECT_EQ(e.data.train, "/runs/train.txt.xz");
  EXPECT_EQ(e.data.test, "/sets/test.txt");
  EXPECT_EQ(e.data.labels, "");
  EXPECT_THAT(e.model.hidden, ElementsAre(128));
  EXPECT_EQ(e.train.batch, Experiment{}.train.batch);
  EXPECT_EQ(e.exchange.codec, CodecKind::kInt8);
}

TEST(Experiment, KnowsWhatWasGiven) {
  const std::set<std::string> keys =
      given_keys(kData + "[train]\nepochs = 8\n", "x.toml", {"train.seed=1", "train.seed=2"});
  EXPECT_THAT(keys, ElementsAre("data.test", "data.train", "train.epochs", "train.seed"));
}

TEST(Experiment, KnowsWhichValuesAreGiven) {
  const auto values =
      given_values("[model]\nrare_trust = 0.50\n", "x.toml",
                   {"train.seed=1", "train.seed = 0x2", "model.hidden=[ 16,32 ]", "sampling.mode=lsh"});
  EXPECT_THAT(values, ElementsAre(Pair("model.hidden", "[16, 32]"), Pair("model.rare_trust", "0.5"),
                                  Pair("sampling.mode", "\"lsh\""), Pair("train.seed", "2")));
}

TEST(Experiment, ReadsEveryKindOfValue) {
  const Experiment e = parse(R"(
data = { train = "a", test = "../b", labels = "l", normalize = "l2" }
train.epochs = 3          # dotted keys are the same as a section
train.learning_rate = 2   # a whole number is a number
train.seed = 9007199254740991
[model]
hidden = [256, 64]
loss = "sigmoid"
[sampling]
mode = "lsh_per_sample"
family = "minhash"
centre = false
[optimizer]
kind = "sgd"
clip = 1e-3
[exchange]
codec = "bf16"
lz4 = true
)");
  EXPECT_EQ(e.data.test, "/b");
  EXPECT_EQ(e.data.labels, "/runs/l");
  EXPECT_EQ(e.data.normalize, Normalize::kL2);
  EXPECT_THAT(e.model.hidden, ElementsAre(256, 64));
  EXPECT_EQ(e.model.loss, Loss::kSigmoid);
  EXPECT_EQ(e.sampling.mode, SamplingMode::kLshPerSample);
  EXPECT_EQ(e.sampling.family, HashFamilyKind::kMinHash);
  EXPECT_FALSE(e.sampling.centre);
  EXPECT_EQ(e.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(e.optimizer.clip, 1e-3f);
  EXPECT_EQ(e.train.epochs, 3u);
  EXPECT_EQ(e.train.learning_rate, 2.0f);
  EXPECT_EQ(e.train.seed, (uint64_t{1} << 53) - 1);
  EXPECT_EQ(e.exchange.codec, CodecKind::kBf16);
  EXPECT_TRUE(e.exchange.lz4);
}

// With a single label, a softmax would have nothing to learn.
TEST(Experiment, TablesHaveASigmoidUnlessTheySayOtherwise) {
  for (const std::string format : {"table", "criteo"}) {
    std::vector<std::string> keys = {"data.format=" + format, "table.columns=['label:y', 'cat:c']"};
    EXPECT_EQ(parse(kData, keys).model.loss, Loss::kSigmoid);
    keys.push_back("model.loss=softmax");
    const Experiment chosen = parse(kData, keys);
    EXPECT_EQ(chosen.model.loss, Loss::kSoftmax);
    EXPECT_EQ(parse(to_toml(chosen)).model.loss, Loss::kSoftmax);
  }
  EXPECT_EQ(parse(kData, {"data.format=csv"}).model.loss, Loss::kSoftmax);
}

// Every value of a choice is read as it is spelled.
template <auto kSection, auto kMember>
void expect_spellings_of(const std::string& key) {
  using T = std::remove_cvref_t<decltype(std::declval<Experiment>().*kSection.*kMember)>;
  for (const T value : all_values<T>()) {
    const std::string assignment = key + "=" + std::string(spelling(value));
    // A table has a label and a feature.
    const std::string text = assignment == "data.format=table"
                                 ? kData + "[table]\ncolumns = [\"label:click\", \"num:age\"]\n"
                             : assignment == "data.format=columns"
                                 ? kData + "[columns]\nclick = \"label\"\nage = \"number\"\n"
                                 : kData;
    EXPECT_EQ(parse(text, {assignment}).*kSection.*kMember, value) << assignment;
  }
}

TEST(Experiment, ChoicesAreReadAsSpelled) {
  using E = Experiment;
  expect_spellings_of<&E::data, &E::Data::normalize>("data.normalize");
  expect_spellings_of<&E::data, &E::Data::format>("data.format");
  expect_spellings_of<&E::text, &E::Text::weight>("text.weight");
  expect_spellings_of<&E::csv, &E::Csv::label_separator>("csv.label_separator");
  expect_spellings_of<&E::words, &E::Words::task>("words.task");
  expect_spellings_of<&E::model, &E::Model::loss>("model.loss");
  expect_spellings_of<&E::model, &E::Model::precision>("model.precision");
  expect_spellings_of<&E::sampling, &E::Sampling::mode>("sampling.mode");
  expect_spellings_of<&E::sampling, &E::Sampling::retrieval>("sampling.retrieval");
  expect_spellings_of<&E::sampling, &E::Sampling::family>("sampling.family");
  expect_spellings_of<&E::optimizer, &E::Optimizer::kind>("optimizer.kind");
  expect_spellings_of<&E::train, &E::Train::schedule>("train.schedule");
  expect_spellings_of<&E::exchange, &E::Exchange::gradient_codec>("exchange.gradient_codec");
}

TEST(Experiment, ColumnsHaveNamesOfTheirOwn) {
  const std::string text = kData + "[columns]\n\"a b.\\\"c\\\\\" = \"number  bins=8\"\ny = \"target separator=pipe\"\n";
  const Experiment e = parse(text, {"data.format=columns", "columns.shop=category min_count=3"});
  const ColumnUses uses = column_uses(e.columns);
  EXPECT_EQ(uses.at("a b.\"c\\"), (ColumnUse{.type = ColumnType::kNumber, .bins = 8}));
  EXPECT_EQ(uses.at("y"), (ColumnUse{.type = ColumnType::kTarget, .separator = Delimiter::kPipe}));
  EXPECT_EQ(to_text(uses.at("shop")), "category min_count=3");
  const ColumnUse time = parse_column_use("time windows=0.5,7");
  EXPECT_EQ(time, (ColumnUse{.type = ColumnType::kTime, .windows = {0.5f, 7}}));
  EXPECT_EQ(to_text(time), "time windows=0.5,7");
  EXPECT_EQ(parse(to_toml(e)).columns, e.columns);
  EXPECT_EQ(parse_encoding(to_toml(encoding_of(e)), "state").columns, e.columns);
  EXPECT_EQ(e.model.loss, Loss::kSoftmax);
  EXPECT_EQ(parse(text, {"data.format=columns", "columns.y=label"}).model.loss, Loss::kSigmoid);
  EXPECT_FALSE(parse(text, {"columns.y="}).columns.contains("y"));
  const std::string columns = "data.format=columns";
  const auto error = [&](const std::vector<std::string>& keys) { return error_of(text, keys); };
  EXPECT_THAT(error({columns, "columns.z=colour"}),
              HasSubstr("columns.z is 'colour', which has the unknown type 'colour'"));
  EXPECT_THAT(error({columns, "columns.z=number bins=1"}), HasSubstr("needs a whole number of 2 to 1024 after bins="));
  EXPECT_THAT(error({columns, "columns.z=number separator=pipe"}), HasSubstr("the option 'separator', which number"));
  EXPECT_THAT(error({columns, "columns.z=category separator=dot"}), HasSubstr("unknown separator 'dot'"));
  EXPECT_THAT(error({columns, "columns.z=time windows=1,0"}), HasSubstr("numbers above 0 after windows="));
  EXPECT_THAT(error({columns, "columns.z=date windows=1"}), HasSubstr("the option 'windows', which date"));
  EXPECT_THAT(error({columns, "columns.z=entity"}), HasSubstr("1 columns of type entity and 0 of type time"));
  EXPECT_THAT(error({columns, "columns.z=target"}), HasSubstr("[columns] has 2 columns of type target"));
  EXPECT_THAT(error({columns, "columns.z=label"}), HasSubstr("1 columns of type target and 1 of type label"));
  EXPECT_THAT(error({columns, "columns.y=ignore"}), HasSubstr("0 columns of type target and 0 of type label"));
  EXPECT_THAT(error_of(kData + "[columns]\ny = \"target\"\n", {columns}), HasSubstr("no column with features"));
  EXPECT_THAT(error_of(kData + "[columns]\na.b = \"text\"\n"), HasSubstr("must be a string"));
}

TEST(Experiment, UnknownNamesSuggestTheNearest) {
  EXPECT_EQ(error_of(kData + "[train]\nepoch = 3\n"),
            "/runs/quickstart.toml:5: unknown key 'train.epoch'; did you mean 'train.epochs'?");
  EXPECT_THAT(error_of(kData + "[train]\nhidden = [3]\n"), HasSubstr("did you mean 'model.hidden'?"));
  EXPECT_THAT(error_of("epochs = 3\n" + kData),
              HasSubstr(":1: unknown key 'epochs'; did you mean 'train.epochs'?"));
  EXPECT_THAT(error_of(kData + "[trian]\nepochs = 3\n"),
              HasSubstr(":4: unknown section 'trian'; did you mean 'train'?"));
  EXPECT_THAT(error_of(kData + "[something]\n"), HasSubstr("known: data, text, csv, words, table, columns, sessions, model"));
  EXPECT_THAT(error_of(kData + "[train]\nqqqqqqqqqqqq = 3\n"),
              HasSubstr("docs/experiment.md lists every key"));
  EXPECT_THAT(error_of(kData + "[train.more]\nepochs = 3\n"), HasSubstr("unknown key 'train.more'"));
  EXPECT_THAT(error_of("data = 3\n"), HasSubstr("'data' is a section"));
  EXPECT_THAT(error_of(kData + "[train]\n" + std::string(5000, 'x') + " = 3\n"),
              testing::SizeIs(testing::Lt(300)));
}

TEST(Experiment, WrongTypesAreNamed) {
  EXPECT_EQ(error_of(kData + "[train]\nbatch = \"256\"\n"),
            "/runs/quickstart.toml:5: train.batch must be a whole number, but there is a string");
  EXPECT_THAT(error_of(kData + "[train]\nbatch = 256.0\n"), HasSubstr("number with a fraction"));
  EXPECT_THAT(error_of(kData + "[train]\nlearning_rate = true\n"), HasSubstr("must be a number"));
  EXPECT_THAT(error_of(kData + "[exchange]\nlz4 = 1\n"),
              HasSubstr("must be a boolean, but there is a whole number"));
  EXPECT_THAT(error_of(kData + "[model]\nhidden = 128\n"), HasSubstr("must be a list of whole numbers"));
  EXPECT_THAT(error_of(kData + "[model]\nhidden = [128, \"x\"]\n"), HasSubstr("but there is a string"));
  EXPECT_THAT(error_of(kData + "[model]\nloss = 1979-05-27\n"), HasSubstr("date"));
}

TEST(Experiment, RangesAreChecked) {
  EXPECT_EQ(error_of(kData + "[train]\nbatch = 0\n"),
            "/runs/quickstart.toml:5: train.batch is 0; it must be 1 to 1048576 (samples)");
  EXPECT_THAT(error_of(kData + "[train]\nbatch = -1\n"), HasSubstr("is -1"));
  EXPECT_THAT(error_of(kData + "[train]\nepochs = 9223372036854775807\n"), HasSubstr("1 to 100000"));
  EXPECT_THAT(error_of(kData + "[train]\nlog_every = 4294967296\n"), HasSubstr("1 to 4294967295"));
  EXPECT_THAT(error_of(kData + "[train]\nseed = 9007199254740992\n"), HasSubstr("0 to 9007199254740991"));
  EXPECT_THAT(error_of(kData + "[train]\nlearning_rate = nan\n"), HasSubstr("is nan"));
  EXPECT_THAT(error_of(kData + "[train]\nlearning_rate = inf\n"), HasSubstr("is inf"));
  EXPECT_THAT(error_of(kData + "[train]\nlearning_rate = 9007199254740993\n"), HasSubstr("to 100"));
  EXPECT_THAT(error_of(kData + "[optimizer]\nbeta1 = 1\n"), HasSubstr("0 to 0.9999"));
  EXPECT_THAT(error_of(kData + "[model]\nhidden = []\n"), HasSubstr("1 to 16 of 16 to 65536"));
  EXPECT_THAT(error_of(kData + "[model]\nhidden = [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\n"),
              HasSubstr("list of 17"));
  EXPECT_THAT(error_of(kData + "[model]\nhidden = [64, 0]\n"), HasSubstr("is 0"));
  EXPECT_THAT(error_of(kData + "[model]\nloss = \"softmx\"\n"),
              HasSubstr("is 'softmx'; it must be one of softmax, sigmoid"));
  EXPECT_THAT(error_of(kData + "[exchange]\ncodec = \"int7\"\n"),
              HasSubstr("is 'int7'; it must be one of none, bf16, int8, int4, same"));
  EXPECT_THAT(error_of(kData + "[train]\nmetric = \"\"\n"),
              HasSubstr("train.metric is ''; it must be a word"));
  EXPECT_THAT(error_of(kData + "[train]\nmetric = \"a b\"\n"), HasSubstr("a word"));
}

TEST(Experiment, FieldsAreCheckedTogether) {
  EXPECT_EQ(error_of(kData + "[modelets]\nhidden_columns = 24\n"),
            "/runs/quickstart.toml:5: modelets.hidden_columns is 24; it must be a multiple of 16");
  EXPECT_EQ(error_of(kData + "[model]\nhidden = [128, 100]\n"),
            "/runs/quickstart.toml:5: model.hidden has a layer of 100 neurons; widths must be multiples of "
            "16, because kernels process whole vectors of 16 floats; the nearest are 96 and 112");
  EXPECT_THAT(error_of(kData, {"model.hidden=[17]"}), HasSubstr("the nearest are 16 and 32"));
  EXPECT_THAT(error_of(kData, {"model.hidden=[8]"}), HasSubstr("16 to 65536"));
  EXPECT_THAT(error_of(kData, {"model.hidden=[65535]"}), HasSubstr("the nearest are 65520 and 65536"));
  EXPECT_NO_THROW(parse(kData, {"model.hidden=[16, 65536]"}));
  const std::string many = kData + "[modelets]\noutput_modelets = 2\n[sampling]\ncandidates = 10\ntop = 21\n";
  EXPECT_EQ(parse(many).sampling.top, 21u) << "top means nothing to uniform draws";
  EXPECT_THAT(error_of(many, {"sampling.mode=lsh"}),
              HasSubstr(":8: sampling.top is 21, more than the 20 candidates"));
  EXPECT_THAT(error_of(kData, {"sampling.rank=24"}), HasSubstr("must be a multiple of 16"));
  EXPECT_THAT(error_of(kData, {"sampling.group=24"}), HasSubstr("must be a multiple of 16"));
  EXPECT_THAT(error_of(kData, {"model.rare_trust=0.5"}), HasSubstr("which softmax does not have"));
  EXPECT_NO_THROW(parse(kData, {"model.rare_trust=0.5", "model.loss=sigmoid"}));
  EXPECT_THAT(error_of(kData, {"model.rare_trust=0", "model.loss=sigmoid"}), HasSubstr("0.01 to 1"));
  EXPECT_THAT(error_of(kData, {"model.exclude_own=true"}), HasSubstr("model.centroids = true"));
  EXPECT_THAT(error_of(kData, {"model.classifiers=-1", "model.centroids=true"}),
              HasSubstr("model.classifiers"));
  EXPECT_NO_THROW(parse(kData, {"model.classifiers=1", "model.centroids=true"}));
  EXPECT_NO_THROW(parse(kData, {"model.exclude_own=true", "model.centroids=true"}));
  EXPECT_THAT(error_of(kData, {"model.own_weight=2"}), HasSubstr("model.centroids = true"));
  EXPECT_THAT(error_of(kData, {"model.own_weight=2", "model.centroids=true", "model.exclude_own=true"}),
              HasSubstr("set one of them"));
  EXPECT_THAT(parse(kData, {"csv.text=title"}).csv.text, ::testing::ElementsAre("title"));
  EXPECT_THAT(parse(kData, {"csv.text="}).csv.text, ::testing::IsEmpty());
  EXPECT_THAT(error_of(kData, {"csv.text=title,body"}), HasSubstr("write several as csv.text=["));
  EXPECT_THAT(error_of(kData, {"exchange.codec=same"}), HasSubstr("nothing to be the same as"));
}

// Experiments and checkpoints of earlier releases have all keys of that time.
TEST(Experiment, RemovedKeysAreIgnoredOnlyWhereTheyHadNoEffect) {
  for (const char* rate : {"1.0", "2"})
    EXPECT_EQ(to_toml(parse(kData + "[model]\npairs = false\npairs_rate = " + rate +
                            "\n[sampling]\nlogq = false\n")),
              to_toml(parse(kData)));
  EXPECT_EQ(error_of(kData + "[model]\npairs = true\npairs_rate = 2\n"),
            "/runs/quickstart.toml:5: model.pairs was removed: linear classifiers learn more: set "
            "model.centroids = true and model.classifiers = 1");
  EXPECT_THAT(error_of(kData, {"model.pairs_rate=2"}), HasSubstr("model.pairs_rate was removed"));
  EXPECT_THAT(error_of(kData + "[sampling]\nlogq = \"yes\"\n"), HasSubstr("sampling.prior"));
  EXPECT_THAT(error_of(kData, {"sampling.logq=false"}), HasSubstr("sampling.logq was removed"));
  EXPECT_THAT(error_of(kData, {"exchange.codec=topk"}),
              HasSubstr("is 'topk'; it must be one of none, bf16, int8, int4"));
}

// A model can be used, whatever its training sent. What is trained from now on names what it sends.
TEST(Experiment, RemovedValuesAreReplacedOnlyInRecords) {
  const std::string text = kData + "[exchange]\ncodec = \"auto\"\ngradient_codec = \"topk\"\n";
  EXPECT_EQ(error_of(text), "/runs/quickstart.toml:5: exchange.codec is 'auto', which was removed: use int8");
  EXPECT_THAT(error_of(kData, {"exchange.gradient_codec=topk"}),
              HasSubstr("exchange.gradient_codec is 'topk', which was removed: use int4"));
  const Experiment::Exchange of_record = parse_recorded_experiment(text, "/runs/index.json").exchange;
  EXPECT_EQ(of_record.codec, CodecKind::kInt8);
  EXPECT_EQ(of_record.gradient_codec, CodecKind::kInt4);
}

TEST(Experiment, PatienceNeedsHeldOutSamples) {
  EXPECT_THAT(error_of(kData, {"train.patience=3"}), HasSubstr("train.patience needs samples to judge by"));
  EXPECT_NO_THROW(parse(kData, {"train.patience=3", "data.validation=0.1"}));
}

TEST(Experiment, DataIsRequired) {
  EXPECT_THAT(error_of(""), AllOf(StartsWith("/runs/quickstart.toml: data.train is missing"),
                                  HasSubstr("training samples")));
  EXPECT_THAT(error_of("[data]\ntrain = \"x\"\n"), HasSubstr("data.test is missing"));
  EXPECT_THAT(error_of("[data]\ntrain = \"x\"\ntest = \"\"\n"), HasSubstr("data.test is missing"));
  EXPECT_NO_THROW(parse("", {"data.train=x", "data.test=y"}));
}

TEST(Experiment, PrivateDataHasANameAndNoPath) {
  const Experiment e = parse(kData, {"data.train=private:ward-3_b"});
  EXPECT_TRUE(is_private(e));
  EXPECT_EQ(private_name(e), "ward-3_b");
  EXPECT_TRUE(sends_sums(e));
  EXPECT_EQ(parse_experiment(to_toml(e), "/elsewhere/x.toml").data.train, "private:ward-3_b");
  EXPECT_FALSE(is_private(parse(kData)));
  EXPECT_FALSE(sends_sums(parse(kData)));
  EXPECT_FALSE(sends_sums(parse(kData, {"data.train=private:a", "cluster.privacy=rows"})));
  for (const char* const name : {"", "a/b", "../a", "a b"})
    EXPECT_THAT(error_of(kData, {"data.train=private:" + std::string(name)}), HasSubstr("letters, digits")) << name;
  EXPECT_THAT(error_of(kData, {"data.train=private:" + std::string(65, 'a')}), HasSubstr("letters, digits"));
}

TEST(Experiment, WhatNeedsTheSamplesOfAllIsRefusedForPrivateData) {
  const std::string data = "data.train=private:clinic";
  EXPECT_THAT(error_of(kData, {data, "model.centroids=true"}), HasSubstr("model.centroids is computed of all"));
  EXPECT_THAT(error_of(kData, {data, "model.classifiers=1"}), HasSubstr("model.classifiers is computed of all"));
  EXPECT_THAT(error_of(kData, {data, "model.towers=2", "model.loss=sigmoid"}), HasSubstr("model.towers are not trained"));
  for (const char* const format : {"text", "csv", "words"})
    EXPECT_THAT(error_of(kData, {data, std::string("data.format=") + format}), HasSubstr("modelet data prepare --like"));
}

TEST(Experiment, NothingButNoisySumsMayTellOfSamples) {
  const std::string data = "data.train=private:clinic", noise = "cluster.noise=1", clip = "cluster.clip=2";
  EXPECT_NO_THROW(parse(kData, {data, noise, clip}));
  EXPECT_THAT(error_of(kData, {noise, clip}), HasSubstr("cluster.noise is for the masked sums of private data"));
  EXPECT_THAT(error_of(kData, {clip}), HasSubstr("cluster.clip is for the masked sums of private data"));
  EXPECT_THAT(error_of(kData, {data, noise, clip, "cluster.privacy=rows"}), HasSubstr("masked sums"));
  EXPECT_THAT(error_of(kData, {data, noise}), HasSubstr("in units of cluster.clip, which is 0"));
  EXPECT_THAT(error_of(kData, {data, "cluster.noise=0.001", clip}), HasSubstr("take at least 0.01"));
  EXPECT_THAT(error_of(kData, {data, noise, clip, "data.validation=0.1"}), HasSubstr("set data.validation = 0"));
  EXPECT_THAT(error_of(kData, {data, noise, clip, "sampling.mode=lsh"}), HasSubstr("means of owners' queries"));
  EXPECT_THAT(error_of(kData, {data, "cluster.owners_per_round=1"}), HasSubstr("take at least 2"));
}

TEST(Experiment, PathsAreBoundedAndPlain) {
  EXPECT_THAT(error_of("[data]\ntrain = \"a\\u0000b\"\n"), HasSubstr("control character"));
  EXPECT_THAT(error_of("[data]\ntrain = \"" + std::string(5000, 'x') + "\"\n"), HasSubstr("5000 bytes long"));
}

TEST(Experiment, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_THAT(error_of(kData + "[train\n"), StartsWith("/runs/quickstart.toml:4:"));
  EXPECT_THAT(error_of(kData + "[train]\nbatch = 1\nbatch = 2\n"), StartsWith("/runs/quickstart.toml:6:"));
  EXPECT_THAT(error_of(kData + "[train]\nbatch =\n"), StartsWith("/runs/quickstart.toml:5:"));
  EXPECT_THAT(error_of("[.train]\n"),
              StartsWith("/runs/quickstart.toml:1:"));  // an assertion in debug builds of toml++ 3.3
  EXPECT_THAT(error_of("\xff\xfe"), StartsWith("/runs/quickstart.toml:1:"));
}

TEST(Experiment, SizeIsLimited) {
  EXPECT_THAT(error_of("#" + std::string(2 << 20, 'x')), HasSubstr("more than the limit"));
}

TEST(Experiment, OverridesWinAndAreChecked) {
  const Experiment e = parse(
      kData + "[train]\nepochs = 2\n",
      {"train.epochs=5", " train.learning_rate = 1e-2", "model.hidden=[128,64]",
       "data.labels=names of labels.txt", "model.loss=\"sigmoid\"", "exchange.lz4=true", "train.epochs=6"});
  EXPECT_EQ(e.train.epochs, 6u);
  EXPECT_EQ(e.train.learning_rate, 1e-2f);
  EXPECT_THAT(e.model.hidden, ElementsAre(128, 64));
  EXPECT_EQ(e.model.loss, Loss::kSigmoid);
  EXPECT_TRUE(e.exchange.lz4);
  EXPECT_EQ(e.data.labels, (std::filesystem::current_path() / "names of labels.txt").string())
      << "a path on the command line is relative to where the command is typed";

  EXPECT_EQ(error_of(kData, {"train.epoch=3"}),
            "--set 'train.epoch=3': unknown key 'train.epoch'; did you mean 'train.epochs'?");
  EXPECT_THAT(error_of(kData, {"train.epochs"}), HasSubstr("section.key=value"));
  EXPECT_THAT(error_of(kData, {"train.epochs="}), HasSubstr("not valid TOML"));
  EXPECT_THAT(error_of(kData, {"train.epochs=many"}),
              HasSubstr("--set 'train.epochs=many': the value is not valid TOML"));
  EXPECT_THAT(error_of(kData, {"train.epochs=0"}), HasSubstr("1 to 100000"));
  EXPECT_THAT(error_of(kData, {"train.epochs=\"3\""}), HasSubstr("whole number"));
  EXPECT_THAT(error_of(kData, {"train.epochs=3\nseed=4"}), HasSubstr("section.key=value"));
  EXPECT_THAT(error_of(kData, {"model.loss=\"sigmoid"}), HasSubstr("not valid TOML"));
}

TEST(Experiment, PathsThatCannotBeWrittenDownAreRefused) {
  const std::string text = "[data]\ntrain = \"a b\"\ntest = \"/absolute\"\n";
  EXPECT_EQ(parse_experiment(text, "/m\xc3\xbcller's \"new\" data/small.toml").data.train,
            "/m\xc3\xbcller's \"new\" data/a b");
  EXPECT_THAT(
      [&] { parse_experiment(text, "/latin-\xfc/small.toml"); },
      testing::ThrowsMessage<UsageError>(testing::AllOf(HasSubstr("data.train"), HasSubstr("UTF-8"))));
}

TEST(Experiment, LoadNamesTheFile) {
  EXPECT_THAT(
      [] { load_experiment("/nowhere/x.toml"); },
      testing::ThrowsMessage<UsageError>(AllOf(HasSubstr("/nowhere/x.toml"), HasSubstr("No such file"))));
  const auto path = std::filesystem::temp_directory_path() / "modelet_experiment_test.toml";
  std::ofstream(path) << "[data]\ntrain = \"a\"\ntest = \"b\"\n";
  EXPECT_EQ(load_experiment(path).data.train, (path.parent_path() / "a").string());
  std::filesystem::remove(path);
}

TEST(Experiment, TunedValuesAreDefaults) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path(),
                              path = folder / "modelet_experiment_tuned.toml";
  const std::filesystem::path tuned = folder / "modelet_experiment_tuned.tuned.toml";
  EXPECT_EQ(tuned_file(path), tuned);
  std::ofstream(path) << "[data]\ntrain = \"a\"\ntest = \"b\"\n[sampling]\nbits = 11\n";
  std::ofstream(tuned) << "[sampling]\nbits = 5\ntables = 6\ncandidates = 7\n";
  const Experiment e = load_experiment(path, {"sampling.tables=12"});
  EXPECT_EQ(e.sampling.bits, 11u) << "the experiment file wins";
  EXPECT_EQ(e.sampling.tables, 12u) << "an override wins";
  EXPECT_EQ(e.sampling.candidates, 7u);
  EXPECT_EQ(e.data.train, (folder / "a").string());
  for (const char* bad : {"[train]\nepochs = 1\n", "[sampling]\nbits = 3\n[train]\nepochs = 1\n", "", "x"}) {
    std::ofstream(tuned) << bad;
    EXPECT_THAT([&] { load_experiment(path); },
                testing::ThrowsMessage<UsageError>(HasSubstr(tuned.string())));
  }
  std::ofstream(tuned) << "[sampling]\n\nbitz = 3\n";
  EXPECT_THAT([&] { load_experiment(path); },
              testing::ThrowsMessage<UsageError>(HasSubstr(tuned.string() + ":3")));
  std::filesystem::remove(path);
  std::filesystem::remove(tuned);
}

TEST(Experiment, TomlRoundTripsExactly) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    Experiment e = parse(kData);
    e.data.train = "/a \"quoted\"\\back'slash\xc3\xa9";
    e.model.hidden = {16 * (rng.below(4096) + 1), 16 * (rng.below(4096) + 1)};
    e.train.seed = rng.next() >> 11;
    e.train.learning_rate = 1e-6f + 10 * rng.uniform();
    e.optimizer.epsilon = 1e-12f + rng.uniform() * 1e-9f;
    e.optimizer.beta2 = 0.999999f;
    e.optimizer.clip = rng.uniform() * 1e6f;
    e.exchange.timeout_seconds = 0.1f;
    e.sampling.centre = round % 2;
    e.train.schedule = static_cast<ScheduleKind>(rng.below(4));
    const std::string text = to_toml(e);
    const Experiment back = parse_experiment(text, "/elsewhere/y.toml");
    EXPECT_EQ(back.data.train, e.data.train);
    EXPECT_EQ(back.model.hidden, e.model.hidden);
    EXPECT_EQ(back.train.seed, e.train.seed);
    EXPECT_EQ(back.train.learning_rate, e.train.learning_rate);
    EXPECT_EQ(back.optimizer.epsilon, e.optimizer.epsilon);
    EXPECT_EQ(back.optimizer.beta2, e.optimizer.beta2);
    EXPECT_EQ(back.optimizer.clip, e.optimizer.clip);
    EXPECT_EQ(back.exchange.timeout_seconds, e.exchange.timeout_seconds);
    EXPECT_EQ(back.train.schedule, e.train.schedule);
    ASSERT_EQ(to_toml(back), text);
  }
}

TEST(Experiment, DefaultsAreValid) {
  // Every default, given explicitly, is accepted and changes nothing.
  const std::string before = to_toml(parse(kData));
  for (const ExperimentField& field : experiment_fields()) {
    if (field.key == "data.train" || field.key == "data.test") continue;
    EXPECT_EQ(to_toml(parse(kData, {field.key + "=" + field.default_value})), before) << field.key;
  }
}

TEST(Experiment, MutatedTextNeverDoesMoreThanFail) {
  const std::string original = to_toml(parse(kData));
  Rng rng(11);
  int accepted = 0;
  constexpr int kRounds = 8000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = original;
    for (uint32_t edits = 1 + rng.below(4); edits > 0; --edits) {
      const size_t at = rng.below(static_cast<uint32_t>(text.size()));
      switch (rng.below(4)) {
        case 0:
          text[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          text.erase(at, rng.below(20));
          break;
        case 2:
          text.insert(at, 1, "[]{}=\"'.,\n#\\-+eE0"[rng.below(17)]);
          break;
        default:
          text.insert(at, text.substr(rng.below(static_cast<uint32_t>(text.size())), rng.below(30)));
      }
    }
    try {
      // What is accepted is a valid experiment: it survives its own round trip.
      const std::string written = to_toml(parse(text));
      ASSERT_EQ(to_toml(parse(written)), written);
      ++accepted;
    } catch (const UsageError&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds);
}

}  // namespace
}  // namespace modelet
