// What `orthant export` writes, read back; and what it refuses.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "apps/pretrained/twin.h"
#include "core/checkpoint/safetensors.h"
#include "core/run/run_ids.h"
#include "tests/export/trained_run.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::test::export_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

std::string refusal(const ExportOptions& options) {
  try {
    export_run(options, keys_of_plugin);
  } catch (const Error& e) {
    return e.what();
  }
  return "no refusal";
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json config_in(const fs::path& folder) {
  return nlohmann::json::parse(read_file(folder / "config.json"));
}

class Export : public testing::Test {
 protected:
  Trained train(const std::string& toml, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), "run.steps=3");
    return train_into(run_, toml, overrides);
  }
  ExportOptions options() const { return {.run = run_, .output = out_}; }

  TemporaryFolder folder_;
  fs::path run_ = folder_ / "runs/small";
  fs::path out_ = folder_ / "out";
};

TEST_F(Export, HoldsTheWeightsOfAllRanks) {
  const Trained trained = train(mixtral_toml + two_ranks);
  const ExportResult result = export_run(options(), keys_of_plugin);
  EXPECT_EQ(result.model_type, "mixtral");
  EXPECT_EQ(result.step, 3);
  EXPECT_EQ(result.checkpoint.filename(), "step_000003");
  EXPECT_THAT(result.notes, IsEmpty());
  EXPECT_EQ(names_in(out_), (std::vector<std::string>{"config.json", "model.safetensors"}));

  const SafetensorsReader file(out_ / "model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), trained.weights.size());
  std::int64_t parameters = 0;
  for (const auto& [name, values] : trained.weights) {
    const FileTensor& t = file.at(name);
    EXPECT_EQ(t.dtype, DType::f32) << name;
    const auto bytes = file.bytes(t);
    ASSERT_EQ(bytes.size(), values.size() * sizeof(float)) << name;
    EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0) << name;
    parameters += static_cast<std::int64_t>(values.size());
  }
  EXPECT_EQ(result.parameters, parameters);
  // [out, in], as Mixtral has them.
  EXPECT_EQ(file.at("model.layers.1.self_attn.k_proj.weight").sizes, (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(file.at("model.layers.1.block_sparse_moe.gate.weight").sizes, (std::vector<std::int64_t>{4, 32}));
  EXPECT_EQ(file.at("model.layers.0.block_sparse_moe.experts.3.w1.weight").sizes, (std::vector<std::int64_t>{40, 32}));
  EXPECT_EQ(file.at("model.layers.0.block_sparse_moe.experts.3.w2.weight").sizes, (std::vector<std::int64_t>{32, 40}));
  EXPECT_EQ(file.at("model.norm.weight").sizes, (std::vector<std::int64_t>{32}));
  EXPECT_EQ(file.at("lm_head.weight").sizes, (std::vector<std::int64_t>{256, 32}));
}

TEST_F(Export, ConfigOfMixtral) {
  train(mixtral_toml);
  export_run(options(), keys_of_plugin);
  const nlohmann::json expected = nlohmann::json::parse(R"({
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 24, "rope_theta": 5000.0, "rms_norm_eps": 2e-5, "hidden_act": "silu",
    "initializer_range": 0.02, "attention_dropout": 0.0, "sliding_window": null, "tie_word_embeddings": false,
    "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.03, "router_jitter_noise": 0.0,
    "output_router_logits": false, "bos_token_id": null, "eos_token_id": null, "torch_dtype": "float32"})");
  EXPECT_EQ(config_in(out_), expected);
}

TEST_F(Export, Bf16IsTheNearest) {
  const Trained trained = train(mixtral_toml);
  ExportOptions wanted = options();
  wanted.dtype = DType::bf16;
  export_run(wanted, keys_of_plugin);
  EXPECT_EQ(config_in(out_).at("torch_dtype"), "bfloat16");
  const SafetensorsReader file(out_ / "model.safetensors");
  for (const auto& [name, values] : trained.weights) {
    const FileTensor& t = file.at(name);
    ASSERT_EQ(t.dtype, DType::bf16);
    const auto bytes = file.bytes(t);
    ASSERT_EQ(bytes.size(), values.size() * 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      const float got = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
      // Half of the last of 8 bits of precision.
      ASSERT_LE(std::abs(got - values[i]), std::abs(values[i]) / 256) << name << " " << i;
    }
  }
}

TEST_F(Export, DenseModelIsAMistral) {
  const Trained trained = train(mixtral_toml, {"moe.experts=0", "model.tie_embeddings=true"});
  const ExportResult result = export_run(options(), keys_of_plugin);
  EXPECT_EQ(result.model_type, "mistral");
  const nlohmann::json config = config_in(out_);
  EXPECT_EQ(config.at("architectures"), nlohmann::json({"MistralForCausalLM"}));
  EXPECT_EQ(config.at("intermediate_size"), 56);
  EXPECT_EQ(config.at("tie_word_embeddings"), true);
  EXPECT_TRUE(config.at("sliding_window").is_null());
  EXPECT_FALSE(config.contains("num_local_experts"));
  const SafetensorsReader file(out_ / "model.safetensors");
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  EXPECT_EQ(file.at("model.layers.0.mlp.gate_proj.weight").sizes, (std::vector<std::int64_t>{56, 32}));
  EXPECT_EQ(file.tensors().size(), trained.weights.size());
}

TEST_F(Export, ModelWithoutATwin) {
  const Trained trained = train(mixtral_toml, {"moe.router=\"switch\"", "moe.top_k=1", "model.positions=\"learned\"",
                                               "moe.every=2", "moe.capacity_factor=1.5"});
  const ExportResult result = export_run(options(), keys_of_plugin);
  EXPECT_EQ(result.model_type, "orthant");
  const std::string notes = fmt::format("{}", fmt::join(result.notes, "\n"));
  EXPECT_THAT(notes, HasSubstr("moe.router = \"switch\""));
  EXPECT_THAT(notes, HasSubstr("model.positions = \"learned\""));
  EXPECT_THAT(notes, HasSubstr("moe.every = 2"));
  const nlohmann::json config = config_in(out_);
  EXPECT_EQ(config.at("model_type"), "orthant");
  EXPECT_THAT(config.at("architectures"), IsEmpty());
  EXPECT_EQ(config.at("router"), "switch");
  EXPECT_EQ(config.at("every"), 2);
  EXPECT_EQ(config.at("capacity_factor"), 1.5);
  EXPECT_EQ(SafetensorsReader(out_ / "model.safetensors").tensors().size(), trained.weights.size());
}

TEST(ExportedConfig, TransformersCutsAHeadsRotatedPartAsItIs) {
  // The classes take the whole part of head_dim * partial_rotary_factor, and 44 * (30.0 / 44) is below 30.
  int lost = 0;
  for (const int head : {8, 44, 98}) {
    for (int turned = 2; turned <= head; turned += 2) {
      const Config config =
          experiment({fmt::format("model.head_dim={}", head), fmt::format("model.rotary_channels={}", turned),
                      "model.positions=rotary", "model.norm=rmsnorm", "model.activation=swiglu", "model.qk_norm=true",
                      "model.qk_norm_over=all", "moe.router=bias", "moe.score=sigmoid"});
      const Twin twin = twin_of(config);
      ASSERT_NE(twin.family, nullptr) << fmt::format("{}", fmt::join(twin.reasons, "; "));
      EXPECT_EQ(twin.family->model_type, "minimax_m2");
      EXPECT_EQ(twin.config["rotary_dim"], turned);
      EXPECT_EQ(static_cast<int>(head * twin.config["partial_rotary_factor"].get<double>()), turned) << head;
      lost += static_cast<int>(head * (static_cast<double>(turned) / head)) < turned ? 1 : 0;
    }
  }
  EXPECT_GT(lost, 5) << "parts for which the plain quotient is too small";
}

TEST_F(Export, CapacityIsNoted) {
  train(mixtral_toml, {"moe.capacity_factor=1.5"});
  const ExportResult result = export_run(options(), keys_of_plugin);
  EXPECT_EQ(result.model_type, "mixtral");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes.front(), HasSubstr("capacity_factor = 1.5"));
}

TEST_F(Export, ReadsOneCheckpointAndNeedsNoData) {
  train(mixtral_toml, {"run.steps=5"});
  const Trained earlier = train(mixtral_toml);
  fs::remove(folder_ / "runs/text.txt");
  EXPECT_EQ(export_run(options(), keys_of_plugin).step, 5);
  ExportOptions wanted = options();
  wanted.run = run_ / "checkpoints/step_000003/";
  wanted.output = folder_ / "of_step_3/";
  EXPECT_EQ(export_run(wanted, keys_of_plugin).step, 3);
  const SafetensorsReader file(wanted.output / "model.safetensors");
  const std::vector<float>& norm = earlier.weights.at("model.norm.weight");
  EXPECT_EQ(std::memcmp(file.bytes(file.at("model.norm.weight")).data(), norm.data(), norm.size() * 4), 0);
}

TEST_F(Export, LeavesWhatIsThere) {
  train(mixtral_toml);
  write_file(out_ / "notes.txt", "mine");
  write_file(out_ / "config.json", "old");
  EXPECT_THAT(refusal(options()), HasSubstr("holds files already"));
  EXPECT_THROW(export_run(options(), keys_of_plugin), ConfigError);
  EXPECT_EQ(read_file(out_ / "config.json"), "old");

  ExportOptions wanted = options();
  wanted.replace_existing = true;
  export_run(wanted, keys_of_plugin);
  EXPECT_EQ(names_in(out_), (std::vector<std::string>{"config.json", "model.safetensors", "notes.txt"}));
  EXPECT_EQ(read_file(out_ / "notes.txt"), "mine");
  EXPECT_EQ(config_in(out_).at("model_type"), "mixtral");

  // A tokenizer of other weights would go with these.
  write_file(out_ / "tokenizer.json", "{}");
  write_file(out_ / "generation_config.json", "{}");
  export_run(wanted, keys_of_plugin);
  EXPECT_EQ(names_in(out_), (std::vector<std::string>{"config.json", "model.safetensors", "notes.txt"}));
  write_file(out_ / "model-00001-of-00002.safetensors", "of another");
  EXPECT_THAT(refusal(wanted), HasSubstr("weights that --force does not replace, 'model-00001-of-00002.safetensors'"));

  write_file(folder_ / "file", "x");
  wanted.output = folder_ / "file";
  EXPECT_THAT(refusal(wanted), HasSubstr("is a file"));
  fs::create_directories(folder_ / "empty");
  wanted = options();
  wanted.output = folder_ / "empty";
  export_run(wanted, keys_of_plugin);
  EXPECT_TRUE(fs::exists(wanted.output / "model.safetensors"));
}

TEST_F(Export, RefusesWhatIsNoRun) {
  EXPECT_THAT(refusal(options()), HasSubstr("does not exist"));
  fs::create_directories(run_);
  EXPECT_THAT(refusal(options()), HasSubstr("no complete checkpoint"));
  train(mixtral_toml);
  fs::remove(run_ / "config.resolved.toml");
  EXPECT_THAT(refusal(options()), HasSubstr("config.resolved.toml' is missing"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Export, RefusesACheckpointOfAnotherConfiguration) {
  train(mixtral_toml);
  const auto rewrite = [&](const std::string& from, const std::string& to) {
    std::string text = read_file(run_ / "config.resolved.toml");
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file(run_ / "config.resolved.toml", text.replace(at, from.size(), to));
  };
  rewrite("layers = 2", "layers = 1");
  EXPECT_THAT(refusal(options()), HasSubstr("the configuration makes"));
  rewrite("layers = 1", "layers = 3");
  EXPECT_THAT(refusal(options()), HasSubstr("has no 'model.layers.2."));
  rewrite("layers = 3", "layers = 2");
  rewrite("d_expert = 40", "d_expert = 44");
  EXPECT_THAT(refusal(options()), HasSubstr("w1.weight' is f32 [40, 32], the configuration makes it f32 [44, 32]"));
  EXPECT_EQ(names_in(folder_ / ""), (std::vector<std::string>{"runs"}));
}

TEST_F(Export, RefusesADamagedCheckpointAndLeavesNothing) {
  train(mixtral_toml);
  const fs::path checkpoint = run_ / "checkpoints/step_000003";
  for (const std::string& name : names_in(checkpoint)) {
    if (name.ends_with(".safetensors")) {
      std::string bytes = read_file(checkpoint / name);
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      write_file(checkpoint / name, bytes);
    }
  }
  EXPECT_THAT(refusal(options()), HasSubstr("passed over"));
  ExportOptions wanted = options();
  wanted.run = checkpoint;
  EXPECT_THAT(refusal(wanted), HasSubstr("checksum"));
  EXPECT_EQ(names_in(folder_ / ""), (std::vector<std::string>{"runs"}));
}

// A checkpoint as a run leaves it, beside the one that training made.
void save_beside(const fs::path& run, std::int64_t step, const std::map<std::string, std::string>& state) {
  const CheckpointReader trained(run / "checkpoints/step_000003");
  CheckpointWriter writer(run / "checkpoints", step, 0, 1);
  std::vector<std::vector<float>> values;
  for (const std::string& name : trained.names()) {
    SliceMeta slice{.name = name, .dtype = DType::f32, .global = trained.info(name).shape, .offset = {}, .size = {}};
    for (int i = 0; i < slice.global.rank(); ++i) {
      slice.offset.push_back(0);
      slice.size.push_back(slice.global[i]);
    }
    std::vector<float>& whole = values.emplace_back(static_cast<std::size_t>(slice.global.elements()));
    trained.read(name, slice.offset, slice.size, whole.data());
    writer.add(slice, whole.data());
  }
  const std::vector<std::string> parts = {writer.finish()};
  writer.commit(parts, state);
}

TEST_F(Export, AnOlderCheckpointIsTakenAloudWhereTheNewestIsDamaged) {
  train(mixtral_toml);
  save_beside(run_, 7, {});
  const fs::path damaged = run_ / "checkpoints/step_000007/rank_00000.safetensors";
  std::string bytes = read_file(damaged);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(damaged, bytes);
  const ExportResult result = export_run(options(), keys_of_plugin);
  EXPECT_EQ(result.step, 3);
  ASSERT_EQ(result.passed_over.size(), 1u);
  EXPECT_THAT(result.passed_over[0], HasSubstr("step_000007"));
  // One that cannot be read just now is no reason to take an older one.
  fs::remove(damaged);
  ExportOptions again = options();
  again.output = folder_ / "again";
  EXPECT_THAT(refusal(again),
              HasSubstr("rank_00000.safetensors': No such file or directory. It may be readable later"));
}

TEST_F(Export, RefusesTheCheckpointOfAnotherRun) {
  train(mixtral_toml);
  const RunIds own{.run = new_id(), .job = new_id()};
  write_file(run_ / "config.resolved.toml", text_of(own) + read_file(run_ / "config.resolved.toml"));
  EXPECT_EQ(export_run(options(), keys_of_plugin).step, 3) << "a checkpoint from before there were ids";
  const std::string stranger = new_id();
  save_beside(run_, 7, {{"run_id", stranger}});
  ExportOptions again = options();
  again.output = folder_ / "again";
  EXPECT_THAT(refusal(again), AllOf(HasSubstr("step_000007 is of another run (" + stranger), HasSubstr(own.run)));
  again.run = run_ / "checkpoints/step_000007";
  EXPECT_THAT(refusal(again), HasSubstr(stranger));
  save_beside(run_, 8, {{"run_id", own.run}});
  again.run = run_;
  EXPECT_EQ(export_run(again, keys_of_plugin).step, 8);
}

// Exit code and output of the program, its errors included.
std::pair<int, std::string> program(const std::string& arguments, const fs::path& folder = ".") {
  FILE* pipe = popen(fmt::format("cd '{}' && '{}' {} 2>&1", folder.string(), paths::program(), arguments).c_str(), "r");
  require(pipe != nullptr, "cannot start {}", paths::program());
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    output += static_cast<char>(c);
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

TEST_F(Export, Program) {
  train(mixtral_toml);
  const std::string arguments = fmt::format("export '{}' -o '{}'", run_.string(), out_.string());
  const auto [code, output] = program(arguments + " --dtype bf16");
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, HasSubstr("in bf16 after step 3, model type mixtral"));
  EXPECT_EQ(config_in(out_).at("torch_dtype"), "bfloat16");

  const auto [refused, message] = program(arguments);
  EXPECT_EQ(refused, 78);
  EXPECT_THAT(message, HasSubstr("--force"));
  const auto [forced, ignored] = program(arguments + " --force");
  EXPECT_EQ(forced, 0);
  EXPECT_EQ(config_in(out_).at("torch_dtype"), "float32");
  EXPECT_EQ(program(arguments + " --dtype fp16").first, 2);

  // Of two exports into one folder the second is refused, and touches nothing.
  const std::string left = out_.string() + ".tmp-1", held = out_.string() + ".tmp-2",
                    other = out_.string() + ".tmp-mine";
  for (const std::string& folder : {left, held, other}) {
    fs::create_directories(folder);
  }
  const int lock = ::open(held.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  const auto [second, busy] = program(arguments + " --force");
  EXPECT_EQ(second, 78);
  EXPECT_THAT(busy, HasSubstr(fmt::format("process 2 is writing '{}' just now: wait for its end", out_.string())));
  EXPECT_TRUE(fs::exists(held) && fs::exists(other));
  ::close(lock);
  // What a killed export left is removed, and not what is no export's.
  fs::create_directories(left);
  EXPECT_EQ(program(arguments + " --force").first, 0);
  EXPECT_FALSE(fs::exists(left) || fs::exists(held));
  EXPECT_TRUE(fs::exists(other));

  // A name alone is no folder, but the usual one may be meant.
  const auto [unknown, hint] = program("export small -o x", run_.parent_path().parent_path());
  EXPECT_EQ(unknown, 78);
  EXPECT_THAT(hint, HasSubstr("here 'runs/small'"));
}

}  // namespace
}  // namespace orthant::test::export_test
