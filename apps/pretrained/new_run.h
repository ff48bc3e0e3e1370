// NewRun: the folder of a run after step 0, whose weights come from somewhere else. It appears whole or not at all.
//
//   NewRun run(output);
//   const Config config = run.configure(keys, "The model of ...", plugin_keys);
//   run.write_weights(config, tensors);
//   run.finish(config);
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/pretrained/config_link.h"
#include "apps/pretrained/workshop.h"
#include "core/run/run_ids.h"
#include "core/tokenizer/text_rules.h"

namespace orthant {

// A parameter or a gate's state, f32.
struct NewTensor {
  std::string name;
  Shape shape;
  std::function<void(float* out)> fill;
};

// Of the whole model, or of its routed experts.
enum class Counted { all, routed };
std::int64_t elements_of(const Settings& settings, Counted what = Counted::all);

class NewRun {
 public:
  // Errors: ConfigError where `output` is there and is not an empty folder, or somebody is writing it.
  explicit NewRun(const std::filesystem::path& output);

  const std::filesystem::path& output() const { return output_; }
  const Workshop& workshop() const { return *workshop_; }

  // Writes model.toml: the tables [model], [moe] and [distil] of `keys`, below `about` as a comment. Returns the
  // configuration of the run, with `more` as --set has it. Errors: as load_config's.
  Config configure(const OurKeys& keys, const std::string& about, const PluginKeys& plugin_keys,
                   const PluginKinds& plugin_kinds, const std::vector<std::string>& more = {});
  // What lies in the folder `tokenizer`, into pretrained/; nothing where it is empty. With it the rules of its texts.
  // The ids are still those of the model that the weights come from; its config.json and receipt are not: they are of
  // other weights.
  void copy_tokenizer(const std::filesystem::path& tokenizer, const TextRules& rules) const;
  // The checkpoint of step 0, as one rank would save it. One tensor at a time is in memory. Errors: Error where the
  // disk has no room for all of them, before the first; what the disk refuses.
  void write_weights(const Config& config, const std::vector<NewTensor>& tensors) const;
  // What the manifest of that checkpoint tells beside the tensors.
  std::map<std::string, std::string> state(const Config& config) const;
  // Writes config.resolved.toml; from here on the run is there.
  void finish(const Config& config) const;

 private:
  std::filesystem::path output_;
  Disk disk_;
  std::unique_ptr<Workshop> workshop_;
  RunIds ids_;
};

}  // namespace orthant
