// Saves that are killed and checkpoints that are damaged: the one before stays usable, and nobody is fooled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <array>

#include "core/checkpoint/checkpoint.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::damage_test {
namespace {

using testing::HasSubstr;

struct Killed {};

class Damage : public testing::Test {
 protected:
  // Two ranks, each half of w [2, 3]; every element is `value`. `operations` counts down to a kill.
  void save(std::int64_t step, float value, int* operations = nullptr) {
    const Disk disk([operations](std::string_view, const std::filesystem::path&) {
      if (operations != nullptr && (*operations)-- == 0) {
        throw Killed();
      }
    });
    const std::array<float, 3> half = {value, value, value};
    CheckpointWriter first(root(), step, 0, 2, disk), second(root(), step, 1, 2, disk);
    first.add({"w", DType::f32, {2, 3}, {0, 0}, {1, 3}}, half.data());
    second.add({"w", DType::f32, {2, 3}, {1, 0}, {1, 3}}, half.data());
    const std::vector<std::string> parts = {first.finish(), second.finish()};
    first.commit(parts, {{"value", std::to_string(static_cast<int>(value))}});
    prune_checkpoints(root(), {1}, disk);
  }
  // The value of the newest checkpoint, 0 when there is none; every element and the state must agree.
  int newest() {
    const auto path = latest_checkpoint(root());
    if (!path) {
      return 0;
    }
    const CheckpointReader reader(*path);
    std::array<float, 6> w{};
    reader.read("w", {0, 0}, {2, 3}, w.data());
    for (const float element : w) {
      EXPECT_EQ(std::to_string(static_cast<int>(element)), reader.state().at("value"));
    }
    return static_cast<int>(w[0]);
  }
  std::filesystem::path root() const { return folder_.path() / "checkpoints"; }
  TemporaryFolder folder_;
};

// `same`: the save killed is one of a step that has a checkpoint already.
class Kill : public Damage, public testing::WithParamInterface<bool> {};

TEST_P(Kill, AtAnyOperationLeavesTheCheckpointBeforeOrTheNewOne) {
  const bool same = GetParam();
  bool finished = false;
  int kills = 0, saw_old = 0, saw_new = 0;
  for (int n = 0; !finished; ++n) {
    std::filesystem::remove_all(root());
    save(1, 1.0f);
    int operations = n;
    try {
      save(same ? 1 : 2, 2.0f, &operations);
      finished = true;
    } catch (const Killed&) {
      ++kills;
    }
    const int value = newest();
    EXPECT_TRUE(finished ? value == 2 : value == 1 || value == 2) << "killed at operation " << n << ": " << value;
    (value == 1 ? saw_old : saw_new) += 1;
    save(same ? 1 : 2, 3.0f);  // the run that comes after
    EXPECT_EQ(newest(), 3) << "after a kill at operation " << n;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root()), {}), 1) << "leavings of operation " << n;
  }
  EXPECT_GT(kills, 15);
  EXPECT_GT(saw_old, 10);
  EXPECT_GT(saw_new, 1);
}

INSTANTIATE_TEST_SUITE_P(Saves, Kill, testing::Bool(),
                         [](const auto& instance) { return instance.param ? "SameStep" : "NextStep"; });

// What a power failure may do to files that were not synced, and bad disks to those that were.
TEST_F(Damage, EveryCutAndFlipIsNoticedAndTheCheckpointBeforeFound) {
  save(1, 1.0f);
  std::filesystem::rename(root() / "step_000001", folder_.path() / "kept");
  save(2, 2.0f);
  std::filesystem::rename(folder_.path() / "kept", root() / "step_000001");
  for (const char* name : {"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"}) {
    const std::string path = (root() / "step_000002" / name).string();
    const std::string good = read_file(path);
    const auto with = [&](const std::string& bytes) {
      std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
      return newest();
    };
    for (std::size_t n = 0; n < good.size(); ++n) {
      if (name[0] == 'm' && n + 1 == good.size()) {
        continue;  // only the last line's end is missing
      }
      EXPECT_EQ(with(good.substr(0, n)), 1) << name << " cut to " << n << " bytes";
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 0x04);
      // White space of the manifest may change into other white space without harm; nothing else may.
      const bool space = name[0] == 'm' && (good[i] == '\n' || good[i] == ' ');
      EXPECT_TRUE(with(bad) == 1 || space) << name << " flipped at " << i << ": '" << good[i] << "'";
    }
    EXPECT_EQ(with(good), 2);
    std::filesystem::remove(path);
    EXPECT_THROW(newest(), CheckpointUnreadable) << name << " missing";
    EXPECT_EQ(with(good), 2);
  }
}

TEST_F(Damage, ReasonsAreSaid) {
  save(1, 1.0f);
  const auto file = root() / "step_000001" / "rank_00001.safetensors";
  const std::string good = read_file(file);
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bad;
  std::vector<std::string> skipped;
  EXPECT_EQ(latest_checkpoint(root(), &skipped), std::nullopt);
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_THAT(skipped[0], HasSubstr("rank_00001.safetensors': its checksum"));
  std::ofstream(file, std::ios::binary | std::ios::trunc) << good.substr(0, 50);
  skipped.clear();
  EXPECT_EQ(latest_checkpoint(root(), &skipped), std::nullopt);
  EXPECT_THAT(skipped[0], HasSubstr("has 50 bytes, its manifest says"));
}

// What cannot be read now may be whole: it is no reason to take an older one, or none.
TEST_F(Damage, WhatCannotBeReadIsNotTakenForDamaged) {
  save(1, 1.0f);
  const auto folder = root() / "step_000001";
  for (const std::string name : {"rank_00001.safetensors", "manifest.json"}) {
    const std::string good = read_file(folder / name);
    std::filesystem::remove(folder / name);
    const auto refused = [&] { return test::error_of<CheckpointUnreadable>([&] { latest_checkpoint(root()); }); };
    EXPECT_THAT(refused(), AllOf(HasSubstr(name), HasSubstr("No such file")));
    std::filesystem::create_symlink("/nowhere/at/all", folder / name);
    EXPECT_THAT(refused(), AllOf(HasSubstr(name), HasSubstr("No such file")));
    std::filesystem::remove(folder / name);
    std::filesystem::create_directory(folder / name);
    EXPECT_THAT(refused(), HasSubstr(name));
    std::filesystem::remove(folder / name);
    std::ofstream(folder / name, std::ios::binary) << good;
    EXPECT_EQ(newest(), 1);
  }
  const auto file = folder_.path() / "a_file";
  std::ofstream(file) << "x";
  EXPECT_THAT(test::error_of<CheckpointUnreadable>([&] { latest_checkpoint(file); }),
              AllOf(HasSubstr("cannot list"), HasSubstr("a_file")));
  const auto unmounted = folder_.path() / "unmounted";
  std::filesystem::create_symlink("/nowhere/at/all", unmounted);
  EXPECT_THAT(test::error_of<CheckpointUnreadable>([&] { latest_checkpoint(unmounted); }), HasSubstr("No such file"));
  EXPECT_EQ(latest_checkpoint(folder_.path() / "nothing"), std::nullopt);
}

TEST_F(Damage, ARenamedFolderIsNotTakenForTheNewest) {
  save(10, 1.0f);
  std::filesystem::rename(root() / "step_000010", root() / "step_000077");
  std::vector<std::string> skipped;
  EXPECT_EQ(latest_checkpoint(root(), &skipped), std::nullopt);
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_THAT(skipped[0], HasSubstr("step_000077: its manifest is of step 10: the folder was renamed"));
  std::filesystem::copy(root() / "step_000077", root() / "best");
  EXPECT_EQ(latest_checkpoint(root(), &skipped), std::nullopt);
  ASSERT_EQ(skipped.size(), 2u);
  EXPECT_THAT(skipped[0], HasSubstr("best: its manifest is of step 10: the folder was renamed"));
  save(11, 2.0f);  // keeps one, and the renamed one does not count as that
  EXPECT_EQ(newest(), 2);
  EXPECT_TRUE(std::filesystem::exists(root() / "step_000077"));
}

TEST_F(Damage, EachOfTwoReadersFindsTheDamageInItsShare) {
  save(1, 1.0f);
  const auto file = root() / "step_000001" / "rank_00001.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  const NamedCheckpoint checkpoint = checkpoints_in(root()).at(0);
  EXPECT_EQ(why_not_usable(checkpoint, 0, 2), "");
  EXPECT_THAT(why_not_usable(checkpoint, 1, 2), HasSubstr("rank_00001.safetensors': its checksum"));
  EXPECT_THAT(why_not_usable(checkpoint), HasSubstr("rank_00001.safetensors': its checksum"));
}

// Another job may have taken the folder while this one wrote.
TEST_F(Damage, WhatIsRefusedBeforeTheCommitDoesNotAppear) {
  save(1, 1.0f);
  CheckpointWriter writer(root(), 2, 0, 1);
  const float value = 2;
  writer.add({"w", DType::f32, {1}, {0}, {1}}, &value);
  const std::vector<std::string> parts = {writer.finish()};
  EXPECT_EQ(test::error_of([&] { writer.commit(parts, {}, [] { fail("not yours"); }); }), "not yours");
  EXPECT_EQ(newest(), 1);
  EXPECT_FALSE(std::filesystem::exists(root() / "step_000002"));
}

}  // namespace
}  // namespace orthant::damage_test
