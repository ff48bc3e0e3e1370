// Opt-in: transformers loads what was exported and finds the validation loss that we found. Needs a Python with
// tests/reference/requirements.txt: ORTHANT_PYTHON, or the environment that tests/reference/make_reference.sh makes.
#include <sys/wait.h>

#include "apps/pretrained/export.h"
#include "core/checkpoint/safetensors.h"
#include "tests/export/trained_run.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::test::transformers_test {
namespace {

namespace fs = std::filesystem;

// The held-out sequences, as check_export.py wants them. Only whole ones: it knows no padding.
void write_tokens(const fs::path& path, const BatchSource& source) {
  const HostBatch batch = source.validation(0, source.validation_sequences());
  const std::vector<std::int64_t> sizes = {batch.sequences, batch.positions};
  write_safetensors(
      path,
      {{.name = "token", .dtype = DType::i32, .sizes = sizes}, {.name = "label", .dtype = DType::i32, .sizes = sizes}},
      {std::as_bytes(std::span(batch.token)), std::as_bytes(std::span(batch.label))});
}

// Exit code, and the last line that was printed.
std::pair<int, std::string> run_script(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  require(pipe != nullptr, "cannot run {}", command);
  std::string line, last;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c == '\n') {
      last = std::exchange(line, "");
    } else {
      line += static_cast<char>(c);
    }
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, last};
}

class Transformers : public testing::TestWithParam<Model> {};

TEST_P(Transformers, FindTheSameValidationLoss) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with torch and transformers";
  }
  const TemporaryFolder folder;
  const fs::path run = folder / "runs/small", out = folder / "out", tokens = folder / "tokens.safetensors";
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.push_back("run.steps=100");
  const Trained trained = train_into(run, mixtral_toml, overrides);
  export_run({.run = run, .output = out}, keys_of_plugin);
  write_tokens(tokens, *make_batch_source(trained.config.settings));
  const auto [code, printed] = run_script(fmt::format("'{}' '{}/tests/reference/check_export.py' '{}' '{}'",
                                                      paths::python(), paths::source(), out.string(), tokens.string()));
  if (code == 3) {
    GTEST_SKIP() << paths::python() << " lacks torch, transformers or safetensors";
  }
  ASSERT_EQ(code, 0);
  const double theirs = std::stod(printed);
  fmt::print("validation loss: {:.8f} here, {:.8f} in transformers\n", trained.validation_loss, theirs);
  EXPECT_NEAR(trained.validation_loss, theirs, 1e-4);
  EXPECT_LT(theirs, 4.5) << "hardly trained: ln 256 is 5.55";
}

INSTANTIATE_TEST_SUITE_P(Models, Transformers,
                         testing::Values(Model{"Mixtral", {}}, Model{"MixtralOfTopOne", {"moe.top_k=1"}},
                                         Model{"MixtralTied", {"model.tie_embeddings=true"}},
                                         Model{"Mistral", {"moe.experts=0"}}),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace orthant::test::transformers_test
