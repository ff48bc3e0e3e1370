// The safetensors format, against files written byte by byte here.
#include "core/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <cstring>

#include "tests/data/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::safetensors_test {
namespace {

using testing::HasSubstr;

// A file as the format's description has it: the header's size in 8 little-endian bytes, the header, the data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string size(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    size[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  }
  return size + header + data;
}

const std::string small_header =
    R"({"__metadata__":{"format":"pt","note":"a \"quote\""},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)"
    R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"none":{"dtype":"U8","shape":[3,0],"data_offsets":[8,8]}})";
// 1.0f, -2.5f, then the integer 0x0102030405060708
const std::string small_data("\x00\x00\x80\x3f\x00\x00\x20\xc0\x08\x07\x06\x05\x04\x03\x02\x01", 16);

class Safetensors : public testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    const std::string path = folder_.write("bad.safetensors", bytes);
    try {
      SafetensorsReader reader(path);
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("bad.safetensors"));
      return e.what();
    }
    return "no error";
  }
  std::string header_error(const std::string& header, std::size_t data = 8) {
    return error_of(file_of(header, std::string(data, 'x')));
  }
  TemporaryFolder folder_;
};

TEST_F(Safetensors, ReadsAFileWrittenByHand) {
  SafetensorsReader reader(folder_.write("hand.safetensors", file_of(small_header, small_data)));
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("note"), "a \"quote\"");
  const FileTensor& a = reader.at("a");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.sizes, (std::vector<std::int64_t>{2, 1}));
  float values[2];
  ASSERT_EQ(reader.bytes(a).size(), sizeof(values));
  std::memcpy(values, reader.bytes(a).data(), sizeof(values));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.5f);
  std::int64_t integer = 0;
  ASSERT_EQ(reader.bytes(reader.at("b")).size(), sizeof(integer));
  EXPECT_TRUE(reader.at("b").sizes.empty());
  std::memcpy(&integer, reader.bytes(reader.at("b")).data(), sizeof(integer));
  EXPECT_EQ(integer, 0x0102030405060708);
  EXPECT_TRUE(reader.bytes(reader.at("none")).empty());
  EXPECT_EQ(reader.find("c"), nullptr);
  EXPECT_THROW(reader.at("c"), Error);
}

// A file that the safetensors library wrote; the numbers were read from it by other means.
TEST_F(Safetensors, ReadsAFileWrittenByPyTorch) {
  SafetensorsReader reader(paths::source("tests/reference/mixtral_block.safetensors"));
  EXPECT_THAT(reader.metadata().at("made_with"), HasSubstr("torch"));
  const FileTensor& gradient = reader.at("grad/block_sparse_moe.experts.1.w2.weight");
  EXPECT_EQ(gradient.dtype, DType::f32);
  EXPECT_EQ(gradient.sizes, (std::vector<std::int64_t>{16, 24}));
  float values[2];
  std::memcpy(values, reader.bytes(gradient).data(), sizeof(values));
  EXPECT_FLOAT_EQ(values[0], -0.25059274f);
  EXPECT_FLOAT_EQ(values[1], -0.10837755f);
  EXPECT_EQ(reader.at("expert").dtype, DType::i32);
}

TEST_F(Safetensors, WritesTheBytesOfTheFormat) {
  const auto path = folder_.path() / "written.safetensors";
  const float values[2] = {1.0f, -2.5f};
  const std::int64_t integer = 0x0102030405060708;
  write_safetensors(path, {{"a", DType::f32, {2, 1}}, {"b", DType::i64, {}}},
                    {std::as_bytes(std::span(values)), std::as_bytes(std::span(&integer, 1))}, {{"format", "pt"}});
  const std::string file = read_file(path);
  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2,1]},)"
                       R"("b":{"data_offsets":[8,16],"dtype":"I64","shape":[]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(file, file_of(header, small_data));
}

TEST_F(Safetensors, EveryTypeAndManyTensorsComeBack) {
  const auto path = folder_.path() / "types.safetensors";
  std::vector<FileTensor> tensors;
  std::vector<std::string> values;
  int i = 0;
  for (const DType dtype : {DType::u8, DType::bf16, DType::f64, DType::f32, DType::i32, DType::i64}) {
    for (std::int64_t n : {0, 1, 7}) {
      tensors.push_back({"layer." + std::to_string(i++), dtype, {n, 3}});
      values.emplace_back(static_cast<std::size_t>(n) * 3 * size_of(dtype), static_cast<char>('a' + i));
    }
  }
  std::vector<std::span<const std::byte>> bytes;
  for (const std::string& v : values) {
    bytes.push_back(std::as_bytes(std::span(v)));
  }
  write_safetensors(path, tensors, bytes);
  SafetensorsReader reader(path);
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const FileTensor& found = reader.at(tensors[t].name);
    EXPECT_EQ(found.dtype, tensors[t].dtype);
    EXPECT_EQ(found.sizes, tensors[t].sizes);
    const auto data = reader.bytes(found);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), data.size()), values[t]);
  }
}

TEST_F(Safetensors, WriterRefusesWhatDoesNotMatch) {
  const auto path = folder_.path() / "bad.safetensors";
  const std::byte bytes[8] = {};
  EXPECT_THROW(write_safetensors(path, {{"a", DType::f32, {3}}}, {bytes}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", DType::f32, {2}}, {"a", DType::f32, {2}}}, {bytes, bytes}), Error);
  EXPECT_THROW(write_safetensors(path, {{"", DType::f32, {2}}}, {bytes}), Error);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", DType::f32, {2}}}, {bytes}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", DType::f32, {-2}}}, {bytes}), Error);
  EXPECT_THROW(write_safetensors(folder_.path() / "absent" / "x", {}, {}), Error);
}

TEST_F(Safetensors, HostileHeadersAreRefusedByName) {
  EXPECT_THAT(error_of(""), HasSubstr("0 bytes are too few"));
  EXPECT_THAT(error_of(std::string(8, '\xff') + "{}"), HasSubstr("does not fit a file"));
  EXPECT_THAT(header_error("[]", 0), HasSubstr("must be a JSON object"));
  EXPECT_THAT(header_error("{", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{} x", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(R"({"a":3})"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2]}})"), HasSubstr("'data_offsets' is missing"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F8_E8M0","shape":[8],"data_offsets":[0,8]}})"),
              HasSubstr("dtype F8_E8M0 is not supported"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"), HasSubstr("whole number"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})"), HasSubstr("whole number"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})"),
              HasSubstr("whole number"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})"),
              HasSubstr("64 bits"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"), HasSubstr("12 bytes"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"), HasSubstr("ascending"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})"), HasSubstr("take 9 bytes"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})"), HasSubstr("take 7 bytes"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})"), HasSubstr("a gap"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"),
              HasSubstr("an overlap"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"),
              HasSubstr("stands there a second time"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("must be a string"));
  const std::string deep = R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(header_error(deep), HasSubstr("nested deeper"));
}

// Nothing may crash or be believed; run under AddressSanitizer as well.
TEST_F(Safetensors, EveryCutIsRefusedAndNoFlipCrashes) {
  const std::string good = file_of(small_header, small_data);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_NE(error_of(good.substr(0, n)), "no error") << "cut to " << n << " bytes";
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const unsigned flip : {0x01u, 0x80u}) {
      std::string bad = good;
      bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ flip);
      try {
        SafetensorsReader reader(folder_.write("flipped.safetensors", bad));
        std::size_t total = 0;
        for (const FileTensor& tensor : reader.tensors()) {
          for (const std::byte b : reader.bytes(tensor)) {
            total += std::to_integer<std::size_t>(b);
          }
        }
        EXPECT_LT(total, 256u * small_data.size());
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace orthant::safetensors_test
