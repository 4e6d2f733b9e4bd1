// modelet._modelet: what Python sees of the engine. The interface for users is in python/modelet; this module
// only passes on arrays, events and errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "base/version.h"
#include "python/native/model.h"
#include "python/native/recipe.h"
#include "python/native/samples.h"
#include "python/native/training.h"

namespace nb = nanobind;
using namespace nb::literals;
using modelet::TemporaryFolder;
using modelet::python::Model;
using modelet::python::Samples;

namespace {

// Errors of the system that no function of the engine has put into words, such as a folder that may not be entered.
void translate_system_error(const std::exception_ptr& thrown, void* type) {
  const auto fail = [&](const std::string& text) {
    PyErr_SetString(static_cast<PyObject*>(type), modelet::printable(text).c_str());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(error.path1().string() + ": " + error.code().message());
  } catch (const std::system_error& error) {
    fail(error.what());
  }
}

}  // namespace

NB_MODULE(_modelet, m) {
#ifdef NDEBUG
  nb::set_leak_warnings(false);  // of objects that live until Python ends, which is the user's affair
#endif
  m.attr("__version__") = modelet::kVersion;
  // The type that is registered last is tried first, so the derived type comes last.
  const auto error = nb::exception<modelet::Error>(m, "Error", PyExc_RuntimeError);
  nb::register_exception_translator(translate_system_error, error.ptr());
  nb::exception<modelet::UsageError>(m, "UsageError", PyExc_ValueError);

  nb::class_<TemporaryFolder>(m, "TemporaryFolder", "A folder that belongs to the process that made it.")
      .def(
          "__init__",
          [](TemporaryFolder* folder, const std::string& purpose, const std::filesystem::path& parent) {
            new (folder) TemporaryFolder(purpose, parent);
          },
          "purpose"_a, "parent"_a)
      .def_prop_ro("path", &TemporaryFolder::path)
      .def("remove", &TemporaryFolder::remove)
      .def_static("remove_left_behind", &TemporaryFolder::remove_left_behind, "parent"_a);

  nb::class_<Samples>(m, "Samples", "Sparse samples in arrays of numpy, which are not copied.")
      .def(nb::init<uint64_t, uint64_t, modelet::python::Array<uint64_t>, modelet::python::Array<uint32_t>,
                    modelet::python::Array<float>, modelet::python::Array<uint64_t>,
                    modelet::python::Array<uint32_t>>(),
           "features"_a, "labels"_a, "offsets"_a, "ids"_a, "values"_a, "label_offsets"_a, "label_ids"_a);

  m.def(
      "choose", &modelet::python::choose, "keys"_a, "train"_a, "seconds"_a.none(), "on_event"_a,
      nb::sig(
          "def choose(keys: collections.abc.Sequence[str], train: Samples, seconds: float | None, on_event: "
          "collections.abc.Callable[[dict[str, typing.Any]], object]) -> str"),
      "Chooses the keys of an experiment that are not given, and returns it as a file's text.");
  m.def(
      "train", &modelet::python::train, "keys"_a, "train"_a, "test"_a.none(), "out"_a, "resume"_a,
      "on_event"_a,
      nb::sig(
          "def train(keys: collections.abc.Sequence[str], train: Samples, test: Samples | None, out: str, resume: "
          "str, on_event: collections.abc.Callable[[dict[str, typing.Any]], object]) -> None"),
      "Trains on samples in memory; checkpoints go to the folder `out`.");

  m.attr("HISTORY") = modelet::shard::Columns::kHistory;

  nb::class_<Model>(m, "Model", "A trained model.")
      .def(nb::init<const std::string&, unsigned>(), "path"_a, "threads"_a = 0,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("folder", &Model::folder)
      .def_prop_ro("experiment", &Model::experiment)
      .def_prop_ro("step", &Model::step)
      .def_prop_ro("features", &Model::features)
      .def_prop_ro("labels", &Model::labels)
      .def_prop_ro("width", &Model::width)
      .def_prop_ro("reading", &Model::reading)
      .def_prop_ro("columns", &Model::columns)
      .def_prop_ro("takes_histories", &Model::takes_histories)
      .def_prop_ro("label_names", &Model::label_names)
      .def_prop_ro("terms", &Model::terms)
      .def("best", &Model::best, "samples"_a, "k"_a, "among"_a.none(),
           nb::sig("def best(self, samples: Samples, k: int, among: collections.abc.Sequence[int] | None) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32]]"))
      .def(
          "explain", &Model::explain, "samples"_a, "labels"_a,
          nb::sig(
              "def explain(self, samples: Samples, labels: collections.abc.Sequence[int]) -> "
              "list[tuple[float, float, numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.float32], "
              "numpy.typing.NDArray[numpy.float64]]]"))
      .def("examples", &Model::examples, "samples"_a, "labels"_a, "most"_a,
           nb::sig("def examples(self, samples: Samples, labels: collections.abc.Sequence[int], most: int) -> "
                   "list[tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.float32]]]"))
      .def("scores", &Model::scores, "samples"_a,
           nb::sig("def scores(self, samples: Samples) -> numpy.typing.NDArray[numpy.float32]"))
      .def("hidden", &Model::hidden, "samples"_a,
           nb::sig("def hidden(self, samples: Samples) -> numpy.typing.NDArray[numpy.float32]"))
      .def("read", &Model::read, "path"_a,
           nb::sig("def read(self, path: str) -> tuple[numpy.typing.NDArray[typing.Any], ...]"))
      .def("add_events", &Model::add_events, "path"_a)
      .def("events", &Model::events)
      .def("encode_texts", &Model::encode_texts, "texts"_a,
           nb::sig("def encode_texts(self, texts: collections.abc.Sequence[bytes]) -> "
                   "tuple[numpy.typing.NDArray[typing.Any], ...]"))
      .def(
          "encode_rows", &Model::encode_rows, "rows"_a,
          nb::sig("def encode_rows(self, rows: collections.abc.Sequence[collections.abc.Sequence[bytes]]) -> "
                  "tuple[numpy.typing.NDArray[typing.Any], ...]"))
      .def("places", &Model::places, "named"_a, "where"_a)
      .def("row_features", &Model::row_features,
           nb::sig("def row_features(self) -> numpy.typing.NDArray[numpy.uint32]"))
      .def_prop_ro("towers", &Model::towers)
      .def("shares", &Model::shares, nb::sig("def shares(self) -> numpy.typing.NDArray[numpy.float32]"))
      .def("tower_labels", &Model::tower_labels, "tower"_a,
           nb::sig("def tower_labels(self, tower: int) -> numpy.typing.NDArray[numpy.uint32]"))
      .def(
          "layers", &Model::layers, "tower"_a,
          nb::sig(
              "def layers(self, tower: int) -> list[tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]]"))
      .def("pairs", &Model::pairs,
           nb::sig("def pairs(self) -> tuple[numpy.typing.NDArray[typing.Any], ...] | None"))
      .def("pause", &Model::pause)
      .def("go_on", &Model::go_on)
      .def("words", &Model::words)
      .def("nearest_words", &Model::nearest_words, "word"_a, "k"_a);
}
