// A teacher beside a model that trains: any layout, resumes, what is planned, the student that orthant distil makes,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "core/run/starting_weights.h"
#include "tests/support/program.h"

namespace orthant::distil_run_test {
namespace {

namespace fs = std::filesystem;
using run_test::Result;
using run_test::with_set;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string text =
    "One rank sees what all of them see. A teacher says how likely each byte is, and not only which one came. "
    "What it knows of bytes that did not come is what a student learns from it: 0123456789 (abcdefghij).\n";

constexpr const char* teacher_toml = R"(
[run]
name = "teacher"
steps = 12
[data]
path = ["text.txt"]
sequence_length = 16
validation_sequences = 4
[batch]
sequences = 8
[model]
layers = 2
d_model = 16
heads = 4
d_ff = 16
activation = "swiglu"
init_std = 0.2
[moe]
experts = 4
top_k = 2
shared_experts = 1
d_shared = 8
[optimizer]
lr = 0.02
eps = 1e-5
schedule = "constant"
)";

constexpr const char* student_toml = R"(
extends = ["student/model.toml"]
[run]
name = "s"
steps = 4
log_every = 1
validate_every = 4
[train]
from = "student"
[distil]
weight = 0.6
temperature = 1.5
[data]
path = ["text.txt"]
sequence_length = 16
validation_sequences = 4
[batch]
sequences = 8
micro_batch = 2
[optimizer]
lr = 0.01
eps = 1e-5
schedule = "constant"
)";

class Distil : public testing::Test {
 protected:
  void SetUp() override {
    std::string file;
    for (int i = 0; i < 12; ++i) {
      file += text;
    }
    folder_.write("text.txt", file);
    folder_.write("t.toml", teacher_toml);
    folder_.write("s.toml", student_toml);
    ASSERT_EQ(folder_.orthant({"train", "t.toml"}).code, 0);
  }
  void make_student(const std::vector<std::string>& options = {}, const std::string& teacher = "runs/teacher") {
    std::vector<std::string> words = {"distil", teacher, "-o", "student"};
    words.insert(words.end(), options.begin(), options.end());
    const Result made = folder_.orthant(words);
    ASSERT_EQ(made.code, 0) << made.error;
  }
  std::string refusal(const std::vector<std::string>& values) const {
    const Result result = folder_.orthant(with_set({"launch", "s.toml"}, values));
    EXPECT_EQ(result.code, 78) << result.output;
    return result.error;
  }
  nlohmann::json last_line(const std::string& run) const {
    return nlohmann::json::parse(run_test::lines_of(folder_.run(run) / "metrics.jsonl").back());
  }
  std::vector<float> tensor(const fs::path& run, const std::string& name, std::int64_t rows,
                            std::int64_t columns) const {
    const CheckpointReader reader(starting_checkpoint(run));
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    reader.read(name, {0, 0}, {rows, columns}, values.data());
    return values;
  }

  run_test::ProgramFolder folder_;
};

TEST_F(Distil, EveryLayoutEqualsOneRank) {
  make_student();
  const std::vector<std::vector<std::string>> layouts = {
      {"plugins.data.size=2", "plugins.data.zero=3", "plugins.expert.size=2"},
      {"plugins.tensor.size=4", "plugins.tensor.sequence_parallel=true"},
      {"plugins.sequence.size=2"},
      {"plugins.sequence.size=2", "plugins.sequence.method=\"ring\""},
      {"plugins.pipeline.size=2", "plugins.pipeline.schedule=\"interleaved\"", "plugins.pipeline.chunks=2"},
      {"plugins.data.size=2", "plugins.expert.size=2", "plugins.tensor.size=2", "plugins.pipeline.size=2"},
      {"plugins.data.size=2", "plugins.offload.weights=\"host\"", "plugins.offload.states=\"host\""},
      {"plugins.data.size=2", "plugins.pipeline.size=2", "batch.grow_after=[50]", "batch.grow_to=[24]"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    const Result verified = folder_.orthant(with_set({"verify", "s.toml"}, layout));
    EXPECT_EQ(verified.code, 0) << layout.front() << "\n" << verified.output << verified.error;
    EXPECT_THAT(verified.output, AllOf(HasSubstr("distil_loss"), HasSubstr("\nequal")));
  }
}

// What a configuration may say beside a teacher.
TEST_F(Distil, EveryWayToTrainEqualsOneRank) {
  make_student();
  const std::string disk = "plugins.offload.directory=\"" + testing::TempDir() + "\"";
  const std::vector<std::string> adapters = {"lora.rank=3", "lora.targets=[\"*\"]"},
                                 early = {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"},
                                 half = {"run.dtype=\"bf16\""},
                                 nvme = {"plugins.offload.weights=\"nvme\"", "plugins.offload.states=\"nvme\"",
                                         "plugins.offload.gradients=\"nvme\"", disk};
  const std::vector<std::string> sharded = {"plugins.data.size=2", "plugins.data.zero=3"},
                                 replicas = {"plugins.data.size=2"}, staged = {"plugins.pipeline.size=2"},
                                 wide = {"plugins.pipeline.size=2", "plugins.tensor.size=2"};
  for (const auto& [way, layout] :
       {std::pair(adapters, sharded), std::pair(adapters, wide), std::pair(early, sharded), std::pair(early, staged),
        std::pair(half, wide), std::pair(half, sharded), std::pair(nvme, replicas), std::pair(nvme, staged)}) {
    const Result verified = folder_.orthant(with_set(with_set({"verify", "s.toml"}, way), layout));
    EXPECT_EQ(verified.code, 0) << way.front() << " " << layout.front() << "\n" << verified.output << verified.error;
    EXPECT_THAT(verified.output, AllOf(HasSubstr("distil_loss"), HasSubstr("\nequal")));
  }
}

// A teacher's depths of multi-token prediction are left out, and a student's learn from the text alone.
TEST_F(Distil, WithMultiTokenPredictionEqualsOneRank) {
  ASSERT_EQ(folder_.orthant(with_set({"train", "t.toml"}, {"model.mtp_depth=1", "run.name=\"ahead\""})).code, 0);
  make_student({}, "runs/ahead");
  const std::vector<std::string> ahead = with_set({"verify", "s.toml"}, {"model.mtp_depth=1"});
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"plugins.data.size=2", "plugins.data.zero=3"}, {"plugins.tensor.size=2"}}) {
    const Result verified = folder_.orthant(with_set(ahead, layout));
    EXPECT_EQ(verified.code, 0) << layout.back() << "\n" << verified.output << verified.error;
    EXPECT_THAT(verified.output, AllOf(HasSubstr("distil_loss"), HasSubstr("mtp_loss"), HasSubstr("\nequal")));
  }
  EXPECT_THAT(refusal({"model.mtp_depth=1", "plugins.pipeline.size=4"}),
              HasSubstr("its blocks have the last of 4 stages to themselves"));
}

// The first and the last stage have the student's matrix, and both have the teacher's.
TEST_F(Distil, ATiedHeadEqualsOneRankInAPipeline) {
  ASSERT_EQ(folder_.orthant(with_set({"train", "t.toml"}, {"model.tie_embeddings=true", "run.name=\"tied\""})).code, 0);
  make_student({}, "runs/tied");
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"plugins.pipeline.size=2"},
           {"plugins.pipeline.size=2", "plugins.data.size=2", "plugins.data.zero=2"},
           {"plugins.pipeline.size=2", "plugins.tensor.size=2", "run.dtype=\"bf16\""}}) {
    const Result verified = folder_.orthant(with_set({"verify", "s.toml"}, layout));
    EXPECT_EQ(verified.code, 0) << layout.back() << "\n" << verified.output << verified.error;
    EXPECT_THAT(verified.output, AllOf(HasSubstr("distil_loss"), HasSubstr("\nequal"), Not(HasSubstr("lm_head"))));
  }
}

// Of a model that is the teacher itself nothing is asked: no loss, no gradient. A mixture learns as a dense model does.
TEST_F(Distil, TheTeacherItselfHasNothingToLearn) {
  folder_.write("t2.toml", std::string("extends = [\"t.toml\"]\n[run]\nname = \"self\"\nsteps = 1\n[train]\n") +
                               "from = \"runs/teacher\"\n[distil]\nteacher = \"runs/teacher\"\nweight = 1.0\n" +
                               "[moe]\naux_loss = 0\n");
  const Result result = folder_.orthant({"train", "t2.toml"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("learns from"));
  const nlohmann::json line = last_line("self");
  EXPECT_NEAR(line["distil_loss"].get<double>(), 0, 1e-6);
  EXPECT_LT(line["grad_norm"].get<double>(), 1e-5);
  EXPECT_GT(line["loss"].get<double>(), 0.5) << "the cross entropy is told as ever";
}

// With the teacher alone to learn from, a student comes closer to it.
TEST_F(Distil, AStudentComesCloser) {
  make_student();
  const Result result = folder_.orthant(
      with_set({"train", "s.toml"}, {"run.steps=60", "train.from=\"\"", "distil.weight=1.0", "batch.micro_batch=0"}));
  ASSERT_EQ(result.code, 0) << result.error;
  std::vector<double> apart;
  for (const std::string& line : run_test::lines_of(folder_.run("s") / "metrics.jsonl")) {
    apart.push_back(nlohmann::json::parse(line)["distil_loss"].get<double>());
  }
  EXPECT_LT(apart.back(), 0.5 * apart.front());
}

TEST_F(Distil, AResumedRunIsTheUninterruptedOneBitForBit) {
  make_student();
  const std::vector<std::string> two = {"plugins.data.size=2", "plugins.tensor.size=2"};
  auto values = two;
  values.emplace_back("run.name=\"whole\"");
  ASSERT_EQ(folder_.orthant(with_set({"launch", "s.toml"}, values)).code, 0);
  values = two;
  values.emplace_back("run.steps=2");
  ASSERT_EQ(folder_.orthant(with_set({"launch", "s.toml"}, values)).code, 0);
  const Result resumed = folder_.orthant(with_set({"launch", "s.toml", "--resume", "auto"}, two));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.output, AllOf(HasSubstr("resumed from"), HasSubstr("learns from")));
  EXPECT_THAT(run_test::differences(folder_.checkpoint(4, "s"), folder_.checkpoint(4, "whole")), testing::IsEmpty());
}

TEST_F(Distil, AResumeWithAnotherTeacherIsRefused) {
  make_student();
  ASSERT_EQ(folder_.orthant(with_set({"train", "s.toml"}, {"run.steps=2"})).code, 0);
  ASSERT_EQ(folder_.orthant(with_set({"train", "t.toml", "--resume", "auto"}, {"run.steps=14"})).code, 0);
  const Result result = folder_.orthant(with_set({"train", "s.toml", "--resume", "auto"},
                                                 {"distil.teacher=\"" + folder_.run("teacher").string() + "\""}));
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, AllOf(HasSubstr("step_000014' is step 14 of run"), HasSubstr("has learned from step 12")));
  const std::string none = "distil.teacher=\"\"", other = "run.name=\"other\"";
  const Result without = folder_.orthant(with_set({"train", "s.toml", "--resume", "auto"}, {none}));
  EXPECT_EQ(without.code, 78) << without.output;
  EXPECT_THAT(without.error, HasSubstr("has learned from step 12"));
  ASSERT_EQ(folder_.orthant(with_set({"train", "s.toml"}, {"run.steps=2", none, other})).code, 0);
  const Result gained = folder_.orthant(with_set({"train", "s.toml", "--resume", "auto"}, {other}));
  EXPECT_EQ(gained.code, 78) << gained.output;
  EXPECT_THAT(gained.error, HasSubstr("this run had none"));
}

TEST_F(Distil, ThePlanCountsTheTeacher) {
  make_student();
  const auto peak = [&](std::vector<std::string> values) {
    values.emplace_back("batch.micro_batch=0");
    const Result planned = folder_.orthant(with_set({"plan", "s.toml", "--json"}, values));
    EXPECT_EQ(planned.code, 0) << planned.error;
    return nlohmann::json::parse(planned.output)["memory"][0];
  };
  const nlohmann::json alone = peak({"distil.teacher=\"\""}), taught = peak({}),
                       divided = peak({"plugins.tensor.size=2"});
  EXPECT_EQ(alone["teacher_bytes"], 0);
  // Embedding and head [256, 16], five norms; two blocks of attention, a router, 4 experts and a shared one.
  const std::int64_t block = 4 * 16 * 16 + 4 * 16 + 4 * 3 * 16 * 16 + 3 * 8 * 16;
  EXPECT_EQ(taught["teacher_bytes"], 4 * (2 * 256 * 16 + 5 * 16 + 2 * block));
  EXPECT_LT(divided["teacher_bytes"].get<std::int64_t>(), taught["teacher_bytes"].get<std::int64_t>() * 6 / 10);
  EXPECT_GT(taught["peak_bytes"].get<std::int64_t>(),
            alone["peak_bytes"].get<std::int64_t>() + taught["teacher_bytes"].get<std::int64_t>());
  // What a run needs is what was planned.
  const Result run = folder_.orthant(with_set({"train", "s.toml"}, {"batch.micro_batch=0"}));
  ASSERT_EQ(run.code, 0) << run.error;
  const std::int64_t needed = last_line("s")["peak_bytes"];
  EXPECT_LE(needed, taught["worst_peak_bytes"].get<std::int64_t>());
  EXPECT_GT(needed, taught["peak_bytes"].get<std::int64_t>() * 9 / 10);
}

TEST_F(Distil, AStudentHasTheTeachersPartsAndItsChannels) {
  make_student();
  const fs::path teacher = folder_.run("teacher"), student = folder_.path("student");
  const std::string q = "model.layers.1.self_attn.q_proj.weight", block = "model.layers.1.";
  EXPECT_EQ(tensor(student, q, 16, 16), tensor(teacher, q, 16, 16));
  EXPECT_EQ(tensor(student, "lm_head.weight", 256, 16), tensor(teacher, "lm_head.weight", 256, 16));
  // 8 channels of the shared expert, then 16 of each of two experts.
  const std::vector<float> up = tensor(student, block + "mlp.up_proj.weight", 40, 16);
  const std::vector<float> shared = tensor(teacher, block + "block_sparse_moe.shared_experts.up_proj.weight", 8, 16);
  const std::vector<float> first = tensor(teacher, block + "block_sparse_moe.experts.0.w3.weight", 16, 16);
  const std::vector<float> second = tensor(teacher, block + "block_sparse_moe.experts.1.w3.weight", 16, 16);
  const auto rows = [&](std::int64_t begin, std::int64_t count) {
    return std::vector<float>(up.begin() + begin * 16, up.begin() + (begin + count) * 16);
  };
  EXPECT_EQ(rows(0, 8), shared);
  EXPECT_EQ(rows(8, 16), first);
  EXPECT_EQ(rows(24, 16), second);
  // What an expert puts out counts half, as its weight does on average.
  const std::vector<float> down = tensor(student, block + "mlp.down_proj.weight", 16, 40);
  const std::vector<float> w2 = tensor(teacher, block + "block_sparse_moe.experts.1.w2.weight", 16, 16);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t c = 0; c < 16; ++c) {
      EXPECT_FLOAT_EQ(down[row * 40 + 24 + c], w2[row * 16 + c] / 2);
    }
  }
}

TEST_F(Distil, FewerBlocksAndOtherWidths) {
  make_student({"--layers", "1", "--d-ffn", "100"});
  const fs::path teacher = folder_.run("teacher"), student = folder_.path("student");
  EXPECT_EQ(tensor(student, "model.layers.0.self_attn.k_proj.weight", 16, 16),
            tensor(teacher, "model.layers.1.self_attn.k_proj.weight", 16, 16));
  // 72 channels there, the others drawn anew.
  const std::vector<float> gate = tensor(student, "model.layers.0.mlp.gate_proj.weight", 100, 16);
  double squares = 0;
  for (std::size_t i = 72 * 16; i < gate.size(); ++i) {
    squares += static_cast<double>(gate[i]) * static_cast<double>(gate[i]);
  }
  EXPECT_NEAR(std::sqrt(squares / (28 * 16)), 0.2, 0.05);
  ASSERT_EQ(folder_.orthant({"train", "s.toml"}).code, 0);
}

TEST_F(Distil, WhatCannotBeRightIsRefusedBeforeRanksStart) {
  make_student();
  const std::string teacher = "distil.teacher=";
  EXPECT_THAT(refusal({teacher + "\"nowhere\""}), HasSubstr("config.resolved.toml' is missing"));
  EXPECT_THAT(refusal({"distil.weight=0"}), HasSubstr("with 0 the teacher changes nothing"));
  EXPECT_THAT(refusal({"distil.temperature=0"}), HasSubstr("[distil] temperature: 0 is not above 0"));
  EXPECT_THAT(refusal({"run.graphs=true"}), HasSubstr("a step with a teacher is not recorded"));
  EXPECT_THAT(refusal({"train.from=\"\"", "model.vocab_size=300"}),
              AllOf(HasSubstr("it has 256 ids"), HasSubstr("has 300")));
  // A layout that divides the student, and not the teacher's four experts.
  EXPECT_THAT(refusal({"plugins.data.size=8", "batch.micro_batch=1", "plugins.expert.size=8"}),
              AllOf(HasSubstr("cannot be divided as this layout divides"), HasSubstr("expert")));
  // The same number of ids, which mean other texts.
  folder_.write("runs/teacher/pretrained/tokenizer.json", "{}");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("[distil] teacher: its tokenizer is"), HasSubstr("(bytes)")));
  fs::remove_all(folder_.run("teacher") / "pretrained");
  // Weights that are not those of the teacher's configuration.
  fs::remove_all(folder_.run("teacher") / "checkpoints");
  EXPECT_THAT(refusal({teacher + "\"" + folder_.run("teacher").string() + "\""}), HasSubstr("[distil] teacher: '"));
}

// As a launch of the configuration with this teacher.
TEST_F(Distil, TheCommandTrainsAConfigurationFromATeacher) {
  folder_.write("own.toml", std::string(teacher_toml) + "[train]\n");
  const std::vector<std::string> own = {"--set", "run.name=own", "--set", "run.steps=2", "--set", "moe.experts=0"};
  std::vector<std::string> words = {"distil", "runs/teacher", "own.toml"};
  words.insert(words.end(), own.begin(), own.end());
  const Result result = folder_.orthant(words);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(last_line("own").contains("distil_loss"));
  EXPECT_THAT(run_test::lines_of(folder_.run("own") / "config.resolved.toml"),
              testing::Contains(HasSubstr("teacher = \"" + folder_.run("teacher").string())));
  EXPECT_EQ(folder_.orthant({"distil", "runs/teacher"}).code, 2) << "neither";
  EXPECT_EQ(folder_.orthant({"distil", "runs/teacher", "own.toml", "-o", "student"}).code, 2) << "both";
  EXPECT_EQ(folder_.orthant({"distil", "runs/teacher", "own.toml", "--layers", "1"}).code, 2);
}

TEST_F(Distil, TheCommandRefusesWhatItCannotMake) {
  const auto refused = [&](const std::vector<std::string>& words) {
    const Result result = folder_.orthant(words);
    EXPECT_EQ(result.code, 78) << result.output;
    EXPECT_FALSE(fs::exists(folder_.path("student")));
    return result.error;
  };
  EXPECT_THAT(refused({"distil", "runs/teacher", "-o", "student", "--layers", "3"}),
              HasSubstr("at most the teacher's 2"));
  for (const char* option : {"--d-ffn", "--layers"}) {
    const Result result = folder_.orthant({"distil", "runs/teacher", "-o", "student", option, "0"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.error, HasSubstr("Value 0 not in range"));
  }
  const auto refused_of = [&](std::vector<std::string> set, std::vector<std::string> options) {
    set.insert(set.end(), {"run.name=\"other\"", "run.steps=1"});
    const Result trained = folder_.orthant(with_set({"train", "t.toml"}, set));
    EXPECT_EQ(trained.code, 0) << trained.error;
    options.insert(options.begin(), {"distil", "runs/other", "-o", "student"});
    return refused(options);
  };
  EXPECT_THAT(refused_of({"model.activation=\"clamped_swiglu\"", "moe.expert_bias=true"}, {}),
              HasSubstr("moe.expert_bias = true of the teacher"));
  fs::remove_all(folder_.run("other"));
  EXPECT_THAT(refused_of({"model.sliding_window=4", "model.full_attention_every=2"}, {"--layers", "1"}),
              HasSubstr("--layers 1: model.full_attention_every = 2 of the teacher"));
  const Result all = folder_.orthant({"distil", "runs/other", "-o", "student", "--layers", "2"});
  EXPECT_EQ(all.code, 0) << all.error;
  fs::remove_all(folder_.path("student"));
  folder_.write("published/config.json", "{}");
  EXPECT_THAT(refused({"distil", "published", "-o", "student"}),
              HasSubstr("make a run of it first, by orthant import"));
}

}  // namespace
}  // namespace orthant::distil_run_test
