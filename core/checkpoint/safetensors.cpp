#include "core/checkpoint/safetensors.h"

#include <orthant/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "core/base/json.h"

namespace orthant {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the reference implementation's bound
constexpr std::size_t max_dimensions = 64;

struct TypeName {
  FileType type;
  const char* name;
};
constexpr TypeName type_names[] = {{DType::f32, "F32"},     {DType::bf16, "BF16"},       {DType::f64, "F64"},
                                   {DType::i32, "I32"},     {DType::i64, "I64"},         {DType::u8, "U8"},
                                   {DType::i8, "I8"},       {DType::f8_e4m3, "F8_E4M3"}, {DType::f8_e5m2, "F8_E5M2"},
                                   {FileType::f16(), "F16"}};

// Bytes of a tensor of these sizes, or nothing when the product does not fit 63 bits or a size is negative.
std::optional<std::uint64_t> checked_bytes(FileType type, const std::vector<std::int64_t>& sizes) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bytes = type.bytes();
  for (const std::int64_t size : sizes) {
    if (size < 0) {
      return std::nullopt;
    }
    const std::uint64_t factor = static_cast<std::uint64_t>(size);
    if (factor != 0 && bytes > most / factor) {
      return std::nullopt;
    }
    bytes *= factor;
  }
  return bytes;
}

class FileSink final : public ByteSink {
 public:
  explicit FileSink(const std::filesystem::path& path) : path_(path), out_(path, std::ios::binary | std::ios::trunc) {
    require(out_.good(), "cannot create '{}'", path.string());
  }
  void write(std::span<const std::byte> bytes) override {
    out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    require(out_.good(), "cannot write '{}': is the disk full?", path_.string());
  }
  void close() {
    out_.close();
    require(!out_.fail(), "cannot write '{}': is the disk full?", path_.string());
  }

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

// Reads one entry of the header. `where` names file and tensor.
FileTensor parse_tensor(const std::string& name, const Json& entry, const std::string& where) {
  FileTensor tensor{.name = name, .sizes = {}};
  const std::string dtype = text_at(entry, "dtype", where);
  const std::optional<FileType> known = file_type(dtype);
  require(known.has_value(), "{}: dtype {} is not supported, expected F32, BF16, F16, F64, I32, I64, U8, I8 or F8",
          where, dtype);
  tensor.dtype = *known;
  tensor.sizes = integers_at(entry, "shape", where);
  require(tensor.sizes.size() <= max_dimensions, "{}: {} dimensions, expected at most {}", where, tensor.sizes.size(),
          max_dimensions);
  const std::vector<std::int64_t> offsets = integers_at(entry, "data_offsets", where);
  require(offsets.size() == 2 && offsets[0] <= offsets[1], "{}: data_offsets must be two ascending numbers", where);
  tensor.begin = static_cast<std::uint64_t>(offsets[0]);
  tensor.end = static_cast<std::uint64_t>(offsets[1]);
  const std::optional<std::uint64_t> bytes = checked_bytes(tensor.dtype, tensor.sizes);
  require(bytes.has_value(), "{}: its shape has more bytes than 64 bits can count", where);
  require(*bytes == tensor.end - tensor.begin, "{}: its shape takes {} bytes, data_offsets give it {}", where, *bytes,
          tensor.end - tensor.begin);
  return tensor;
}

}  // namespace

const char* FileType::name() const {
  for (const TypeName& known : type_names) {
    if (known.type == *this) {
      return known.name;
    }
  }
  return "?";
}

std::optional<FileType> file_type(const std::string& name) {
  for (const TypeName& known : type_names) {
    if (name == known.name) {
      return known.type;
    }
  }
  return std::nullopt;
}

SafetensorsWriter::SafetensorsWriter(ByteSink& sink, std::vector<FileTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : sink_(sink), tensors_(std::move(tensors)) {
  Json header = Json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::uint64_t at = 0;
  for (FileTensor& tensor : tensors_) {
    require(!tensor.name.empty() && tensor.name != "__metadata__" && !header.contains(tensor.name),
            "safetensors: the tensor name '{}' is empty, reserved or used twice", tensor.name);
    const std::optional<std::uint64_t> bytes = checked_bytes(tensor.dtype, tensor.sizes);
    require(bytes.has_value(), "safetensors: tensor '{}' has an impossible shape", tensor.name);
    tensor.begin = at;
    at += *bytes;
    tensor.end = at;
    header[tensor.name] = {
        {"dtype", tensor.dtype.name()}, {"shape", tensor.sizes}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = dump_json(header, "safetensors header");
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begin 8-byte aligned
  const std::uint64_t size = text.size();
  sink_.write(std::as_bytes(std::span(&size, 1)));
  sink_.write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  require(next_ < tensors_.size(), "safetensors: all {} tensors are written already", tensors_.size());
  const FileTensor& tensor = tensors_[next_++];
  require(bytes.size() == tensor.end - tensor.begin, "safetensors: tensor '{}' takes {} bytes, got {}", tensor.name,
          tensor.end - tensor.begin, bytes.size());
  sink_.write(bytes);
}

void SafetensorsWriter::finish() const {
  require(next_ == tensors_.size(), "safetensors: tensor '{}' was declared but not written",
          next_ < tensors_.size() ? tensors_[next_].name : "");
}

SafetensorsReader::SafetensorsReader(MappedFile file) : file_(std::move(file)) {
  const std::string name = "safetensors file '" + file_.path().string() + "'";
  const std::size_t size = file_.size();
  require(size >= 8, "{}: {} bytes are too few, expected 8 or more", name, size);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file_.bytes().data(), 8);
  require(header_size <= max_header_bytes && header_size <= size - 8,
          "{}: a header of {} bytes does not fit a file of {} (cut short, or not a safetensors file?)", name,
          header_size, size);
  data_begin_ = 8 + static_cast<std::size_t>(header_size);
  const Json header = parse_json(file_.bytes().subspan(8, static_cast<std::size_t>(header_size)), name);
  require(header.is_object(), "{}: its header must be a JSON object", name);
  for (const auto& [key, entry] : header.items()) {
    const std::string where = name + ", tensor '" + key + "'";
    require(entry.is_object(), "{}: expected a JSON object", where);
    if (key == "__metadata__") {
      for (const auto& [meta, text] : entry.items()) {
        require(text.is_string(), "{}: '{}' must be a string", where, meta);
        metadata_[meta] = text.get<std::string>();
      }
    } else {
      tensors_.push_back(parse_tensor(key, entry, where));
    }
  }
  // Empty tensors share their offset with the next one: order them before it.
  std::sort(tensors_.begin(), tensors_.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    require(tensors_[i].begin == at, "{}: tensor '{}' begins at byte {}, expected {} (a gap or an overlap)", name,
            tensors_[i].name, tensors_[i].begin, at);
    at = tensors_[i].end;
    index_[tensors_[i].name] = i;
  }
  require(at == size - data_begin_, "{}: its tensors take {} bytes, the file holds {} (cut short?)", name, at,
          size - data_begin_);
}

const FileTensor* SafetensorsReader::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const FileTensor& SafetensorsReader::at(const std::string& name) const {
  const FileTensor* tensor = find(name);
  require(tensor != nullptr, "safetensors file '{}' has no tensor '{}'", file_.path().string(), name);
  return *tensor;
}

std::span<const std::byte> SafetensorsReader::bytes(const FileTensor& tensor) const {
  return file_.bytes().subspan(data_begin_ + static_cast<std::size_t>(tensor.begin),
                               static_cast<std::size_t>(tensor.end - tensor.begin));
}

void write_safetensors(const std::filesystem::path& path, const std::vector<FileTensor>& tensors,
                       const std::vector<std::span<const std::byte>>& bytes,
                       const std::map<std::string, std::string>& metadata) {
  require(tensors.size() == bytes.size(), "safetensors: {} tensors, but bytes for {}", tensors.size(), bytes.size());
  FileSink sink(path);
  SafetensorsWriter writer(sink, tensors, metadata);
  for (const auto& tensor : bytes) {
    writer.write(tensor);
  }
  writer.finish();
  sink.close();
}

}  // namespace orthant
