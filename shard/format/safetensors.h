// The safetensors file format (https://huggingface.co/docs/safetensors, "Format"): named arrays with dtype
// and shape.
//
//   8 bytes    length of the header, little-endian
//   header     JSON {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//              "__metadata__": {...}}, padded with spaces; offsets count from the end of the header
//   data       the arrays, little-endian, row-major, without holes
//
// The writer pads the header so that the data starts at a multiple of 64 bytes of the file, and orders arrays
// by falling element size, so that every array is aligned to its element.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/array/bf16.h"
#include "base/system/file.h"

namespace modelet::shard {

enum class DType : uint8_t { kU8, kBF16, kF32, kU32, kI64, kU64 };

size_t element_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "F32"

// DType of a C++ element type. uint16_t holds the bits of a BF16 too.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, uint8_t>)
    return DType::kU8;
  else if constexpr (std::same_as<T, uint16_t> || std::same_as<T, Bf16>)
    return DType::kBF16;
  else if constexpr (std::same_as<T, float>)
    return DType::kF32;
  else if constexpr (std::same_as<T, uint32_t>)
    return DType::kU32;
  else if constexpr (std::same_as<T, int64_t>)
    return DType::kI64;
  else {
    static_assert(std::same_as<T, uint64_t>, "no safetensors type");
    return DType::kU64;
  }
}

// A named array whose elements lie elsewhere: in the caller's memory when writing, in the mapped file when
// reading.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  // product(shape) * element_bytes(dtype)
  // To write rows that do not lie side by side: they begin this many bytes apart, and `bytes` is the first
  // one. 0: `bytes` are those of all.
  size_t stride_bytes = 0;
};

// tensor("weight", {rows, cols}, values): `values` is any contiguous range of a type dtype_of() knows.
template <class Range>
Tensor tensor(std::string name, std::vector<uint64_t> shape, const Range& values) {
  const std::span view(values);
  return {std::move(name), dtype_of<typename decltype(view)::value_type>(), std::move(shape),
          std::as_bytes(view)};
}

using Metadata = std::map<std::string, std::string>;

// What identifies a written file.
struct FileDigest {
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3, 64 bits, seed 0, of the whole file
};

// XXH3 of bytes in memory, as in FileDigest.
uint64_t xxh3_of(std::span<const std::byte> bytes);

// Writes the file atomically (base/system/file.h). Names must be unique and sizes must fit the shapes (a bug
// otherwise). Throws FormatError, and writes nothing, if a number is infinite or NaN: no reader would take it.
FileDigest write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors,
                             const Metadata& metadata = {}, Sync sync = Sync::kYes);

// The same bytes in memory.
std::vector<std::byte> safetensors_bytes(std::span<const Tensor> tensors, const Metadata& metadata = {});

// A file, memory-mapped and fully checked: header, types, shapes, offsets (no overlap, no hole), and that no
// number is infinite or NaN. Every defect is a FormatError that names the file. Owns the mapping; movable;
// tensors stay valid while it lives. Any thread may read.
class SafetensorsFile {
 public:
  // If `expected` is given, size and checksum are compared first.
  explicit SafetensorsFile(const std::filesystem::path& path, const FileDigest* expected = nullptr);
  // From bytes that the caller keeps; `origin` names them in messages.
  SafetensorsFile(std::span<const std::byte> bytes, std::string origin);

  // The pages of the file that were read no longer count as memory of this process. They are read again when
  // needed.
  void release_pages() const;

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of the data
  const Metadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return origin_; }
  std::span<const std::byte> bytes() const { return bytes_; }  // the whole file

  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // FormatError if there is no such tensor.
  const Tensor& at(std::string_view name) const;
  // FormatError also if it differs in type or shape, or does not lie at a multiple of `alignment`.
  const Tensor& at(std::string_view name, DType dtype, const std::vector<uint64_t>& shape,
                   size_t alignment = 1) const;
  // The elements of `name`; FormatError if it is missing or differs in type or shape.
  template <class T>
  std::span<const T> values(std::string_view name, const std::vector<uint64_t>& shape) const {
    const Tensor& found = at(name, dtype_of<T>(), shape, alignof(T));
    return {reinterpret_cast<const T*>(found.bytes.data()), found.bytes.size() / sizeof(T)};
  }

 private:
  uint64_t checksum() const;
  void parse();
  const Tensor* find(std::string_view name) const;

  MappedFile file_;
  std::filesystem::path origin_;
  std::span<const std::byte> bytes_;
  std::vector<Tensor> tensors_;
  Metadata metadata_;
};

}  // namespace modelet::shard
