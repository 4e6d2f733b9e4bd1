#include "shard/format/safetensors.h"

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/text/strict_json.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;  // a modelet's header has a few hundred bytes
constexpr int kHeaderDepth = 3;                           // {name: {shape: [
constexpr size_t kMaxDimensions = 8;
constexpr const char* kMetadataKey = "__metadata__";

struct DTypeInfo {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<DTypeInfo, 6> kDTypes = {
    {{"U8", 1}, {"BF16", 2}, {"F32", 4}, {"U32", 4}, {"I64", 8}, {"U64", 8}}};

// product(shape) * element size; false if it does not fit 64 bits.
bool size_in_bytes(DType dtype, std::span<const uint64_t> shape, uint64_t& bytes) {
  bytes = element_bytes(dtype);
  for (const uint64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return false;
  return true;
}

std::string shape_text(std::span<const uint64_t> shape) {
  std::string text;
  for (const uint64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

uint64_t data_bytes(const Tensor& t) {
  return t.stride_bytes == 0 ? t.bytes.size() : t.shape[0] * t.bytes.size();
}

// Calls append(bytes) with the tensor's data, some rows at a time.
template <class Append>
void append_data(const Tensor& t, const Append& append) {
  constexpr size_t kTogether = size_t{1} << 20;  // bytes, which stay in the cache
  if (t.stride_bytes == 0) {
    for (auto rest = t.bytes; !rest.empty(); rest = rest.subspan(std::min(kTogether, rest.size())))
      append(rest.first(std::min(kTogether, rest.size())));
    return;
  }
  std::vector<std::byte> some;
  for (size_t row = 0; row < t.shape[0]; ++row) {
    const std::byte* const first = t.bytes.data() + row * t.stride_bytes;
    some.insert(some.end(), first, first + t.bytes.size());
    if (some.size() < kTogether && row + 1 < t.shape[0]) continue;
    append(std::span<const std::byte>(some));
    some.clear();
  }
}

using HashState = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;

HashState new_hash() {
  HashState hash(XXH3_createState(), XXH3_freeState);
  MODELET_CHECK(hash != nullptr);
  XXH3_64bits_reset(hash.get());
  return hash;
}

// The header with its length in front, padded so that the data behind it starts at a cache line.
std::string header_bytes(std::span<const Tensor* const> tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const Tensor* t : tensors) {
    uint64_t expected = 0;
    MODELET_CHECK(size_in_bytes(t->dtype, t->shape, expected) && expected == data_bytes(*t), t->name);
    MODELET_CHECK(t->name != kMetadataKey && !header.contains(t->name), t->name);
    header[t->name] = {
        {"dtype", dtype_name(t->dtype)}, {"shape", t->shape}, {"data_offsets", {offset, offset + expected}}};
    offset += expected;
  }
  std::string text = header.dump();
  while ((kLengthBytes + text.size()) % kCacheLine != 0) text += ' ';
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

// In the order of the file.
std::vector<const Tensor*> ordered(std::span<const Tensor> tensors) {
  std::vector<const Tensor*> result;
  for (const Tensor& t : tensors) result.push_back(&t);
  std::ranges::stable_sort(result, std::greater{}, [](const Tensor* t) { return element_bytes(t->dtype); });
  return result;
}

// ---- Reading ----

// Turns the header's JSON into tensors, checking everything but how their ranges follow each other.
class HeaderReader {
 public:
  HeaderReader(const std::string& origin, std::span<const std::byte> data) : origin_(origin), data_(data) {}

  Tensor tensor(const std::string& name, const nlohmann::json& entry) const {
    const std::string where = origin_ + ": tensor '" + name + "'";
    if (entry.is_object() && entry.size() != 3)
      throw FormatError(where + ": members other than dtype, shape and data_offsets");
    Tensor result{name, dtype(string_at(entry, "dtype", where), where), numbers(entry, "shape", where), {}};
    const std::vector<uint64_t> offsets = numbers(entry, "data_offsets", where);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size())
      throw FormatError(where + ": data_offsets " + shape_text(offsets) + " are not inside the " +
                        std::to_string(data_.size()) + " bytes of data");
    uint64_t expected = 0;
    if (!size_in_bytes(result.dtype, result.shape, expected) || expected != offsets[1] - offsets[0])
      throw FormatError(where + ": " + std::to_string(offsets[1] - offsets[0]) + " bytes do not fit " +
                        std::string(dtype_name(result.dtype)) + " " + shape_text(result.shape));
    result.bytes = data_.subspan(offsets[0], expected);
    return result;
  }

  Metadata metadata(const nlohmann::json& entry) const {
    if (!entry.is_object()) throw FormatError(origin_ + ": __metadata__ is not an object");
    Metadata result;
    for (const auto& item : entry.items()) {
      if (!item.value().is_string())
        throw FormatError(origin_ + ": __metadata__ '" + item.key() + "' is not a string");
      result[item.key()] = item.value().get<std::string>();
    }
    return result;
  }

 private:
  static DType dtype(const std::string& name, const std::string& where) {
    const auto it = std::ranges::find(kDTypes, name, &DTypeInfo::name);
    if (it == kDTypes.end()) throw FormatError(where + ": type '" + name + "' is not supported");
    return static_cast<DType>(it - kDTypes.begin());
  }

  static std::vector<uint64_t> numbers(const nlohmann::json& entry, const char* key,
                                       const std::string& where) {
    const nlohmann::json& list = member_at(entry, key, where);
    if (!list.is_array() || list.size() > kMaxDimensions)
      throw FormatError(where + ": '" + key + "' is not a list of at most " + std::to_string(kMaxDimensions));
    std::vector<uint64_t> result;
    for (const nlohmann::json& number : list) {
      if (!number.is_number_unsigned())
        throw FormatError(where + ": '" + key + "' holds something other than unsigned whole numbers");
      result.push_back(number.get<uint64_t>());
    }
    return result;
  }

  const std::string& origin_;
  std::span<const std::byte> data_;
};

// "[2, 7]": where value `at` is in a tensor of this shape.
std::string place_text(std::span<const uint64_t> shape, uint64_t at) {
  std::vector<uint64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0; at /= shape[i]) place[i] = at % shape[i];
  return shape_text(place);
}

float to_float(float value) { return value; }

template <class T>
void require_finite_of(const Tensor& tensor, uint64_t first, std::span<const std::byte> bytes,
                       const std::string& origin) {
  std::array<T, 4096> piece;  // a copy in the cache, because tensors may lie at any byte
  const size_t count = bytes.size() / sizeof(T);
  for (size_t begin = 0; begin < count; begin += piece.size()) {
    const size_t now = std::min(piece.size(), count - begin);
    std::memcpy(piece.data(), bytes.data() + begin * sizeof(T), now * sizeof(T));
    if (const size_t at = kernels::first_not_finite(piece.data(), now); at < now)
      throw FormatError(origin + ": tensor '" + tensor.name + "': " + std::to_string(to_float(piece[at])) +
                        " at " + place_text(tensor.shape, first + begin + at) + "; numbers must be finite");
  }
}

// `bytes` are values of the tensor from number `first` on. Kernels and orders of values rely on it.
void require_finite(const Tensor& tensor, uint64_t first, std::span<const std::byte> bytes,
                    const std::string& origin) {
  if (tensor.dtype == DType::kF32) require_finite_of<float>(tensor, first, bytes, origin);
  if (tensor.dtype == DType::kBF16) require_finite_of<Bf16>(tensor, first, bytes, origin);
}

// `tensors` sorted by position fill `data` exactly.
void check_no_gaps(std::span<const Tensor> tensors, std::span<const std::byte> data,
                   const std::string& origin) {
  const std::byte* next = data.data();
  for (const Tensor& t : tensors) {
    if (t.bytes.data() != next)
      throw FormatError(origin + ": tensor '" + t.name + "' " +
                        (t.bytes.data() < next ? "overlaps another one" : "leaves a hole before it"));
    next = t.bytes.data() + t.bytes.size();
  }
  if (next != data.data() + data.size())
    throw FormatError(origin + ": " + std::to_string(data.data() + data.size() - next) +
                      " bytes after the last tensor");
}

}  // namespace

size_t element_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

uint64_t xxh3_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

FileDigest write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors,
                             const Metadata& metadata, Sync sync) {
  const std::vector<const Tensor*> in_order = ordered(tensors);
  const HashState hash = new_hash();
  AtomicFile file(path);
  FileDigest digest;
  const auto append = [&](std::span<const std::byte> bytes) {
    file.write(bytes);
    XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
    digest.bytes += bytes.size();
  };
  const std::string header = header_bytes(in_order, metadata);
  append(std::as_bytes(std::span(header)));
  for (const Tensor* t : in_order) {
    uint64_t values = 0;
    append_data(*t, [&](std::span<const std::byte> bytes) {
      require_finite(*t, values, bytes, path.string());
      append(bytes);
      values += bytes.size() / element_bytes(t->dtype);
    });
  }
  file.commit(sync);
  digest.xxh3 = XXH3_64bits_digest(hash.get());
  return digest;
}

std::vector<std::byte> safetensors_bytes(std::span<const Tensor> tensors, const Metadata& metadata) {
  const std::vector<const Tensor*> in_order = ordered(tensors);
  std::vector<std::byte> bytes;
  const auto append = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  const std::string header = header_bytes(in_order, metadata);
  append(std::as_bytes(std::span(header)));
  for (const Tensor* t : in_order) append_data(*t, append);
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, const FileDigest* expected)
    : file_(path), origin_(path), bytes_(file_.bytes()) {
  if (expected != nullptr && bytes_.size() != expected->bytes)
    throw FormatError(path.string() + ": " + std::to_string(bytes_.size()) + " bytes long, expected " +
                      std::to_string(expected->bytes));
  if (expected != nullptr && checksum() != expected->xxh3)
    throw FormatError(path.string() + ": damaged: its checksum is not the recorded one");
  parse();
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string origin)
    : origin_(std::move(origin)), bytes_(bytes) {
  parse();
}

// A large file is not in memory as a whole.
uint64_t SafetensorsFile::checksum() const {
  constexpr size_t kTogether = size_t{64} << 20;  // bytes
  const HashState hash = new_hash();
  for (size_t begin = 0; begin < bytes_.size(); begin += kTogether) {
    const auto some = bytes_.subspan(begin, std::min(kTogether, bytes_.size() - begin));
    XXH3_64bits_update(hash.get(), some.data(), some.size());
    release_pages();
  }
  return XXH3_64bits_digest(hash.get());
}

void SafetensorsFile::release_pages() const {
  const std::span<const std::byte> mapped = file_.bytes();
  if (!mapped.empty()) ::madvise(const_cast<std::byte*>(mapped.data()), mapped.size(), MADV_DONTNEED);
}

void SafetensorsFile::parse() {
  const std::string origin = origin_.string();
  uint64_t length = 0;
  if (bytes_.size() < kLengthBytes) throw FormatError(origin + ": too short for a safetensors file");
  std::memcpy(&length, bytes_.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > bytes_.size() - kLengthBytes)
    throw FormatError(origin + ": a header of " + std::to_string(length) + " bytes in a file of " +
                      std::to_string(bytes_.size()) + " (limit " + std::to_string(kMaxHeaderBytes) + ")");
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes, length);
  const std::span<const std::byte> data = bytes_.subspan(kLengthBytes + length);

  const nlohmann::json header = parse_strict_json(text, origin, kHeaderDepth);
  if (!header.is_object()) throw FormatError(origin + ": the header is not an object");
  const HeaderReader reader(origin, data);
  for (const auto& item : header.items()) {
    if (item.key() == kMetadataKey) {
      metadata_ = reader.metadata(item.value());
    } else {
      tensors_.push_back(reader.tensor(item.key(), item.value()));
    }
  }
  // Sorted by end as well, so that empty tensors come before the one that begins at the same place.
  std::ranges::stable_sort(tensors_, {}, [](const Tensor& t) {
    return std::pair(t.bytes.data(), t.bytes.data() + t.bytes.size());
  });
  check_no_gaps(tensors_, data, origin);
  for (const Tensor& tensor : tensors_) require_finite(tensor, 0, tensor.bytes, origin);
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::ranges::find(tensors_, name, &Tensor::name);
  return it == tensors_.end() ? nullptr : &*it;
}

const Tensor& SafetensorsFile::at(std::string_view name) const {
  const Tensor* found = find(name);
  if (found == nullptr)
    throw FormatError(origin_.string() + ": there is no tensor '" + std::string(name) + "'");
  return *found;
}

const Tensor& SafetensorsFile::at(std::string_view name, DType dtype, const std::vector<uint64_t>& shape,
                                  size_t alignment) const {
  const Tensor& found = at(name);
  if (found.dtype != dtype || found.shape != shape)
    throw FormatError(origin_.string() + ": tensor '" + found.name + "' is " +
                      std::string(dtype_name(found.dtype)) + " " + shape_text(found.shape) + ", expected " +
                      std::string(dtype_name(dtype)) + " " + shape_text(shape));
  if (reinterpret_cast<uintptr_t>(found.bytes.data()) % alignment != 0)
    throw FormatError(origin_.string() + ": tensor '" + found.name + "' is not aligned to its element size");
  return found;
}

}  // namespace modelet::shard
