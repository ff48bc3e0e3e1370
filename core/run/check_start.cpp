#include "core/run/check_start.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/checkpoint/model_folder.h"
#include "core/config/suggest.h"
#include "core/data/chat_sources.h"
#include "core/data/source.h"
#include "core/dry_run/promise.h"
#include "core/modules/find_library.h"
#include "core/modules/make_device.h"
#include "core/modules/module.h"
#include "core/run/epochs.h"
#include "core/run/rank.h"
#include "core/run/run_tokenizer.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "core/session/teacher_config.h"
#include "core/trace/nvtx.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

// Orthant's own are known where they were not built, too: a job is planned on machines without its device.
const std::vector<std::string> own_devices = {"cpu", "cuda", "guarded", "late", "late_sides", "simt"};
const std::vector<std::string> own_communicators = {"local", "mpi", "nccl"};

class Checks {
 public:
  Checks(const Config& config, Ranks ranks)
      : config_(config), run_(config.settings.run), ranks_(ranks), refused_(config.diagnostics()) {}

  void add(const Diagnostics& others) { refused_.add(others); }

  void device() {
    if (!known("device", run_.device, own_devices)) {
      return;
    }
    try {
      check_device(run_.device);
    } catch (const Error& error) {
      const bool built = module_exists("device", run_.device);
      missing(
          "device", run_.device, error, built,
          built || run_.device != "cuda"
              ? "write \"cpu\", or start it on a machine that has this device; `orthant config`, `orthant plan` and "
                "`orthant launch --dry-run` need none"
              : "this build has no CUDA code: ./launch CONFIG and ./runtests compile it where nvcc of CUDA 12.4 or "
                "newer is in the PATH, CMake with -DORTHANT_CUDA=ON");
    }
  }

  void communicator(int world_size) {
    const std::string& name = run_.communicator;
    if (!known("communicator", name, own_communicators)) {
      return;
    }
    std::string device = name == "nccl" ? "cuda" : "";  // where its library is not here to say so
    std::optional<ConfigError> absent;
    try {
      device = communicator_device(name);
    } catch (const ConfigError& error) {
      absent = error;
    }
    if (!device.empty() && device != run_.device) {
      refuse("run.communicator",
             fmt::format("communicator \"{}\" moves the memory of device \"{}\" only, but run.device is \"{}\"", name,
                         device, run_.device),
             fmt::format("write device = \"{}\" under [run], or communicator = \"local\" or \"mpi\"", device));
    } else if (name == "local" && ranks_ == Ranks::elsewhere && world_size > LocalSegment::max_world) {
      notes_.push_back(
          fmt::format("run.communicator = \"local\" serves at most {} ranks, of one machine: to run these {}, write "
                      "\"mpi\" or \"nccl\"",
                      LocalSegment::max_world, world_size));
    } else if ((name == "local" || ranks_ == Ranks::threads) && world_size > LocalSegment::max_world) {
      refused_.add(place_of_ranks(),
                   fmt::format("the layout has {} ranks; the local communicator serves at most {} on one machine",
                               world_size, LocalSegment::max_world),
                   ranks_ == Ranks::threads ? "make the layout smaller: here its ranks are threads over shared memory"
                                            : "write \"mpi\" (or \"nccl\", with GPUs), or make the layout smaller");
    } else if (ranks_ == Ranks::threads && name != "local") {
      notes_.push_back(fmt::format(
          "run.communicator = \"{}\" is not used: here the ranks are threads of this process, over shared memory",
          name));
    } else if (absent) {
      missing("communicator", name, *absent, module_exists("communicator", name),
              "write \"local\", or give the communicator what it needs");
    }
  }

  // What is wrong with the data itself is told by data().
  void epochs(Config& config) {
    try {
      if (!resolve_epochs(config, ranks_ != Ranks::elsewhere)) {
        notes_.push_back(fmt::format(
            "run.epochs = {} is not known in steps before the data's tokens are made, which a run does; {} steps stand "
            "for it here",
            run_.epochs, run_.steps));
      }
    } catch (const SettingError& error) {
      if (error.setting().starts_with("run.") || error.setting().starts_with("optimizer.")) {
        refuse(error.setting(), error.element(), error.what());
      }
    } catch (const Error&) {
      return;
    }
  }

  void data() {
    try {
      for (std::string& note : check_batch_source(config_.settings, ranks_ != Ranks::elsewhere)) {
        notes_.push_back(std::move(note));
      }
      for (std::string& note : notes_of_rows(config_.settings)) {
        notes_.push_back(std::move(note));
      }
    } catch (const SettingError& error) {
      refuse(error.setting(), error.element(), error.what());
    } catch (const Error& error) {
      refuse(reads_files() ? "data.path" : "data.source", error.what(), "");
    }
  }

  // The checkpoint's other files are read by the ranks.
  void weights() {
    if (config_.settings.train.from.empty()) {
      return;
    }
    try {
      const std::filesystem::path checkpoint = starting_checkpoint(config_.settings.train.from);
      check_starting_weights(checkpoint, config_.settings);
      std::string note = other_tokenizer(config_.settings, run_of(checkpoint));
      if (!note.empty()) {
        notes_.push_back(std::move(note));
      }
    } catch (const Error& error) {
      refuse("train.from", error.what(), "");
    }
  }

  void teacher() {
    if (!has_teacher(config_)) {
      return;
    }
    try {
      const std::filesystem::path checkpoint = teacher_checkpoint(config_.settings);
      check_starting_weights(checkpoint, teacher_config(config_).settings);
      require_tokenizer_of_teacher(config_.settings, run_of(checkpoint));
    } catch (const Error& error) {
      refuse(teacher_of(config_.settings).setting.c_str(), error.what(), "");
    }
  }

  void ranges() {
    if (run_.nvtx && !has_nvtx() && ranks_ != Ranks::elsewhere) {
      refuse("run.nvtx", "[run] nvtx: true names spans for Nsight Systems, and this build has no NVTX",
             "leave it out, or build with CUDA (-DORTHANT_CUDA=ON); run.trace needs neither");
    }
  }

  std::vector<std::string> result() && {
    refused_.throw_if_any();
    return std::move(notes_);
  }

 private:
  bool reads_files() const {
    const Settings& settings = config_.settings;
    return settings.catalogue->has<Source>(settings.data.source) &&
           settings.catalogue->get<Source>(settings.data.source).reads_files();
  }

  // At the element of a list that is to blame, where that is known.
  void refuse(const std::string& setting, std::optional<std::size_t> element, const std::string& message) {
    const auto elements = config_.element_origins.find(setting);
    if (element.has_value() && elements != config_.element_origins.end() && *element < elements->second.size()) {
      refused_.add(elements->second[*element], message, "");
    } else {
      refuse(setting.c_str(), message, "");
    }
  }

  void refuse(const char* setting, const std::string& message, const std::string& advice) {
    refused_.add(config_.tables.empty() ? "default" : config_.nearest_origin(setting), message, advice);
  }

  // Where somebody chose so many: at the communicator, else at the largest axis.
  std::string place_of_ranks() const {
    const std::string& written = config_.origin("run.communicator");
    if (written != "default") {
      return written;
    }
    std::string place = config_.nearest_origin("run.communicator");
    std::int64_t largest = 0;
    for (const PluginRequest& plugin : config_.plugins) {
      const auto entry = plugin.table.entries().find("size");
      const auto* size =
          entry == plugin.table.entries().end() ? nullptr : std::get_if<std::int64_t>(&entry->second.value);
      if (size != nullptr && *size > largest && entry->second.origin != "default") {
        largest = *size;
        place = entry->second.origin;
      }
    }
    return place;
  }

  // Whether it is one of Orthant's own, or a library that lies here.
  bool known(const std::string& kind, const std::string& name, std::vector<std::string> names) {
    for (const std::filesystem::path& folder : module_folders()) {
      for (const auto& [found, file] : libraries_in(folder, kind)) {
        names.push_back(found);
      }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return true;
    }
    const auto near = nearest(name, names);
    refuse(("run." + kind).c_str(), fmt::format("[run] {}: there is no {} \"{}\"", kind, kind, name),
           fmt::format("{}known are {}; a library of your own, {}, is looked for in ORTHANT_PLUGIN_PATH",
                       near ? fmt::format("did you mean \"{}\"? ", *near) : "", fmt::join(names, ", "),
                       library_file(kind, name)));
    return false;
  }

  // It cannot be used on this machine: refused, unless the ranks may run where it can. here: its library is.
  void missing(const std::string& kind, const std::string& name, const Error& error, bool here,
               const std::string& advice) {
    if (ranks_ != Ranks::elsewhere) {
      return refuse(("run." + kind).c_str(), error.what(), advice);
    }
    notes_.push_back(
        fmt::format("run.{} = \"{}\" is not available on this machine, so it was not checked; the "
                    "machines that run the ranks need it{}",
                    kind, name, here ? fmt::format(". Its library is here: {}", error.what()) : ""));
  }

  const Config& config_;
  const RunSettings& run_;
  Ranks ranks_;
  Diagnostics refused_;
  std::vector<std::string> notes_;
};

}  // namespace

StartCheck check_start(Config& config, Ranks ranks, bool begins) {
  StartCheck found;
  Checks checks(config, ranks);
  bool divides = false;
  try {
    found = {.world_size = check_layout(config), .notes = layout_notes(config)};
    divides = true;
  } catch (const RefusedConfig& refused) {
    checks.add(refused.problems());
  }
  checks.device();
  if (divides) {
    checks.communicator(found.world_size);
  }
  checks.epochs(config);
  checks.data();
  if (begins) {
    checks.weights();
  }
  checks.teacher();
  checks.ranges();
  for (std::string& note : std::move(checks).result()) {
    found.notes.push_back(std::move(note));
  }
  if (std::string note = promise_memory(config); !note.empty()) {
    found.notes.push_back(std::move(note));
  }
  return found;
}

}  // namespace orthant
