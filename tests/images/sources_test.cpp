// Images as files have them, what a model is shown of them, and that damage is refused by the file's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/random.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/data/source.h"
#include "plugins/images/decode.h"
#include "plugins/images/decode_ahead.h"
#include "plugins/images/file_bytes.h"
#include "plugins/images/image_set.h"
#include "plugins/images/view.h"
#include "tests/config/temporary_folder.h"
#include "tests/images/experiments.h"
#include "tests/images/picture_files.h"
#include "tests/support/error_of.h"

namespace orthant::test::images_sources_test {
namespace {

using namespace images;
using namespace images_test;
using testing::AllOf;
using testing::HasSubstr;

TEST(Idx, IsReadAsItStands) {
  const TemporaryFolder folder;
  write(folder.path("i"), idx({3, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  write(folder.path("l"), idx({3}, {4, 0, 2}));
  const auto set = open_images({folder.path("i"), folder.path("l")}, Format::by_content);
  EXPECT_EQ(set->size(), 3);
  EXPECT_EQ(set->classes(), 5);
  EXPECT_EQ(set->label(0), 4);
  EXPECT_EQ(set->label(2), 2);
  EXPECT_EQ(set->image(1).pixel, (Bytes{5, 6, 7, 8}));
}

TEST(Cifar, IsReadPlaneByPlane) {
  const TemporaryFolder folder;
  Bytes records;
  for (std::uint8_t image = 0; image < 2; ++image) {
    records.push_back(static_cast<std::uint8_t>(7 + image));
    for (int i = 0; i < 3072; ++i) {
      records.push_back(static_cast<std::uint8_t>(i / 1024 * 50 + i % 7 + image));
    }
  }
  write(folder.path("data_batch_1.bin"), records);
  const auto set = open_images({folder.path("data_batch_1.bin")}, Format::by_content);
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->label(1), 8);
  const Image image = set->image(1);
  EXPECT_EQ(image.at(0, 5, 0), 5 + 1);
  EXPECT_EQ(image.at(0, 5, 2), 100 + 2048 % 7 + 5 + 1 - (2048 % 7 + 5) / 7 * 7);
  // Of two labels the fine one counts.
  Bytes hundred = {3, 42};
  hundred.insert(hundred.end(), records.begin() + 1, records.begin() + 3073);
  write(folder.path("train.bin"), hundred);
  const auto of_hundred = open_images({folder.path("train.bin")}, Format::by_content);
  EXPECT_EQ(of_hundred->label(0), 42);
  EXPECT_EQ(of_hundred->classes(), 100);
}

TEST(Folders, AreClassesByName) {
  if (!decodes_pictures) {
    GTEST_SKIP() << "without libpng or libjpeg-turbo";
  }
  const TemporaryFolder folder;
  write_pictures(folder.path("set"));
  const auto set = open_images({folder.path("set")}, Format::by_content);
  EXPECT_EQ(set->classes(), 2);
  ASSERT_EQ(set->size(), 4);
  EXPECT_EQ(set->label(1), 0);
  EXPECT_EQ(set->label(2), 1);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Image image = set->image(i);
    ASSERT_EQ(image.height, 20);
    ASSERT_EQ(image.width, 24);
    for (int y = 0; y < 20; y += 3) {
      for (int x = 0; x < 24; x += 5) {
        for (int c = 0; c < image.channels; ++c) {
          EXPECT_NEAR(image.at(y, x, c), pixel_of(y, x, c), i % 2 == 0 ? 0 : 12) << i;  // a JPEG is near
        }
      }
    }
  }
}

// --- views

ViewRule rule_of(int size) {
  return {.size = size, .channels = 1, .mean = {0.5}, .deviation = {0.5}};
}

Image counted(int height, int width) {
  Image image{height, width, 1, {}};
  for (int i = 0; i < height * width; ++i) {
    image.pixel.push_back(static_cast<std::uint8_t>(i * 3 % 256));
  }
  return image;
}

TEST(View, OfTheSameSizeIsTheImage) {
  const Image image = counted(6, 6);
  const std::vector<float> view = view_of(image, rule_of(6), std::nullopt);
  for (std::size_t i = 0; i < 36; ++i) {
    EXPECT_EQ(view[i], (static_cast<float>(image.pixel[i]) / 255 - 0.5f) / 0.5f);
  }
}

TEST(View, IsTheSquareInTheMiddleResampled) {
  Image flat{8, 20, 1, Bytes(160, 51)};
  for (const float x : view_of(flat, rule_of(5), std::nullopt)) {
    EXPECT_NEAR(x, -0.6f, 1e-5f);
  }
  // A ramp stays one: its middle half, at half the pixels.
  Image ramp{8, 16, 1, {}};
  for (int i = 0; i < 128; ++i) {
    ramp.pixel.push_back(static_cast<std::uint8_t>(i % 16 * 10));
  }
  const std::vector<float> view = view_of(ramp, rule_of(4), std::nullopt);
  for (std::size_t x = 0; x < 4; ++x) {
    const double expected = (4 + 2 * static_cast<double>(x) + 0.5) * 10;
    EXPECT_NEAR((view[x] * 0.5 + 0.5) * 255, expected, 0.01);
  }
}

TEST(View, MovesAndMirrorsByChance) {
  const Image image = counted(6, 6);
  ViewRule rule = rule_of(6);
  rule.padding = 2;
  rule.flip = true;
  const RandomKey key{3, Purpose::data_order, 1, 5};
  const std::vector<float> plain = view_of(image, rule, std::nullopt);
  std::set<std::vector<float>> seen;
  for (std::int64_t number = 0; number < 400; ++number) {
    const std::vector<float> view = view_of(image, rule, Draws{key, number});
    EXPECT_EQ(view, view_of(image, rule, Draws{key, number}));
    seen.insert(view);
    // Some shift and mirror of the image, with black around it.
    bool found = false;
    for (int dy = -2; dy <= 2; ++dy) {
      for (int dx = -2; dx <= 2; ++dx) {
        for (const bool mirrored : {false, true}) {
          bool same = true;
          for (int y = 0; y < 6 && same; ++y) {
            for (int x = 0; x < 6 && same; ++x) {
              const int from_y = y + dy, from_x = (mirrored ? 5 - x : x) + dx;
              const bool in = from_y >= 0 && from_y < 6 && from_x >= 0 && from_x < 6;
              same = view[static_cast<std::size_t>(6 * y + x)] ==
                     (in ? plain[static_cast<std::size_t>(6 * from_y + from_x)] : -1.0f);
            }
          }
          found = found || same;
        }
      }
    }
    EXPECT_TRUE(found) << number;
  }
  EXPECT_EQ(seen.size(), 50u);  // 5 x 5 places, mirrored or not
  EXPECT_NE(view_of(image, rule, Draws{{3, Purpose::data_order, 1, 6}, 0}),
            view_of(image, rule, Draws{{3, Purpose::data_order, 1, 7}, 0}));
}

TEST(View, CropsWithinTheImage) {
  const Image image = counted(40, 30);
  ViewRule rule = rule_of(8);
  rule.area = 0.2;
  double black = 0;
  std::set<std::vector<float>> seen;
  for (std::int64_t number = 0; number < 50; ++number) {
    const Image white{40, 30, 1, Bytes(1200, 255)};
    for (const float x : view_of(white, rule, Draws{{}, number})) {
      black += x < 0.999f ? 1 : 0;
    }
    seen.insert(view_of(image, rule, Draws{{}, number}));
  }
  EXPECT_EQ(black, 0);
  EXPECT_GT(seen.size(), 45u);
}

TEST(View, TurnsColours) {
  const Image colour{1, 1, 3, {100, 150, 200}}, grey{1, 1, 1, {90}};
  EXPECT_NEAR((view_of(colour, rule_of(1), std::nullopt)[0] + 1) / 2 * 255, 0.299 * 100 + 0.587 * 150 + 0.114 * 200,
              0.01);
  ViewRule three = {.size = 1, .channels = 3, .mean = {0, 0, 0}, .deviation = {1, 1, 1}};
  EXPECT_EQ(view_of(grey, three, std::nullopt), (std::vector<float>(3, 90.0f / 255)));
}

// --- batches

HostBatch step_of(const Overrides& more, std::int64_t step, std::int64_t first, std::int64_t count) {
  return make_batch_source(experiment(joined(dense, more), plugin).settings)->train(step, first, count);
}
const Overrides moving = {"data.image_padding=3", "data.image_flip=true"};

TEST(Pictures, DependOnSeedNumberAndEpochAlone) {
  const Overrides more = joined(moving, {"data.shapes=16", "data.validation_fraction=0.5"});  // epochs of a step
  const HostBatch whole = step_of(more, 3, 0, 8);
  for (const char* workers : {"data.image_workers=0", "data.image_workers=3"}) {
    const auto source = make_batch_source(experiment(joined(dense, joined(more, {workers})), plugin).settings);
    for (const std::int64_t step : {2, 3}) {  // with what was expected, and without
      const HostBatch first = source->train(step, 0, 4), second = source->train(step, 4, 4);
      if (step == 3) {
        EXPECT_TRUE(std::equal(first.value.begin(), first.value.end(), whole.value.begin()));
        EXPECT_TRUE(std::equal(second.value.rbegin(), second.value.rend(), whole.value.rbegin()));
      }
    }
  }
  const auto sorted = [](const HostBatch& batch) {
    std::multiset<std::vector<float>> images;
    const auto size = static_cast<std::ptrdiff_t>(batch.value.size() / 8);
    for (std::ptrdiff_t i = 0; i < 8; ++i) {
      images.emplace(batch.value.begin() + i * size, batch.value.begin() + (i + 1) * size);
    }
    return images;
  };
  EXPECT_NE(sorted(step_of(more, 0, 0, 8)), sorted(step_of(more, 1, 0, 8)));  // other views of the same images
  const Overrides still = {"data.shapes=16", "data.validation_fraction=0.5"};
  EXPECT_EQ(sorted(step_of(still, 0, 0, 8)), sorted(step_of(still, 1, 0, 8)));
  EXPECT_NE(whole.value, step_of(joined(more, {"run.seed=2"}), 3, 0, 8).value);
}

TEST(Pictures, AreHeldOutAlikeWhateverTheSeed) {
  const auto held = [](const Overrides& more) {
    const auto source = make_batch_source(experiment(joined(dense, more), plugin).settings);
    return source->validation(0, source->validation_sequences());
  };
  EXPECT_EQ(held({}).value, held({"run.seed=7"}).value);
  EXPECT_EQ(held(moving).value, held({}).value);
  EXPECT_EQ(held({"data.validation_sequences=100"}).sequences, 6);  // a tenth of 64, rounded
  // Nothing that is trained on is measured.
  const HostBatch measured = held({"data.validation_sequences=100"});
  const auto source = make_batch_source(experiment(dense, plugin).settings);
  std::set<std::vector<float>> trained;
  const auto image = [](const HostBatch& batch, std::ptrdiff_t i) {
    const auto size = static_cast<std::ptrdiff_t>(batch.value.size()) / batch.sequences;
    return std::vector<float>(batch.value.begin() + i * size, batch.value.begin() + (i + 1) * size);
  };
  for (std::int64_t step = 0; step < 8; ++step) {
    const HostBatch batch = source->train(step, 0, 8);
    for (std::ptrdiff_t i = 0; i < 8; ++i) {
      trained.insert(image(batch, i));
    }
  }
  EXPECT_EQ(trained.size(), 58u);
  for (std::ptrdiff_t i = 0; i < 6; ++i) {
    EXPECT_FALSE(trained.contains(image(measured, i)));
  }
}

TEST(Pictures, OfATestPathAreMeasuredAndNotTrainedOn) {
  const TemporaryFolder folder;
  write(folder.path("i"), idx({4, 12, 12}, Bytes(576, 10)));
  write(folder.path("l"), idx({4}, {0, 1, 2, 3}));
  write(folder.path("ti"), idx({2, 12, 12}, Bytes(288, 200)));
  write(folder.path("tl"), idx({2}, {1, 3}));
  const Overrides files = {R"(data.source="images")",
                           fmt::format("data.path=[\"{}\",\"{}\"]", folder.path("i"), folder.path("l")),
                           fmt::format("data.test_path=[\"{}\",\"{}\"]", folder.path("ti"), folder.path("tl"))};
  const auto source = make_batch_source(experiment(joined(dense, files), plugin).settings);
  EXPECT_EQ(source->size()->sequences, 4);
  ASSERT_EQ(source->validation_sequences(), 2);
  const HostBatch measured = source->validation(0, 2), trained = source->train(0, 0, 8);
  EXPECT_NEAR(measured.value[16], 200.0 / 255 * 2 - 1, 1e-6);
  EXPECT_NEAR(trained.value[16], 10.0 / 255 * 2 - 1, 1e-6);
  EXPECT_EQ(measured.value[0], 0);  // of the class token
  EXPECT_EQ((std::set<std::int32_t>{measured.label[0], measured.label[10]}), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(measured.label[1], -1);
}

TEST(DecodeAhead, PassesOnWhatFails) {
  DecodeAhead ahead(
      [](const EpochSequence& of) -> Sequence {
        require(of.number != 3, "picture {} is damaged", of.number);
        return {SequenceDocument{.token = {static_cast<std::int32_t>(of.number)}}};
      },
      2, 8);
  std::vector<EpochSequence> soon;
  for (std::int64_t i = 0; i < 20; ++i) {  // more than may wait
    soon.push_back({i, 1});
  }
  ahead.expect(soon);
  for (std::int64_t i = 0; i < 20; ++i) {
    if (i == 3) {
      EXPECT_EQ(error_of([&] { ahead.take({i, 1}); }), "picture 3 is damaged");
    } else {
      EXPECT_EQ(ahead.take({i, 1}).front().token.front(), i);
    }
  }
}

// --- damage

TEST(Damage, IsNamed) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& files, Format format = Format::by_content) {
    std::vector<std::string> paths;
    for (const std::string& file : files) {
      paths.push_back(folder.path(file));
    }
    return error_of<ConfigError>([&] { open_images(paths, format); });
  };
  write(folder.path("i"), idx({3, 2, 2}, Bytes(12, 1)));
  write(folder.path("l"), idx({3}, {0, 1, 1}));
  write(folder.path("short"), idx({3, 2, 2}, Bytes(11, 1)));
  write(folder.path("huge"), idx({2000000000, 2000000000, 2000000000}, Bytes(12, 1)));
  write(folder.path("floats"), Bytes{0, 0, 0x0D, 1, 0, 0, 0, 0});
  write(folder.path("l2"), idx({2}, {0, 1}));
  write(folder.path("gz"), Bytes{0x1F, 0x8B, 8, 0, 0, 0});
  write(folder.path("cifar"), Bytes(3073, 200));
  EXPECT_THAT(refused({"i"}), HasSubstr("/i' is an IDX file, and no file of labels stands behind it"));
  EXPECT_THAT(refused({"i", "l2"}), HasSubstr("expected a label for each of the 3 images"));
  EXPECT_THAT(refused({"l", "i"}), HasSubstr("expected images [n, height, width]"));
  EXPECT_THAT(refused({"short", "l"}), AllOf(HasSubstr("/short'"), HasSubstr("12 elements, and 11 bytes follow")));
  EXPECT_THAT(refused({"huge", "l"}), AllOf(HasSubstr("/huge'"), HasSubstr("more elements")));
  EXPECT_THAT(refused({"floats", "l"}, Format::idx), HasSubstr("type 0x0d"));
  EXPECT_THAT(refused({"gz", "l"}, Format::idx), HasSubstr("unpacked first"));
  EXPECT_THAT(refused({"gz"}), HasSubstr("no records of CIFAR"));
  EXPECT_THAT(refused({"cifar"}), HasSubstr("has label 200, expected less than 10"));
  EXPECT_THAT(refused({"nothing"}), HasSubstr("cannot be read"));
  std::filesystem::create_directories(folder.path("set/a"));
  EXPECT_THAT(refused({"set"}), HasSubstr("a class without images"));
  write_pictures(folder.path("one"));
  std::filesystem::remove_all(folder.path("one/b"));
  EXPECT_THAT(refused({"one"}), HasSubstr("1 folders with images"));
}

// Whatever stands in a file: it is read, or refused by an Error that names it.
TEST(Damage, NeverCrashes) {
  if (!decodes_pictures) {
    GTEST_SKIP() << "without libpng or libjpeg-turbo";
  }
  const TemporaryFolder folder;
  write_pictures(folder.path("set"));
  write(folder.path("i"), idx({3, 2, 2}, Bytes(12, 1)));
  write(folder.path("l"), idx({3}, {0, 1, 1}));
  const std::string broken = folder.path("broken");
  const RandomKey key{11};
  std::uint64_t drawn = 0;
  int read = 0, refused = 0;
  const auto attempt = [&](const Bytes& bytes, const std::function<void()>& look) {
    write(broken, bytes);
    const std::string told = error_of([&] { look(); });
    (told == "no error" ? read : refused) += 1;
    EXPECT_TRUE(told == "no error" || told.find("broken'") != std::string::npos) << told;
  };
  const auto damaged = [&](const Bytes& whole, const std::function<void()>& look) {
    for (int round = 0; round < 150; ++round) {
      Bytes bytes = whole;
      if (round % 3 == 0) {
        bytes.resize(below(key, drawn++, bytes.size() + 1));
      }
      for (int flip = 0; flip <= round % 5 && !bytes.empty(); ++flip) {
        const std::size_t at = below(key, drawn++, std::min<std::size_t>(bytes.size(), round % 2 == 0 ? 64 : 1 << 20));
        bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1u << below(key, drawn++, 8)));
      }
      attempt(bytes, look);
    }
  };
  for (const char* picture : {"set/a/0.png", "set/a/1.jpg", "set/b/0.png", "set/b/1.jpg"}) {
    if (std::filesystem::exists(folder.path(picture))) {
      damaged(read_file(folder.path(picture)), [&] { decode(broken); });
    }
  }
  damaged(read_file(folder.path("i")), [&] {
    const auto set = open_images({broken, folder.path("l")}, Format::idx);
    set->image(set->size() - 1);
  });
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 50);
}

TEST(Damage, CutsAreRefused) {
  if (!decodes_pictures) {
    GTEST_SKIP() << "without libpng or libjpeg-turbo";
  }
  const TemporaryFolder folder;
  write_pictures(folder.path("set"));
  for (const char* picture : {"set/a/0.png", "set/a/1.jpg"}) {
    const Bytes whole = read_file(folder.path(picture));
    for (const std::size_t size : {whole.size() / 2, whole.size() - whole.size() / 4, std::size_t{3}}) {
      write(folder.path("cut"), Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
      EXPECT_THAT(error_of([&] { decode(folder.path("cut")); }), HasSubstr("/cut'")) << picture << size;
    }
  }
}

}  // namespace
}  // namespace orthant::test::images_sources_test
