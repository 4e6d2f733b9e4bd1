// The products of the output layer against oneDNN's matmul: one thread, the same matrices, in alternation.
//
//   sudo apt install libdnnl-dev && ninja -C build/release gemm_vs_onednn
//   OMP_NUM_THREADS=1 build/release/experiments/bench/gemm_vs_onednn [SECONDS a figure, default 2]
//
// Ratios above 1: ours is faster. Ours is called for as many rows at a time as the layers do. oneDNN gets the
// matrices as they lie, and may not reorder them beforehand: in a step every one of them is new.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/rng.h"
#include "shard/kernels/kernels.h"

namespace {

using modelet::AlignedVector;
using modelet::Stopwatch;
namespace kernels = modelet::shard::kernels;

// C [m, n] = A [m, k] * B [k, n]. `a_transposed`: A lies in memory as [k, m]. piece: rows of one of our
// calls.
struct Product {
  const char* name;
  size_t m, n, k;
  bool a_transposed;
  size_t piece;
};

void multiply(kernels::Gemm gemm, size_t piece) {
  const kernels::Gemm whole = gemm;
  for (size_t row = 0; row < whole.m; row += piece) {
    gemm.m = std::min(piece, whole.m - row);
    gemm.a = whole.a + row * whole.a_row;
    gemm.c = whole.c + row * whole.c_row;
    kernels::gemm(gemm);
  }
}

class Onednn {
 public:
  explicit Onednn(const Product& p, float* a, float* b, float* c) {
    const auto dim = [](size_t n) { return static_cast<dnnl::memory::dim>(n); };
    const auto type = dnnl::memory::data_type::f32;
    const dnnl::memory::dims a_strides =
        p.a_transposed ? dnnl::memory::dims{1, dim(p.m)} : dnnl::memory::dims{dim(p.k), 1};
    const dnnl::memory::desc a_desc({dim(p.m), dim(p.k)}, type, a_strides);
    const dnnl::memory::desc b_desc({dim(p.k), dim(p.n)}, type, dnnl::memory::dims{dim(p.n), 1});
    const dnnl::memory::desc c_desc({dim(p.m), dim(p.n)}, type, dnnl::memory::dims{dim(p.n), 1});
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

// Best CPU seconds of each, alternating for about `seconds`: other processes slow single calls down, never
// speed one up.
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

void compare(const Product& p, double seconds) {
  AlignedVector<float> a = random_values(p.m * p.k), b = random_values(p.k * p.n), ours(p.m * p.n),
                       theirs(p.m * p.n);
  Onednn onednn(p, a.data(), b.data(), theirs.data());
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
  const auto [our_seconds, their_seconds] = race(
      seconds, [&] { multiply(gemm, p.piece); }, [&] { onednn.run(); });
  float difference = 0;
  for (size_t i = 0; i < ours.size(); ++i) difference = std::max(difference, std::abs(ours[i] - theirs[i]));
  const double operations =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  std::printf("%-16s %5zu x %4zu x %5zu %10.1f %10.1f %8.2f %12.1e\n", p.name, p.m, p.n, p.k,
              operations / our_seconds / 1e9, operations / their_seconds / 1e9, their_seconds / our_seconds,
              static_cast<double>(difference));
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  constexpr size_t kBatch = 256, kActive = 4000;
  std::printf("fp32, one thread, %s        GFLOP/s ours     oneDNN    ratio   difference\n",
              kernels::instruction_set().c_str());
  for (const size_t width : {size_t{128}, size_t{512}})
    for (const Product& product : {Product{"logits", kActive, kBatch, width, false, 96},
                                   Product{"hidden gradient", kBatch, width, kActive, true, 66},
                                   Product{"gradient rows", kActive, width, kBatch, false, 96}})
      compare(product, seconds);
}
