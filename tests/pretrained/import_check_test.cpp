// The program `orthant import`, and its comparison with the logits of another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::import_check_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(Import, OfTheProgramSaysWhatItMade) {
  run_test::ProgramFolder folder;
  const auto result = folder.orthant(
      {"import", paths::published_model("qwen3_moe_packed").string(), "-o", folder.path("base").string()});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("of the model type qwen3_moe"), HasSubstr("experts packed"), HasSubstr("receipt.json")));
  const auto again = folder.orthant(
      {"import", paths::published_model("qwen3_moe_packed").string(), "-o", folder.path("base").string()});
  EXPECT_EQ(again.code, 78);
  EXPECT_THAT(again.error, HasSubstr("is there already"));
  const json receipt = json::parse(read_file(folder.path("base") / "pretrained/receipt.json"));
  EXPECT_EQ(receipt["experts"], "packed");
  EXPECT_EQ(receipt["files"][0]["sha256"].get<std::string>().size(), 64U);
  EXPECT_EQ(receipt["tensors"]["model.layers.1.block_sparse_moe.experts.2.w3.weight"]["from"],
            "model.layers.1.mlp.experts.gate_up_proj");
}

// A program that does what the script of a check would: writes these logits, or fails.
std::string fake_python(const run_test::ProgramFolder& folder, const std::string& body) {
  folder.write("python", "#!/bin/bash\n" + body);
  fs::permissions(folder.path("python"), fs::perms::owner_all);
  return folder.path("python").string();
}

TEST(ImportCheck, ComparesLogitsAndRefusesAnotherModel) {
  run_test::ProgramFolder folder;
  const fs::path model = paths::published_model("mixtral");
  const auto import = [&](const std::string& python) {
    return folder.orthant({"import", model.string(), "-o", folder.path("run").string(), "--check", python});
  };
  // "-c", the script, the model's folder, ids, the file of the logits, that of the versions.
  const std::string versions = "printf 'transformers of a test' > \"$6\"\n";
  const auto zeros = import(fake_python(folder, versions + "head -c 9728 /dev/zero > \"$5\""));  // 64 x 38
  EXPECT_EQ(zeros.code, 1);
  EXPECT_THAT(zeros.error,
              AllOf(HasSubstr("differ from those of transformers of a test"), HasSubstr("1e-03 is allowed")));
  const auto few = import(fake_python(folder, versions + "head -c 16 /dev/zero > \"$5\""));
  EXPECT_THAT(few.error, HasSubstr("transformers of a test finds 4"));
  const auto ones = import(fake_python(folder, versions + R"(head -c 9728 /dev/zero | tr '\0' '\377' > "$5")"));
  EXPECT_EQ(ones.code, 1);
  EXPECT_THAT(ones.error, HasSubstr("nan by transformers of a test"));
  const auto fails = import(fake_python(folder, "echo 'it is broken'; exit 1"));
  EXPECT_THAT(fails.error, AllOf(HasSubstr("ended with code 1"), HasSubstr("it is broken")));
  EXPECT_THAT(import(fake_python(folder, "echo no torch; exit 3")).error, HasSubstr("pip install them there"));
  EXPECT_THAT(import(folder.path("nowhere").string()).error, HasSubstr("it cannot be run"));
  EXPECT_FALSE(fs::exists(folder.path("run")));
  const auto quantised = folder.orthant({"import", paths::published_model("deepseek_v3_fp8").string(), "-o",
                                         folder.path("run").string(), "--check", "python"});
  EXPECT_EQ(quantised.code, 78);
  EXPECT_THAT(quantised.error, AllOf(HasSubstr("rounds activations"), HasSubstr("Leave out --check")));
  const auto in_mxfp4 = folder.orthant({"import", paths::published_model("gpt_oss_mxfp4").string(), "-o",
                                        folder.path("run").string(), "--check", "python"});
  EXPECT_EQ(in_mxfp4.code, 78);
  EXPECT_THAT(in_mxfp4.error, AllOf(HasSubstr("kernels of its own"), HasSubstr("Leave out --check")));
}

TEST(ImportCheck, ByTransformersFindsTheSameModel) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with torch and transformers";
  }
  run_test::ProgramFolder folder;
  const auto import = [&](const fs::path& model, const std::string& run) {
    return folder.orthant({"import", model.string(), "-o", folder.path(run).string(), "--check", paths::python()});
  };
  const auto first = import(paths::published_model("mixtral"), "mixtral");
  if (first.error.find("pip install them there") != std::string::npos) {
    GTEST_SKIP() << paths::python() << " lacks torch or transformers";
  }
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.output, HasSubstr("checked    logits of 64 tokens by transformers "));
  for (const std::string model : {"mixtral", "deepseek_v3", "llama_f16"}) {
    const auto result = model == "mixtral" ? first : import(paths::published_model(model), model);
    EXPECT_EQ(result.code, 0) << result.error;
    const json check = json::parse(read_file(folder.path(model) / "pretrained/receipt.json"))["check"];
    EXPECT_EQ(check["tokens"], 64);
    EXPECT_GT(check["largest_logit"], 1);
    EXPECT_LT(check["difference_over_largest"], 2e-5) << model;
    EXPECT_GT(check["difference_over_largest"], 0) << "compared with itself?";
  }
}

}  // namespace
}  // namespace orthant::import_check_test
