// Codecs "int8" and "int4": a step per row and a small whole number per value. A row without negative values,
// as ReLU makes them, uses all numbers for its half of the line: 0..255 or 0..15 instead of -127..127 or
// -7..7.
//
// Values are rounded to the nearest, or stochastically, so that the expected decoded value is the value
// itself (as in QSGD, Alistarh et al., NeurIPS 2017, with the row's maximum as norm). Zeros are left out
// where that saves bytes: what ReLU cut off, and rows without labels.
//
// Layout: docs/wire_format.md.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/simd_targets.h"
#include "comm/codecs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/codec_int.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#ifndef MODELET_COMM_CODEC_INT_ONCE  // what does not depend on the instruction set
#define MODELET_COMM_CODEC_INT_ONCE
namespace modelet::comm {

enum Layout : uint8_t { kDense = 0, kZerosLeftOut = 1 };

template <int kBits>
struct Numbers {
  static constexpr int kSigned = (1 << (kBits - 1)) - 1, kUnsigned = (1 << kBits) - 1;  // largest ones
  static constexpr int largest(bool negative) { return negative ? kSigned : kUnsigned; }
  // What a decoder may read: the two's complement has one more below zero, which no encoder writes.
  static constexpr int reach(bool negative) { return negative ? kSigned + 1 : kUnsigned; }
  static constexpr size_t bytes(size_t count) { return (count * kBits + 7) / 8; }
};

constexpr size_t bitmap_bytes(size_t cols) { return (cols + 7) / 8; }

// A row's step; its sign bit says that the row has no negative value.
struct RowStep {
  Bf16 stored;
  float size() const { return std::abs(to_float(stored)); }
  bool negative() const { return (stored.bits & 0x8000) == 0; }
};

// Whether all numbers that may be read stand for finite values.
template <int kBits>
bool is_safe(RowStep step) {
  return std::isfinite(step.size() * static_cast<float>(Numbers<kBits>::reach(step.negative())));
}

inline RowStep load_step(const std::byte* steps, size_t row) {
  RowStep step;
  std::memcpy(&step, steps + row * sizeof(step), sizeof(step));
  return step;
}

// What a look at all rows tells.
struct Sizes {
  size_t dense = 0, sparse = 0;  // bytes of the rows in either layout
  size_t bad_row = ~size_t{0};   // one that holds a value that is not finite
};

constexpr float kFixed = 65536;  // fixed-point one, for 16 random bits
constexpr int kOffset = 128;     // makes fixed-point values positive
constexpr size_t kChunk = 64;    // numbers made, or read, at a time: as many as bits in a word

inline uint64_t load_bits(const std::byte* in, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, in, bytes);
  return word;
}

// The row's largest magnitude over the largest number, rounded up so that this number is enough; but not so
// far that a decoder could meet an infinity, so next to the limits of floats values are cut off. 0 for a row
// below 3e-32, whose reciprocal would overflow.
template <int kBits>
RowStep step_of(float largest, bool negative) {
  const auto most = static_cast<float>(Numbers<kBits>::largest(negative));
  Bf16 step{static_cast<uint16_t>((std::bit_cast<uint32_t>(largest / most) + 0xffff) >> 16)};
  if (!std::isfinite(kFixed * kOffset / to_float(step))) return {};
  if (!negative) step.bits |= 0x8000;
  while (!is_safe<kBits>({step})) --step.bits;
  return {step};
}

}  // namespace modelet::comm
#endif

HWY_BEFORE_NAMESPACE();
namespace modelet::comm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: what the last values of a row are copied to.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;

// Writes the steps of all rows, and says how long either layout would be.
template <int kBits>
Sizes scan_rows(ConstMatrix values, std::byte* steps) {
  const Floats f;
  const Ints i32;
  const size_t lanes = hn::Lanes(f), whole = values.cols / lanes * lanes;
  Sizes sizes;
  for (size_t r = 0; r < values.rows; ++r) {
    const float* row = values.row(r);
    // As integers, because bit patterns of magnitudes order like the magnitudes, and NaN comes out on top.
    auto largest = hn::Zero(i32), signs = hn::Zero(i32);
    size_t zeros = 0;
    const auto add = [&](auto x) HWY_ATTR {
      const auto magnitude = hn::BitCast(i32, hn::Abs(x));
      const auto zero = hn::Eq(magnitude, hn::Zero(i32));
      largest = hn::Max(largest, magnitude);
      signs = hn::Or(signs, hn::IfThenZeroElse(zero, hn::BitCast(i32, x)));  // -0 is no negative value
      zeros += hn::CountTrue(i32, zero);
    };
    for (size_t c = 0; c < whole; c += lanes) add(hn::LoadU(f, row + c));
    if (whole < values.cols) {
      std::array<float, 16> last{};
      std::copy(row + whole, row + values.cols, last.begin());
      add(hn::LoadU(f, last.data()));
      zeros -= whole + lanes - values.cols;
    }
    const float most = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(i32, largest)));
    if (!std::isfinite(most)) {
      sizes.bad_row = r;
      return sizes;
    }
    const RowStep step = step_of<kBits>(most, !hn::AllFalse(i32, hn::Lt(signs, hn::Zero(i32))));
    std::memcpy(steps + r * sizeof(step), &step, sizeof(step));
    if (step.size() == 0) continue;
    sizes.dense += Numbers<kBits>::bytes(values.cols);
    sizes.sparse += bitmap_bytes(values.cols) + Numbers<kBits>::bytes(values.cols - zeros);
  }
  return sizes;
}

// The numbers of `count` values, rounded up to whole vectors: floor(value / step + noise), noise in [0, 1);
// to the nearest with a half. The row's place in the random stream is `key`, each value takes 16 random bits.
// Mixer: "lowbias32" (Wellons, 2018). The row's largest value may come out a hair too large, hence the
// limits.
template <bool kStochastic>
HWY_INLINE void make_numbers(const float* in, float scale, int low, int high, uint32_t key, size_t count,
                             uint8_t* numbers) {
  const Floats f;
  const Ints i32;
  const Words u32;
  const Bytes u8;
  for (size_t i = 0; i < count; i += hn::Lanes(f)) {
    auto noise = hn::Set(u32, 0x8000);
    if constexpr (kStochastic) {
      auto x = hn::Add(hn::Iota(u32, static_cast<uint32_t>(i)), hn::Set(u32, key));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u32, 0x7feb352du));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u32, 0x846ca68bu));
      noise = hn::ShiftRight<16>(x);
    }
    const auto fixed =
        hn::ConvertTo(i32, hn::MulAdd(hn::LoadU(f, in + i), hn::Set(f, scale), hn::Set(f, kOffset * kFixed)));
    const auto number =
        hn::Sub(hn::ShiftRight<16>(hn::Add(fixed, hn::BitCast(i32, noise))), hn::Set(i32, kOffset));
    const auto limited = hn::Min(hn::Max(number, hn::Set(i32, low)), hn::Set(i32, high));
    hn::StoreU(hn::TruncateTo(u8, hn::BitCast(u32, limited)), u8, numbers + i);
  }
}

// Half bytes of `count` numbers to (count + 1) / 2 bytes, rounded up to whole vectors.
HWY_INLINE void pack_halves(const uint8_t* numbers, size_t count, std::byte* out) {
  const hn::CappedTag<uint16_t, 8> u16;
  const hn::Rebind<uint8_t, decltype(u16)> u8;
  for (size_t i = 0; i < count; i += 2 * hn::Lanes(u16)) {
    const auto pairs = hn::LoadU(u16, reinterpret_cast<const uint16_t*>(numbers + i));
    const auto low = hn::And(pairs, hn::Set(u16, 0x0f)),
               high = hn::And(hn::ShiftRight<4>(pairs), hn::Set(u16, 0xf0));
    hn::StoreU(hn::TruncateTo(u8, hn::Or(low, high)), u8, reinterpret_cast<uint8_t*>(out + i / 2));
  }
}

HWY_INLINE void unpack_halves(const std::byte* in, size_t count, uint8_t* numbers) {
  const hn::CappedTag<uint16_t, 8> u16;
  const hn::Rebind<uint8_t, decltype(u16)> u8;
  for (size_t i = 0; i < count; i += 2 * hn::Lanes(u16)) {
    const auto bytes = hn::PromoteTo(u16, hn::LoadU(u8, reinterpret_cast<const uint8_t*>(in + i / 2)));
    const auto high = hn::ShiftLeft<4>(hn::And(bytes, hn::Set(u16, 0xf0)));
    hn::StoreU(hn::Or(hn::And(bytes, hn::Set(u16, 0x0f)), high), u16,
               reinterpret_cast<uint16_t*>(numbers + i));
  }
}

// A bit for each number of a chunk that is not zero.
HWY_INLINE uint64_t nonzero(const uint8_t* numbers) {
  const hn::CappedTag<uint8_t, kChunk> u8;
  const size_t lanes = hn::Lanes(u8);
  std::array<uint8_t, 2 * sizeof(uint64_t)> bits{};  // more than is used: Highway may write whole words
  for (size_t i = 0; i < kChunk; i += lanes)
    hn::StoreMaskBits(u8, hn::Ne(hn::LoadU(u8, numbers + i), hn::Zero(u8)), bits.data() + i / 8);
  return load_bits(reinterpret_cast<const std::byte*>(bits.data()), sizeof(uint64_t));
}

// Appends numbers of kBits bits; end() closes a row, on a whole byte.
template <int kBits>
class NumberWriter {
 public:
  explicit NumberWriter(std::byte* out) : out_(out) {}

  HWY_INLINE void write(const uint8_t* numbers, size_t count) {
    if constexpr (kBits == 8) {
      out_ = std::copy_n(reinterpret_cast<const std::byte*>(numbers), count, out_);
    } else {
      std::copy_n(numbers, count, waiting_.begin() + static_cast<std::ptrdiff_t>(count_));
      count_ += count;
      flush(count_ / 2);
      if (count_ % 2 == 1) waiting_[0] = waiting_[count_ - 1];
      count_ %= 2;
    }
  }
  HWY_INLINE std::byte* end() {
    if (count_ > 0) *out_++ = std::byte{waiting_[0]} & std::byte{0x0f};
    return out_;
  }

 private:
  HWY_INLINE void flush(size_t bytes) {
    std::array<std::byte, kChunk> packed;
    pack_halves(waiting_.data(), 2 * bytes, packed.data());
    out_ = std::copy_n(packed.begin(), bytes, out_);
  }

  std::byte* out_;
  std::array<uint8_t, 2 * kChunk> waiting_{};  // of half bytes
  size_t count_ = 0;
};

template <int kBits, bool kStochastic>
std::byte* write_row(const float* row, size_t cols, RowStep step, uint32_t key, Layout layout,
                     std::byte* out) {
  const float scale = kFixed / step.size();
  const int high = Numbers<kBits>::largest(step.negative()), low = step.negative() ? -high : 0;
  NumberWriter<kBits> writer(layout == kDense ? out : out + bitmap_bytes(cols));
  std::array<uint8_t, kChunk> numbers{}, kept;
  std::array<float, kChunk> last;
  for (size_t c = 0; c < cols; c += kChunk) {
    const size_t count = std::min(kChunk, cols - c);
    const float* in = row + c;
    if (count < kChunk && count % 16 != 0) {  // what is read beyond them
      std::fill(std::copy_n(in, count, last.begin()), last.end(), 0.0f);
      in = last.data();
    }
    make_numbers<kStochastic>(in, scale, low, high, key + static_cast<uint32_t>(c), count, numbers.data());
    if (layout == kDense) {
      writer.write(numbers.data(), count);
      continue;
    }
    const uint64_t bits = nonzero(numbers.data()) & (~uint64_t{0} >> (kChunk - count));
    std::memcpy(out + c / 8, &bits, std::min(sizeof(bits), bitmap_bytes(cols) - c / 8));
    size_t size = 0;
    for (uint64_t left = bits; left != 0; left &= left - 1)
      kept[size++] = numbers[static_cast<size_t>(std::countr_zero(left))];
    writer.write(kept.data(), size);
  }
  return writer.end();
}

// All rows that have a step; returns the end.
template <int kBits>
std::byte* write_rows(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                      std::byte* out) {
  for (size_t r = 0; r < values.rows; ++r) {
    const RowStep step = load_step(steps, r);
    if (step.size() == 0) continue;
    const auto key = static_cast<uint32_t>(rounding.row_seed(r));
    out = rounding.to_nearest() ? write_row<kBits, false>(values.row(r), values.cols, step, key, layout, out)
                                : write_row<kBits, true>(values.row(r), values.cols, step, key, layout, out);
  }
  return out;
}

// `count` numbers, rounded up to whole vectors, to values. The two's complement of `bits` bits, or no sign.
template <int kBits>
HWY_INLINE void to_floats(const uint8_t* numbers, size_t count, bool negative, float step, float* out) {
  const Floats f;
  const Ints i32;
  const Bytes u8;
  const auto sign = hn::Set(i32, negative ? 1 << (kBits - 1) : 0);
  for (size_t i = 0; i < count; i += hn::Lanes(f)) {
    const auto number = hn::PromoteTo(i32, hn::LoadU(u8, numbers + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(f, hn::Sub(hn::Xor(number, sign), sign)), hn::Set(f, step)), f, out + i);
  }
}

// `in`: a row's numbers, `count` of them, behind the bitmap if it has one (bitmap_bytes > 0).
template <int kBits>
void read_row(const std::byte* in, size_t bitmap, size_t count, RowStep step, float* row, size_t cols) {
  const std::byte* const numbers_in = in + bitmap;
  std::array<uint8_t, 2 * kChunk> numbers{};  // read ahead: half bytes need not begin at a chunk
  std::array<float, kChunk> values;
  size_t next = 0;
  // Numbers next .. next + size - 1, from the byte that holds the first; returns where that is in `numbers`.
  const auto read = [&](size_t size) {
    const size_t first = next * kBits / 8, bytes = Numbers<kBits>::bytes(next + size) - first;
    const size_t at = next - first * 8 / kBits;
    next += size;
    if constexpr (kBits == 8) {
      std::memcpy(numbers.data(), numbers_in + first, bytes);
    } else {
      std::array<std::byte, kChunk> packed{};
      std::copy_n(numbers_in + first, bytes, packed.begin());
      unpack_halves(packed.data(), 2 * bytes, numbers.data());
    }
    return at;
  };
  MODELET_CHECK(count <= cols);
  for (size_t c = 0; c < cols; c += kChunk) {
    const size_t size = std::min(kChunk, cols - c);
    if (bitmap == 0) {
      read(size);
      to_floats<kBits>(numbers.data(), size, step.negative(), step.size(), values.data());
    } else {
      uint64_t bits = load_bits(in + c / 8, std::min(sizeof(bits), bitmap - c / 8));
      const uint8_t* kept = numbers.data() + read(static_cast<size_t>(std::popcount(bits)));
      std::array<uint8_t, kChunk> spread{};
      for (; bits != 0; bits &= bits - 1) spread[static_cast<size_t>(std::countr_zero(bits))] = *kept++;
      to_floats<kBits>(spread.data(), size, step.negative(), step.size(), values.data());
    }
    std::copy_n(values.begin(), size, row + c);
  }
}

Sizes scan_rows_8(ConstMatrix values, std::byte* steps) { return scan_rows<8>(values, steps); }
Sizes scan_rows_4(ConstMatrix values, std::byte* steps) { return scan_rows<4>(values, steps); }
std::byte* write_rows_8(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                        std::byte* out) {
  return write_rows<8>(values, rounding, layout, steps, out);
}
std::byte* write_rows_4(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                        std::byte* out) {
  return write_rows<4>(values, rounding, layout, steps, out);
}
void read_row_8(const std::byte* in, size_t bitmap, size_t count, RowStep step, float* row, size_t cols) {
  read_row<8>(in, bitmap, count, step, row, cols);
}
void read_row_4(const std::byte* in, size_t bitmap, size_t count, RowStep step, float* row, size_t cols) {
  read_row<4>(in, bitmap, count, step, row, cols);
}

}  // namespace modelet::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::comm {
namespace {

HWY_EXPORT(scan_rows_8);
HWY_EXPORT(scan_rows_4);
HWY_EXPORT(write_rows_8);
HWY_EXPORT(write_rows_4);
HWY_EXPORT(read_row_8);
HWY_EXPORT(read_row_4);

size_t count_bits(std::span<const std::byte> bitmap) {
  size_t count = 0;
  for (size_t i = 0; i < bitmap.size(); i += sizeof(uint64_t))
    count += static_cast<size_t>(
        std::popcount(load_bits(&bitmap[i], std::min(sizeof(uint64_t), bitmap.size() - i))));
  return count;
}

template <int kBits>
class IntCodec final : public Codec {
 public:
  IntCodec(std::string_view name, uint8_t id) : name_(name), id_(id) {}
  std::string_view name() const override { return name_; }
  uint8_t id() const override { return id_; }
  size_t max_bytes(size_t rows, size_t cols) const override {
    return 1 + rows * (sizeof(RowStep) + Numbers<kBits>::bytes(cols));
  }

  size_t encode(ConstMatrix values, Rounding rounding, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    std::byte* const steps = out.data() + 1;
    const Sizes sizes = kBits == 8 ? HWY_DYNAMIC_DISPATCH(scan_rows_8)(values, steps)
                                   : HWY_DYNAMIC_DISPATCH(scan_rows_4)(values, steps);
    if (sizes.bad_row < values.rows) throw diverged(sizes.bad_row, values);
    const Layout layout = sizes.sparse < sizes.dense ? kZerosLeftOut : kDense;
    out[0] = std::byte{layout};
    std::byte* const rows = steps + values.rows * sizeof(RowStep);
    const std::byte* const end =
        kBits == 8 ? HWY_DYNAMIC_DISPATCH(write_rows_8)(values, rounding, layout, steps, rows)
                   : HWY_DYNAMIC_DISPATCH(write_rows_4)(values, rounding, layout, steps, rows);
    return static_cast<size_t>(end - out.data());
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    const size_t head = 1 + values.rows * sizeof(RowStep);
    if (bytes.size() < head) throw wrong_size(bytes.size(), values);
    const auto layout = std::to_integer<uint8_t>(bytes[0]);
    if (layout > kZerosLeftOut) throw FormatError(fmt::format("{}: unknown layout {}", name_, layout));
    std::span<const std::byte> rest = bytes.subspan(head);
    for (size_t r = 0; r < values.rows; ++r) {
      const RowStep step = load_step(&bytes[1], r);
      if (step.size() == 0) {
        std::fill_n(values.row(r), values.cols, 0.0f);
        continue;
      }
      if (!is_safe<kBits>(step))
        throw FormatError(
            fmt::format("{}: step {} of row {} is too large or no number", name_, step.size(), r));
      const size_t bitmap = layout == kDense ? 0 : bitmap_bytes(values.cols);
      if (rest.size() < bitmap) throw wrong_size(bytes.size(), values);
      if (bitmap > 0 && (std::to_integer<unsigned>(rest[bitmap - 1]) >> ((values.cols - 1) % 8)) > 1)
        throw FormatError(fmt::format("{}: row {} has values beyond column {}", name_, r, values.cols));
      const size_t count = layout == kDense ? values.cols : count_bits(rest.first(bitmap));
      const size_t used = bitmap + Numbers<kBits>::bytes(count);
      if (rest.size() < used) throw wrong_size(bytes.size(), values);
      if constexpr (kBits == 8)
        HWY_DYNAMIC_DISPATCH(read_row_8)(rest.data(), bitmap, count, step, values.row(r), values.cols);
      else
        HWY_DYNAMIC_DISPATCH(read_row_4)(rest.data(), bitmap, count, step, values.row(r), values.cols);
      rest = rest.subspan(used);
    }
    if (!rest.empty()) throw wrong_size(bytes.size(), values);
  }

 private:
  Error diverged(size_t row, ConstMatrix values) const {
    return Error(
        fmt::format("{}: row {} of a {} x {} matrix holds a value that is not finite: training diverged; "
                    "lower train.learning_rate or set optimizer.clip",
                    name_, row, values.rows, values.cols));
  }

  FormatError wrong_size(size_t got, ConstMatrix values) const {
    return FormatError(fmt::format("{}: {} bytes are not what a {} x {} matrix needs", name_, got,
                                   values.rows, values.cols));
  }

  std::string_view name_;
  uint8_t id_;
};

}  // namespace

const Codec& codec_int8() {
  static const IntCodec<8> codec("int8", 3);
  return codec;
}

const Codec& codec_int4() {
  static const IntCodec<4> codec("int4", 4);
  return codec;
}

}  // namespace modelet::comm
#endif  // HWY_ONCE
