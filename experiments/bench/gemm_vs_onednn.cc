// The products of the output layer beside oneDNN's matmul: one thread, the same matrices, in turn.
//
//   sudo apt install libdnnl-dev && ninja -C build/release gemm_vs_onednn
//   OMP_NUM_THREADS=1 build/release/experiments/bench/gemm_vs_onednn [SECONDS a figure, default 2]
//
// A ratio above 1 means that our product is faster. It is called for as many rows at a time as in the layers.
// oneDNN gets the matrices in their usual order, and may not reorder them beforehand, because in a training
// step all of them are new.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/array/aligned.h"
#include "base/array/bf16.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/simd/instruction_set.h"

namespace {

using modelet::AlignedVector;
using modelet::Bf16;
using modelet::Stopwatch;
namespace kernels = modelet::shard::kernels;

// C [m, n] = A [m, k] * B [k, n]. `a_transposed`: A is [k, m] in memory. `piece`: rows of C that one call of
// our product computes.
struct Product {
  const char* name;
  size_t m, n, k;
  bool a_transposed;
  size_t piece;
};

template <class Element>
void multiply(kernels::GemmOf<Element> gemm, size_t piece) {
  constexpr size_t kWidth = std::is_same_v<Element, Bf16> ? 2 : 1;  // elements for each k
  const kernels::GemmOf<Element> whole = gemm;
  for (size_t row = 0; row < whole.m; row += piece) {
    gemm.m = std::min(piece, whole.m - row);
    gemm.a = whole.a + kWidth * row * whole.a_row;
    gemm.c = whole.c + row * whole.c_row;
    kernels::gemm(gemm);
  }
}

class Onednn {
 public:
  Onednn(const Product& p, dnnl::memory::data_type type, void* a, void* b, float* c) {
    const auto dim = [](size_t n) { return static_cast<dnnl::memory::dim>(n); };
    const dnnl::memory::dims a_strides =
        p.a_transposed ? dnnl::memory::dims{1, dim(p.m)} : dnnl::memory::dims{dim(p.k), 1};
    const dnnl::memory::desc a_desc({dim(p.m), dim(p.k)}, type, a_strides);
    const dnnl::memory::desc b_desc({dim(p.k), dim(p.n)}, type, dnnl::memory::dims{dim(p.n), 1});
    const dnnl::memory::desc c_desc({dim(p.m), dim(p.n)}, dnnl::memory::data_type::f32,
                                    dnnl::memory::dims{dim(p.n), 1});
    matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), engine_));
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a_desc, engine_, a)},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(b_desc, engine_, b)},
                  {DNNL_ARG_DST, dnnl::memory(c_desc, engine_, c)}};
  }
  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

AlignedVector<float> random_values(size_t count) {
  AlignedVector<float> values(count);
  modelet::Rng rng(1);
  for (float& value : values) value = rng.uniform() - 0.5f;
  return values;
}

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The least CPU seconds of a call of each. They run in turn for about `seconds`. Other processes slow some
// calls down, but never speed one up.
std::pair<double, double> race(double seconds, const std::function<void()>& ours,
                               const std::function<void()>& theirs) {
  const auto time = [](const std::function<void()>& call) {
    const double start = thread_seconds();
    call();
    return thread_seconds() - start;
  };
  ours();
  theirs();
  std::pair<double, double> best{time(ours), time(theirs)};
  for (const Stopwatch all; all.seconds() < seconds;) {
    best.first = std::min(best.first, time(ours));
    best.second = std::min(best.second, time(theirs));
  }
  return best;
}

void report(const Product& p, const std::pair<double, double>& seconds, const AlignedVector<float>& ours,
            const AlignedVector<float>& theirs) {
  float difference = 0;
  for (size_t i = 0; i < ours.size(); ++i) difference = std::max(difference, std::abs(ours[i] - theirs[i]));
  const double operations =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  std::printf("%-16s %5zu x %4zu x %5zu %10.1f %10.1f %8.2f %12.1e\n", p.name, p.m, p.n, p.k,
              operations / seconds.first / 1e9, operations / seconds.second / 1e9,
              seconds.second / seconds.first, static_cast<double>(difference));
}

void compare_fp32(const Product& p, double seconds) {
  AlignedVector<float> a = random_values(p.m * p.k), b = random_values(p.k * p.n), ours(p.m * p.n),
                       theirs(p.m * p.n);
  Onednn onednn(p, dnnl::memory::data_type::f32, a.data(), b.data(), theirs.data());
  const kernels::Gemm gemm{.m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .a = a.data(),
                           .a_row = p.a_transposed ? 1 : p.k,
                           .a_col = p.a_transposed ? p.m : 1,
                           .b = b.data(),
                           .b_row = p.n,
                           .c = ours.data(),
                           .c_row = p.n};
  report(p,
         race(
             seconds, [&] { multiply(gemm, p.piece); }, [&] { onednn.run(); }),
         ours, theirs);
}

AlignedVector<Bf16> narrowed(const AlignedVector<float>& values) {
  AlignedVector<Bf16> narrow(values.size());
  kernels::narrow(values.data(), narrow.data(), values.size());
  return narrow;
}

// Puts rows 2i and 2i + 1 of [rows, cols] side by side.
AlignedVector<Bf16> paired(const AlignedVector<float>& values, size_t rows, size_t cols) {
  AlignedVector<Bf16> pairs(values.size());
  for (size_t r = 0; r < rows; r += 2)
    kernels::pack_pairs(&values[r * cols], &values[(r + 1) * cols], &pairs[r * cols], cols);
  return pairs;
}

// oneDNN gets the plain matrices. Our product gets the pairs that the layers keep. Neither figure includes
// the packing.
void compare_bf16(const Product& p, double seconds) {
  const AlignedVector<float> a = random_values(p.m * p.k), b = random_values(p.k * p.n);
  AlignedVector<Bf16> a_plain = narrowed(a), b_plain = narrowed(b);
  const AlignedVector<Bf16> a_ours = p.a_transposed ? paired(a, p.k, p.m) : a_plain,
                            b_ours = paired(b, p.k, p.n);
  AlignedVector<float> ours(p.m * p.n), theirs(p.m * p.n);
  Onednn onednn(p, dnnl::memory::data_type::bf16, a_plain.data(), b_plain.data(), theirs.data());
  const kernels::PairGemm gemm{.m = p.m,
                               .n = p.n,
                               .k = p.k / 2,
                               .a = a_ours.data(),
                               .a_row = p.a_transposed ? 1 : p.k / 2,
                               .a_col = p.a_transposed ? p.m : 1,
                               .b = b_ours.data(),
                               .b_row = p.n,
                               .c = ours.data(),
                               .c_row = p.n};
  report(p,
         race(
             seconds, [&] { multiply(gemm, p.piece); }, [&] { onednn.run(); }),
         ours, theirs);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  constexpr size_t kBatch = 256, kActive = 4000;
  const std::pair<const char*, void (*)(const Product&, double)> precisions[] = {{"fp32", compare_fp32},
                                                                                 {"bf16", compare_bf16}};
  for (const auto& [precision, compare] : precisions) {
    std::printf("%s, one thread, %s        GFLOP/s ours     oneDNN    ratio   difference\n", precision,
                kernels::instruction_set().c_str());
    for (const size_t width : {size_t{128}, size_t{512}, size_t{768}})
      for (const Product& product : {Product{"logits", kActive, kBatch, width, false, 96},
                                     Product{"hidden gradient", kBatch, width, kActive, true, 64},
                                     Product{"gradient rows", kActive, width, kBatch, false, 96}})
        compare(product, seconds);
  }
}
