// Event files, read by a reader of their own: lengths, checksums taken bit by bit, and the fields that TensorBoard
// reads. Where Python has TensorBoard, its own reader too.
#include "core/run/tensorboard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::run_test::tensorboard_test {
namespace {

// x^32 + x^28 + ... reversed (RFC 3720), a bit at a time.
std::uint32_t bitwise_crc(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<unsigned char>(c) >> bit)) & 1) != 0;
      crc = odd ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
  }
  return ~crc;
}

std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t turned = masked - 0xa282ead8u;
  return (turned >> 17) | (turned << 15);
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.substr(at, sizeof(number)).data(), sizeof(number));
  return number;
}

// The fields of a message: numbers (varints and fixed ones as their bits) and bytes.
struct Field {
  int number = 0, wire = 0;
  std::uint64_t value = 0;
  std::string bytes = {};
};

std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    Field field{.number = static_cast<int>(key >> 3), .wire = static_cast<int>(key & 7)};
    if (field.wire == 0) {
      field.value = varint();
    } else if (field.wire == 1) {
      field.value = number_at<std::uint64_t>(message, at);
      at += 8;
    } else if (field.wire == 5) {
      field.value = number_at<std::uint32_t>(message, at);
      at += 4;
    } else {
      const std::uint64_t length = varint();
      field.bytes = message.substr(at, length);
      at += length;
    }
    fields.push_back(field);
  }
  return fields;
}

struct Read {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version = {};
  bool restart = false;
  std::map<std::string, float> scalars = {};
};

Read event_of(std::string_view message) {
  Read event;
  for (const Field& field : fields_of(message)) {
    switch (field.number) {
      case 1: event.wall_time = std::bit_cast<double>(field.value); break;
      case 2: event.step = static_cast<std::int64_t>(field.value); break;
      case 3: event.version = field.bytes; break;
      case 5:
        for (const Field& value : fields_of(field.bytes)) {
          EXPECT_EQ(value.number, 1);
          std::string tag;
          float number = 0;
          for (const Field& part : fields_of(value.bytes)) {
            if (part.number == 1) {
              tag = part.bytes;
            } else {
              EXPECT_EQ(part.number, 2);
              number = std::bit_cast<float>(static_cast<std::uint32_t>(part.value));
            }
          }
          EXPECT_TRUE(event.scalars.emplace(tag, number).second) << tag << " is there twice";
        }
        break;
      case 7: event.restart = fields_of(field.bytes).at(0).value == 1; break;
      default: ADD_FAILURE() << "field " << field.number;
    }
  }
  return event;
}

std::vector<Read> events_of(std::string_view file) {
  std::vector<Read> events;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(file, at + 8)), bitwise_crc(file.substr(at, 8)));
    const std::string_view message = file.substr(at + 12, length);
    EXPECT_EQ(message.size(), length);
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(file, at + 12 + length)), bitwise_crc(message));
    events.push_back(event_of(message));
    at += 16 + length;
  }
  return events;
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// In the order in which TensorBoard reads them.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(EventFile, ChecksumsAreThoseOfTheRfc) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising(32, '\0');
  std::iota(rising.begin(), rising.end(), '\0');
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventFile, WhatIsWrittenIsRead) {
  const std::string file = as_record(version_event(12.5)) + as_record(restart_event(13, 301)) +
                           as_record(scalars_event(14, 1LL << 40, {{"a/b", 0.1}, {"c", -3e38}})) +
                           as_record(scalars_event(15, 7, {}));
  const std::vector<Read> events = events_of(file);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].wall_time, 12.5);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].restart);
  EXPECT_EQ(events[1].step, 301);
  EXPECT_EQ(events[2].step, 1LL << 40);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{"a/b", 0.1f}, {"c", -3e38f}}));
}

TEST(TensorboardScalars, GroupByWhatTheyAreAbout) {
  const Scalars routed = tensorboard_scalars(
      R"({"step": 3, "loss": 1.5, "aux_loss": 1, "expert_tokens": {"0": [1, 2]}, "peak_by_kind": {"weights": 4},
          "routing": {"0": {"dead_experts": 2, "coactivation": [[1]]}}, "mine.number": 6, "new": 7, "run_id": "x",
          "validation_loss": null})");
  EXPECT_EQ(routed, (Scalars{{"loss/train", 1.5},
                             {"router/balance_loss", 1},
                             {"memory/weights", 4},
                             {"router/0/dead_experts", 2},
                             {"mine/number", 6},
                             {"other/new", 7}}));
  EXPECT_EQ(tensorboard_scalars(R"({"step": 3, "loss": 1, "aux_loss": 0, "drop_rate": 0})"),
            (Scalars{{"loss/train", 1}}));
  EXPECT_NE(test::error_of([] { tensorboard_scalars("[]"); }).find("no JSON object"), std::string::npos);
}

// Every line of metrics.jsonl, also of a run that was resumed from before its end.
TEST(Tensorboard, ARunAndItsResumeLeaveWhatMetricsSay) {
  ProgramFolder folder;
  folder.write("r.toml", tiny_config({}));
  const auto train = [&](std::vector<std::string> words, std::vector<std::string> values) {
    words.insert(words.begin(), {"train", "r.toml"});
    const Result result = folder.orthant(with_set(std::move(words), values));
    ASSERT_EQ(result.code, 0) << result.error;
  };
  train({}, {"run.steps=4", "run.log_every=1", "run.checkpoint_every=2", "run.validate_every=2"});
  train({"--resume", folder.checkpoint(2).string()}, {"run.steps=5", "run.log_every=1"});
  const auto files = files_in(folder.run() / "tensorboard");
  ASSERT_EQ(files.size(), 2u);
  std::map<std::int64_t, std::map<std::string, float>> steps;
  for (const auto& file : files) {
    const std::vector<Read> events = events_of(bytes_of(file));
    ASSERT_GE(events.size(), 2u);
    EXPECT_EQ(events[0].version, "brain.Event:2");
    EXPECT_TRUE(events[1].restart);
    steps.erase(steps.lower_bound(events[1].step), steps.end());  // as TensorBoard does
    for (std::size_t i = 2; i < events.size(); ++i) {
      EXPECT_TRUE(steps.emplace(events[i].step, events[i].scalars).second) << "step " << events[i].step;
    }
  }
  const std::vector<double> losses = folder.losses();
  ASSERT_EQ(losses.size(), 5u);
  ASSERT_EQ(steps.size(), 5u);
  for (std::int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(steps.at(step).at("loss/train"), static_cast<float>(losses[static_cast<std::size_t>(step - 1)]));
  }
  EXPECT_EQ(steps.at(2).count("loss/validation"), 1u);
  EXPECT_EQ(steps.at(3).count("loss/validation"), 0u);
  EXPECT_EQ(steps.at(1).count("router/drop_rate"), 1u);
}

TEST(Tensorboard, IsLeftOutWhereItIsNotWanted) {
  ProgramFolder folder;
  folder.write("r.toml", tiny_config({}));
  ASSERT_EQ(folder.orthant(with_set({"train", "r.toml"}, {"run.steps=1", "run.tensorboard=false"})).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.run() / "tensorboard"));
}

TEST(Tensorboard, ItsOwnReaderReadsIt) {
  ProgramFolder folder;
  const char* const python = std::getenv("ORTHANT_TEST_TENSORBOARD");  // a python3 that has it, if not the first one
  const std::string program = python != nullptr ? python : "python3";
  if (folder.command({program, "-c", "import tensorboard"}).code != 0) {
    GTEST_SKIP() << program << " has no module tensorboard";
  }
  folder.write("read.py",
               "import sys\n"
               "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
               "events = EventAccumulator(sys.argv[1])\n"
               "events.Reload()\n"
               "for tag in ('loss/train', 'loss/validation'):\n"
               "    print(tag, [(e.step, round(e.value, 3)) for e in events.Scalars(tag)])\n");
  {
    TensorboardFile file(folder.path("run"), 0);
    file.write(R"({"step": 1, "loss": 5.5})");
    file.write(R"({"step": 2, "loss": 5.25, "validation_loss": 5})");
    file.write(R"({"step": 3, "loss": 4})");
  }
  TensorboardFile resumed(folder.path("run"), 2);
  resumed.write(R"({"step": 3, "loss": 4.5})");
  const Result read = folder.command({program, folder.path("read.py").string(), folder.path("run").string()});
  EXPECT_EQ(read.code, 0) << read.error;
  EXPECT_EQ(read.output, "loss/train [(1, 5.5), (2, 5.25), (3, 4.5)]\nloss/validation [(2, 5.0)]\n");
}

}  // namespace
}  // namespace orthant::run_test::tensorboard_test
