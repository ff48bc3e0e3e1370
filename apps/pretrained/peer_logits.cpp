#include "apps/pretrained/peer_logits.h"

#include <orthant/error.h>

#include <fmt/ranges.h>

#include <cstring>

#include "core/base/mapped_file.h"
#include "core/base/text_file.h"
#include "core/run/scratch_folder.h"
#include "parallel/launch/child_process.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr int lacks_packages = 3, cannot_run = 127;

// Arguments: the model's folder, ids with commas, the file of the logits, that of the versions.
constexpr const char* script = R"py(
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch, transformers
except ImportError as error:
    print(error)
    sys.exit(3)
transformers.utils.logging.disable_progress_bar()
folder, ids, logits_file, versions_file = sys.argv[1:]
# Its other ways to multiply experts do not take every size.
experts = {"experts_implementation": "eager"} if int(transformers.__version__.split(".")[0]) >= 5 else {}
pair = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).is_encoder_decoder
kind = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
model, info = kind.from_pretrained(
    folder, torch_dtype=torch.float32, attn_implementation="eager", local_files_only=True, trust_remote_code=False,
    output_loading_info=True, **experts)
if info["missing_keys"]:
    sys.exit(f"transformers finds no weights for {sorted(info['missing_keys'])}")
model.eval()
token = torch.tensor([[int(i) for i in ids.split(",")]])
with torch.inference_mode():
    # The source of an encoder-decoder is what is given, backwards (sample_source).
    logits = (model(input_ids=token.flip(1), decoder_input_ids=token) if pair else model(token)).logits[0]
open(logits_file, "wb").write(logits.to(torch.float32).contiguous().numpy().tobytes())
open(versions_file, "w").write(f"transformers {transformers.__version__}, torch {torch.__version__}")
)py";

std::string last_lines(const std::string& text) {
  constexpr std::size_t longest = 800;
  const std::size_t end = text.find_last_not_of(" \n");
  const std::string said = end == std::string::npos ? "nothing" : text.substr(0, end + 1);
  return said.size() <= longest ? said : "... " + said.substr(said.size() - longest);
}

}  // namespace

Logits peer_logits(const std::string& python, const fs::path& folder, const std::vector<std::int32_t>& token) {
  const ScratchFolder scratch;
  const fs::path logits = scratch.path() / "logits", versions = scratch.path() / "versions",
                 log = scratch.path() / "log";
  ChildProcess child({"/usr/bin/env", python, "-c", script, fs::absolute(folder).string(),
                      fmt::format("{}", fmt::join(token, ",")), logits.string(), versions.string()},
                     log);
  const Ending& ending = child.wait();
  if (ending.failed()) {
    const std::string why = ending.code == lacks_packages ? "it lacks torch or transformers: pip install them there"
                            : ending.code == cannot_run   ? "it cannot be run"
                                                          : "it " + ending.to_string();
    fail("'{}', which was to compute the logits of '{}': {}. It said: {}", python, folder.string(), why,
         last_lines(read_text_file(log).value_or("")));
  }
  const MappedFile file(logits);
  std::vector<float> value(file.size() / sizeof(float));
  std::memcpy(value.data(), file.bytes().data(), value.size() * sizeof(float));
  return {read_text_file(versions).value_or(""), {value.begin(), value.end()}};
}

}  // namespace orthant
