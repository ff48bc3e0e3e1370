// safetensors: the tensor file of Hugging Face, read and written.
//
// Source of the format: https://github.com/huggingface/safetensors (a u64 header size, a JSON header, the data).
// Thread safety: a writer belongs to one thread; const calls of a reader from any.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mapped_file.h"

namespace orthant {

// The type of a file's tensor: one of ours, or F16, which no tensor of ours has.
class FileType {
 public:
  constexpr FileType(DType dtype) : ours_(dtype) {}
  static constexpr FileType f16() { return FileType(); }
  bool operator==(const FileType&) const = default;
  std::size_t bytes() const { return ours_.has_value() ? size_of(*ours_) : 2; }  // of an element
  const char* name() const;                                                      // "F32", "BF16", ...

 private:
  constexpr FileType() = default;
  std::optional<DType> ours_;  // nothing: F16
};

// Nothing: a name that is not known.
std::optional<FileType> file_type(const std::string& name);

// A tensor of a file. `sizes` may have any number of dimensions: not all files are ours.
struct FileTensor {
  std::string name;
  FileType dtype = DType::f32;
  std::vector<std::int64_t> sizes;  // outermost first
  std::uint64_t begin = 0;          // byte offsets in the data part; the writer sets them
  std::uint64_t end = 0;
};

// Where SafetensorsWriter puts its bytes. Errors: Error naming the file.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Writes the header first, then the tensors in the order they were declared.
class SafetensorsWriter {
 public:
  // Errors: Error for a name that is empty, declared twice or "__metadata__".
  SafetensorsWriter(ByteSink& sink, std::vector<FileTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  // REQUIRES: called once per tensor, in order, with all of its bytes. Errors: Error for another size.
  void write(std::span<const std::byte> bytes);
  // REQUIRES: every tensor was written. Errors: Error naming the first that was not.
  void finish() const;

 private:
  ByteSink& sink_;
  std::vector<FileTensor> tensors_;
  std::size_t next_ = 0;
};

// A file, memory-mapped and validated whole on opening: header size and JSON, dtypes, shapes, and that the tensors
// tile the data part without gap or overlap. Nothing is allocated by the header's say-so.
class SafetensorsReader {
 public:
  // Errors: Error naming the file, what was expected and what was found.
  explicit SafetensorsReader(MappedFile file);
  explicit SafetensorsReader(const std::filesystem::path& path) : SafetensorsReader(MappedFile(path)) {}

  const std::vector<FileTensor>& tensors() const { return tensors_; }  // in the order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr: no such tensor.
  const FileTensor* find(const std::string& name) const;
  // Errors: Error naming the file and the tensor when there is none of this name.
  const FileTensor& at(const std::string& name) const;
  // The bytes of a tensor: a view of the mapped file, as long as the reader lives; unaligned.
  std::span<const std::byte> bytes(const FileTensor& tensor) const;
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  std::size_t data_begin_ = 0;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Writes a whole file at once: for exports and tests. `bytes[i]` belongs to `tensors[i]`.
void write_safetensors(const std::filesystem::path& path, const std::vector<FileTensor>& tensors,
                       const std::vector<std::span<const std::byte>>& bytes,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace orthant
