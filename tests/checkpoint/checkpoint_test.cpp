// Checkpoints: any layout reads what any other wrote, and what does not fit together is refused.
#include "core/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <fstream>
#include <functional>
#include <set>

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::checkpoint_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Numbers = std::vector<std::int64_t>;

// The element (i, j, ...) of the test tensors is its row-major number.
template <class T>
std::vector<T> slice_of(const Shape& shape, const Numbers& offset, const Numbers& size) {
  std::vector<T> values;
  std::vector<std::int64_t> strides(offset.size(), 1);
  for (std::size_t i = offset.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape[static_cast<int>(i)];
  }
  std::function<void(std::size_t, std::int64_t)> visit = [&](std::size_t dim, std::int64_t at) {
    if (dim == offset.size()) {
      values.push_back(static_cast<T>(at));
      return;
    }
    for (std::int64_t i = 0; i < size[dim]; ++i) {
      visit(dim + 1, at + (offset[dim] + i) * strides[dim]);
    }
  };
  visit(0, 0);
  return values;
}

class Checkpoint : public testing::Test {
 protected:
  // Saves slices given per rank; values are the elements' row-major numbers.
  std::filesystem::path save(std::int64_t step, const std::vector<std::vector<SliceMeta>>& ranks,
                             const std::map<std::string, std::string>& state = {}) {
    const std::int64_t world = static_cast<std::int64_t>(ranks.size());
    std::vector<std::string> parts;
    std::vector<CheckpointWriter> writers;
    for (std::int64_t r = 0; r < world; ++r) {
      writers.emplace_back(root(), step, r, world);
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      std::vector<std::vector<float>> values;
      for (const SliceMeta& slice : ranks[r]) {
        values.push_back(slice_of<float>(slice.global, slice.offset, slice.size));
        writers[r].add(slice, values.back().data());
      }
      parts.push_back(writers[r].finish());
    }
    return writers[0].commit(parts, state);
  }
  std::string error(const std::vector<std::vector<SliceMeta>>& ranks) {
    try {
      save(1, ranks);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  std::filesystem::path root() const { return folder_.path() / "checkpoints"; }
  TemporaryFolder folder_;
};

// Bytes of files in this process's memory, and of what is shared: a file of a tmpfs counts there.
std::size_t mapped_bytes() {
  std::ifstream status("/proc/self/status");
  std::size_t bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:") || line.starts_with("RssShmem:")) {
      bytes += std::stoull(line.substr(line.find(':') + 1)) << 10;
    }
  }
  return bytes;
}

TEST_F(Checkpoint, ThatWasReadNeedsNoMemoryForItsFiles) {
  const Shape matrix{1024, 2048};
  const CheckpointReader reader(save(1, {{{"m", DType::f32, matrix, {0, 0}, {1024, 2048}}}}));
  std::vector<float> values(1024 * 2048);
  const std::size_t before = mapped_bytes();
  for (int again = 0; again < 2; ++again) {
    std::fill(values.begin(), values.end(), -1.0f);
    reader.read("m", {0, 0}, {1024, 2048}, values.data());
    EXPECT_EQ(values, slice_of<float>(matrix, {0, 0}, {1024, 2048}));
    EXPECT_GT(mapped_bytes(), before + (6 << 20));
    reader.release_memory();
    EXPECT_LT(mapped_bytes(), before + (2 << 20));
  }
}

TEST_F(Checkpoint, AnyLayoutReadsWhatAnyOtherWrote) {
  const Shape cube{4, 6, 5};
  const Shape row{7};
  // One rank; two by rows; a grid of 2 x 3 in the first two dimensions; odd pieces.
  const std::vector<std::vector<std::vector<SliceMeta>>> layouts = {
      {{{"cube", DType::f32, cube, {0, 0, 0}, {4, 6, 5}}, {"row", DType::f32, row, {0}, {7}}}},
      {{{"cube", DType::f32, cube, {0, 0, 0}, {2, 6, 5}}, {"row", DType::f32, row, {0}, {4}}},
       {{"cube", DType::f32, cube, {2, 0, 0}, {2, 6, 5}}, {"row", DType::f32, row, {4}, {3}}}},
      {{{"cube", DType::f32, cube, {0, 0, 0}, {2, 2, 5}}, {"cube", DType::f32, cube, {2, 0, 0}, {2, 2, 5}}},
       {{"cube", DType::f32, cube, {0, 2, 0}, {2, 2, 5}}, {"row", DType::f32, row, {0}, {7}}},
       {{"cube", DType::f32, cube, {2, 2, 0}, {2, 2, 5}}, {"row", DType::f32, row, {7}, {0}}},
       {{"cube", DType::f32, cube, {0, 4, 0}, {4, 2, 5}}}},
      {{{"cube", DType::f32, cube, {0, 0, 0}, {4, 6, 1}}},
       {{"cube", DType::f32, cube, {0, 0, 1}, {3, 6, 4}}, {"row", DType::f32, row, {6}, {1}}},
       {{"cube", DType::f32, cube, {3, 0, 1}, {1, 6, 4}}, {"row", DType::f32, row, {0}, {6}}}},
  };
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const CheckpointReader reader(save(static_cast<std::int64_t>(from), layouts[from]));
    EXPECT_THAT(reader.names(), ElementsAre("cube", "row"));
    EXPECT_EQ(reader.info("cube").shape, cube);
    EXPECT_EQ(reader.world(), static_cast<std::int64_t>(layouts[from].size()));
    for (const auto& to : layouts) {
      for (const auto& rank : to) {
        for (const SliceMeta& slice : rank) {
          const std::vector<float> expected = slice_of<float>(slice.global, slice.offset, slice.size);
          std::vector<float> found(expected.size(), -1.0f);
          reader.read(slice.name, slice.offset, slice.size, found.data());
          EXPECT_EQ(found, expected) << slice.name << " of layout " << from;
        }
      }
    }
  }
}

TEST_F(Checkpoint, StateScalarsTypesAndFilledBuffersComeBack) {
  CheckpointWriter writer(root(), 7, 0, 1);
  const std::int64_t scalar = -5;
  const std::uint16_t half[3] = {1, 2, 0xffff};
  writer.add({"scalar", DType::i64, {}, {}, {}}, &scalar);
  writer.add({"empty", DType::f32, {0, 3}, {0, 0}, {0, 3}}, nullptr);
  writer.add({"half", DType::bf16, {3}, {0}, {3}}, half);
  writer.add({"filled", DType::f32, {2}, {0}, {2}}, [](void* out) {
    static_cast<float*>(out)[0] = 1.5f;
    static_cast<float*>(out)[1] = -2.5f;
  });
  const std::vector<std::string> parts = {writer.finish()};
  const auto path = writer.commit(parts, {{"data", "17"}, {"note", "ein \"Wort\" \n ü"}});
  EXPECT_EQ(path, root() / "step_000007");
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.step(), 7);
  EXPECT_EQ(reader.state().at("data"), "17");
  EXPECT_EQ(reader.state().at("note"), "ein \"Wort\" \n ü");
  std::int64_t number = 0;
  reader.read("scalar", {}, {}, &number);
  EXPECT_EQ(number, -5);
  std::uint16_t bits[3] = {};
  reader.read("half", {0}, {3}, bits);
  EXPECT_EQ(bits[2], 0xffff);
  float values[2] = {};
  reader.read("filled", {0}, {2}, values);
  EXPECT_EQ(values[1], -2.5f);
  EXPECT_EQ(reader.info("empty").shape, (Shape{0, 3}));
  reader.read("empty", {0, 0}, {0, 3}, nullptr);
  EXPECT_THROW(reader.read("half", {1}, {3}, bits), Error);
  EXPECT_THROW(reader.read("absent", {0}, {1}, bits), Error);
  EXPECT_FALSE(reader.has("absent"));
  // Each rank's file is a safetensors file of its own.
  EXPECT_EQ(SafetensorsReader(path / "rank_00000.safetensors").at("half").dtype, DType::bf16);
}

// What was copied is written, whatever becomes of the source; no disk is touched before that.
TEST_F(Checkpoint, ACopyIsWrittenAsItWasTaken) {
  CheckpointWriter writer(root(), 7, 0, 1);
  std::vector<float> source = {1, 2, 3};
  std::uint16_t half = 0x1234;
  int fills = 0;
  writer.add({"half", DType::bf16, {1}, {0}, {1}}, [&](void* out) { std::memcpy(out, &half, sizeof half), ++fills; });
  writer.add({"source", DType::f32, {3}, {0}, {3}}, [&](void* out) { std::memcpy(out, source.data(), 12), ++fills; });
  const float kept = 9;
  writer.add({"kept", DType::f32, {1}, {0}, {1}}, &kept);
  EXPECT_FALSE(std::filesystem::exists(root()));
  EXPECT_EQ(writer.bytes_to_copy(), 14u);
  std::vector<std::byte> room(14);
  EXPECT_THROW(writer.copy_into(std::span(room).first(13)), Error);
  writer.copy_into(room);
  source = {7, 8, 9};
  half = 0;
  EXPECT_EQ(writer.bytes_to_copy(), 0u);
  const std::vector<std::string> parts = {writer.finish()};
  const CheckpointReader reader(writer.commit(parts, {}));
  EXPECT_EQ(fills, 2);
  float found[3] = {};
  reader.read("source", {0}, {3}, found);
  EXPECT_EQ(std::vector<float>(found, found + 3), (std::vector<float>{1, 2, 3}));
  std::uint16_t bits = 0;
  reader.read("half", {0}, {1}, &bits);
  EXPECT_EQ(bits, 0x1234);
  reader.read("kept", {0}, {1}, found);
  EXPECT_EQ(found[0], 9);
}

TEST_F(Checkpoint, SlicesThatDoNotTileTheirTensorAreRefused) {
  const Shape shape{4, 2};
  const SliceMeta upper{"w", DType::f32, shape, {0, 0}, {2, 2}}, lower{"w", DType::f32, shape, {2, 0}, {2, 2}};
  EXPECT_EQ(error({{upper}, {lower}}), "no error");
  EXPECT_THAT(error({{upper}, {}}), HasSubstr("'w': its slices hold 4 of 8 elements of shape [4, 2]"));
  EXPECT_THAT(error({{upper}, {upper}}), HasSubstr("two slices overlap"));
  EXPECT_THAT(error({{upper, lower}, {{"w", DType::f32, shape, {3, 1}, {1, 1}}}}), HasSubstr("two slices overlap"));
  EXPECT_THAT(error({{upper}, {{"w", DType::f32, shape, {3, 0}, {2, 2}}}}), HasSubstr("does not lie inside"));
  EXPECT_THAT(error({{upper}, {{"w", DType::f32, shape, {2}, {2}}}}), HasSubstr("1 offsets"));
  EXPECT_THAT(error({{upper}, {{"w", DType::i32, shape, {2, 0}, {2, 2}}}}), HasSubstr("i32 [4, 2] here, f32 [4, 2]"));
  EXPECT_THAT(error({{upper, {"w", DType::f32, {4, 3}, {2, 0}, {2, 2}}}}), HasSubstr("was added before as f32 [4, 2]"));
  CheckpointWriter writer(root(), 3, 0, 2);
  const std::vector<std::string> parts = {writer.finish()};
  EXPECT_THROW(writer.commit(parts, {}), Error);
  const std::vector<std::string> twice = {parts[0], parts[0]};
  EXPECT_THROW(writer.commit(twice, {}), Error);
}

TEST_F(Checkpoint, LatestAndPrune) {
  const SliceMeta w{"w", DType::f32, {3}, {0}, {3}};
  EXPECT_EQ(latest_checkpoint(root()), std::nullopt);
  for (const std::int64_t step : {100, 5, 20, 1000000}) {
    save(step, {{w}});
  }
  std::filesystem::create_directories(root() / "step_000007.tmp");
  std::filesystem::create_directories(root() / "step_2000000.tmp");
  std::filesystem::create_directories(root() / "step_000099");  // not complete: left alone
  std::filesystem::create_directories(root() / "notes");
  std::vector<std::string> skipped;
  EXPECT_EQ(latest_checkpoint(root(), &skipped), root() / "step_1000000");
  EXPECT_THAT(skipped, testing::IsEmpty());  // a save that is not finished is no checkpoint
  prune_checkpoints(root(), {2});
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(root())) {
    left.insert(entry.path().filename().string());
  }
  EXPECT_EQ(left, (std::set<std::string>{"step_1000000", "step_000100", "step_2000000.tmp", "step_000099", "notes"}));
  EXPECT_THROW(prune_checkpoints(root(), {0}), Error);
  // Multiples stay, but not what stepped aside for a save of the same step, nor what a killed save left.
  save(1000020, {{w}});
  std::filesystem::copy(root() / "step_1000000", root() / "step_1000000.old", std::filesystem::copy_options::recursive);
  prune_checkpoints(root(), {.newest = 1, .every = 1000});
  left.clear();
  for (const auto& entry : std::filesystem::directory_iterator(root())) {
    left.insert(entry.path().filename().string());
  }
  EXPECT_EQ(left, (std::set<std::string>{"step_1000020", "step_1000000", "step_2000000.tmp", "step_000099", "notes"}));
}

// A host that has the folder for itself alone writes where rank 0 sees nothing.
TEST_F(Checkpoint, AFileThatRankZeroDoesNotSeeIsNotCommitted) {
  for (const bool shorter : {false, true}) {
    std::vector<CheckpointWriter> writers;
    std::vector<std::string> parts;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      writers.emplace_back(root(), 1, rank, 2);
      const float value = 1;
      writers.back().add({"x", DType::f32, {2}, {rank}, {1}}, &value);
      parts.push_back(writers.back().finish());
    }
    const std::filesystem::path file = root() / "step_000001.tmp/rank_00001.safetensors";
    const auto bytes = std::filesystem::file_size(file);
    if (shorter) {
      std::filesystem::resize_file(file, bytes - 1);
    } else {
      std::filesystem::remove(file);
    }
    const std::string reason = test::error_of<Error>([&] { writers[0].commit(parts, {}); });
    EXPECT_THAT(reason, testing::AllOf(HasSubstr("rank 1 on "), HasSubstr(file.string()),
                                       HasSubstr(fmt::format("has written {} bytes", bytes)),
                                       HasSubstr(shorter ? fmt::format("finds {} bytes there", bytes - 1)
                                                         : "finds no such file there")));
    EXPECT_FALSE(std::filesystem::exists(root() / "step_000001"));
  }
}

TEST_F(Checkpoint, WhatWasKeptForGoodStaysWithoutTheRule) {
  const auto one = [&](std::int64_t step, const std::map<std::string, std::string>& state = {}) {
    save(step, {{{"x", DType::f32, {2}, {0}, {2}}}}, state);
  };
  const auto steps = [&] {
    std::vector<std::int64_t> found;
    for (const NamedCheckpoint& checkpoint : checkpoints_in(root())) {
      found.push_back(checkpoint.step);
    }
    return found;
  };
  one(2, {{kept_mark, "for good: run.keep_every = 2"}});
  one(3);
  one(4);
  prune_checkpoints(root(), {.newest = 1, .every = 4});  // marks step 4
  one(5);
  one(6);
  prune_checkpoints(root(), {.newest = 1, .every = 0});
  EXPECT_THAT(steps(), ElementsAre(6, 4, 2));
  one(2);  // of the same step, by a run without the rule
  one(7);
  prune_checkpoints(root(), {.newest = 1, .every = 0});
  EXPECT_THAT(steps(), ElementsAre(7, 4, 2));
  EXPECT_TRUE(is_marked_kept(root() / "step_000002"));
}

TEST_F(Checkpoint, ASaveReplacesTheLeavingsOfAKilledOneAndACheckpointOfTheSameStep) {
  const SliceMeta whole{"w", DType::f32, {4}, {0}, {4}};
  std::filesystem::create_directories(root() / "step_000003.tmp");
  std::ofstream(root() / "step_000003.tmp" / "rank_00001.safetensors") << "left behind";
  std::ofstream(root() / "step_000003.tmp" / "rank_00000.safetensors") << std::string(100000, 'x');
  save(3, {{whole}}, {{"try", "1"}});
  EXPECT_FALSE(std::filesystem::exists(root() / "step_000003" / "rank_00001.safetensors"));
  save(3, {{whole}}, {{"try", "2"}});
  EXPECT_EQ(CheckpointReader(root() / "step_000003").state().at("try"), "2");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root()), {}), 1);
}

TEST(Disk, AFileSystemThatSaysNothingOfItsRoomIsTrusted) {
  EXPECT_TRUE(has_room({.capacity = 0, .free = 0, .available = 0}, 1));
  EXPECT_TRUE(has_room({.capacity = 100, .free = 50, .available = 10}, 10));
  EXPECT_FALSE(has_room({.capacity = 100, .free = 50, .available = 10}, 11));
  EXPECT_FALSE(has_room({.capacity = 100, .free = 0, .available = 0}, 1));
}

TEST(Disk, SaysWhereThereIsNoRoom) {
  const TemporaryFolder folder;
  const Disk disk;
  disk.require_room(folder.path(), 1, "make room");
  EXPECT_THAT(test::error_of([&] { disk.require_room(folder.path(), std::uint64_t{1} << 60, "make room"); }),
              testing::AllOf(testing::HasSubstr("1048576.00 TiB are to be written"), testing::HasSubstr("has room for"),
                             testing::HasSubstr("make room. Nothing was written")));
}

}  // namespace
}  // namespace orthant::checkpoint_test
