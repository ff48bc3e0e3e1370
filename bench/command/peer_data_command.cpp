// orthant bench peer-data CONFIG [--steps N] -o DIR: what another system needs to train the same model on the same
// batches from the same weights. bench/peers/README.md describes the three files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/command/bench_parts.h"
#include "core/arch/links.h"
#include "core/base/output.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"
#include "core/command/arguments.h"
#include "core/config/print.h"
#include "core/data/source.h"
#include "core/layers/parameter_state.h"
#include "core/layers/parameter_store.h"
#include "core/session/session.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

struct PeerDataOptions {
  std::int64_t steps = 0;  // 0: run.steps
  fs::path output;
};

void check_output(const fs::path& output) {
  const bool there = fs::exists(output);
  if (there && (!fs::is_directory(output) || !fs::is_empty(output))) {
    throw ConfigError(
        fmt::format("'{}' is there already: expected a folder that is empty or to be made\ngive another "
                    "folder to -o, or remove this one",
                    output.string()));
  }
}

// Settings whose 0 stands for another setting, as numbers: a reader need not know the rule.
nlohmann::ordered_json sizes_of(const Settings& s) {
  nlohmann::ordered_json sizes{{"kv_heads", kv_heads_of(s)}, {"head_dim", head_dim_of(s)}, {"d_ff", d_ff_of(s)}};
  if (s.moe.experts > 0) {
    sizes["d_expert"] = d_expert_of(s);
    sizes["group_tokens"] = group_tokens_of(s);
  }
  return sizes;
}

void write_settings(const fs::path& path, const Config& config, std::int64_t steps, const Disk& disk) {
  nlohmann::ordered_json json{{"format", 1}, {"config", config.file}, {"steps", steps}};
  json["sizes"] = sizes_of(config.settings);
  json.update(nlohmann::ordered_json::parse(resolved_json(config)));
  disk.replace_file(path, json.dump(2) + "\n");
}

// All of a step's sequences, as one rank that trains them at once gets them.
void write_batches(const fs::path& path, const Settings& settings, std::int64_t steps, const Disk& disk) {
  using Values = std::vector<std::int32_t> HostBatch::*;
  const std::pair<const char*, Values> written[] = {{"token", &HostBatch::token},
                                                    {"label", &HostBatch::label},
                                                    {"position", &HostBatch::position},
                                                    {"first", &HostBatch::first}};
  const std::vector<std::int64_t> sizes = {steps, settings.batch.sequences, settings.data.sequence_length};
  std::vector<FileTensor> tensors;
  for (const auto& [name, values] : written) {
    tensors.push_back({.name = name, .dtype = DType::i32, .sizes = sizes});
  }
  tensors.push_back({.name = "valid", .dtype = DType::u8, .sizes = sizes});

  const std::unique_ptr<BatchSource> source = make_batch_source(settings);
  DiskFile file(disk, path);
  SafetensorsWriter writer(file, tensors, {});
  const auto each_step = [&](const auto& bytes_of) {
    std::vector<std::byte> all;
    for (std::int64_t step = 0; step < steps; ++step) {
      const HostBatch batch = source->train(step, 0, settings.batch.sequences);
      const std::span<const std::byte> bytes = bytes_of(batch);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    writer.write(all);
  };
  for (const auto& [name, values] : written) {
    each_step([values = values](const HostBatch& batch) { return std::as_bytes(std::span(batch.*values)); });
  }
  each_step([](const HostBatch& batch) { return std::as_bytes(std::span(batch.valid)); });
  writer.finish();
  file.sync_and_close();
}

// The initial weights of the whole model, f32, by the names and in the order of the parameter table. A layout changes
// none of them, so they are made by one rank of this process, without plugins.
std::int64_t write_weights(const fs::path& path, const Config& config, const Disk& disk) {
  Config alone = config;
  alone.plugins.clear();
  const std::unique_ptr<Device> device = make_device("cpu", static_cast<int>(config.settings.run.threads));
  const std::shared_ptr<LocalSegment> segment = LocalSegment::create(1);
  const auto communicator = make_local_communicator(segment, 0, config.settings.run.timeout_seconds);
  Session session(alone);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  session.plan(0, communicator.get(), device.get());
  const ParamStore store(session.plan(), *stream);

  std::vector<FileTensor> tensors;
  for (const LayerSpecs& layer : parameter_table(config.settings)) {
    for (const ParamSpec& p : layer.params) {
      FileTensor& tensor = tensors.emplace_back(FileTensor{.name = p.name, .dtype = DType::f32, .sizes = {}});
      for (int i = 0; i < p.global.rank(); ++i) {
        tensor.sizes.push_back(p.global[i]);
      }
    }
  }
  DiskFile file(disk, path);
  SafetensorsWriter writer(file, tensors, {{"format", "pt"}});
  std::vector<float> values;
  std::int64_t parameters = 0;
  for (const FileTensor& tensor : tensors) {
    const ParamStore::Found found = store.find(tensor.name);
    const std::vector<StatePiece> pieces = state_pieces(*found.group, *found.param);  // the weights first, in one piece
    values.resize(static_cast<std::size_t>(found.param->elements()));
    pieces.front().download(values.data(), *stream);
    writer.write(std::as_bytes(std::span(values)));
    parameters += found.param->elements();
  }
  writer.finish();
  file.sync_and_close();
  return parameters;
}

void peer_data(const ConfigArguments& arguments, const PeerDataOptions& options) {
  Config config = load_config(arguments);
  checked_ranks(config, Ranks::elsewhere);
  if (config.settings.data.source == "pairs") {
    throw SettingError(
        "data.source",
        "data.source: the settings that are written do not tell of pairs of answers and their loss; give "
        "a configuration with another source");
  }
  if (spaces_of(config.settings).size() > 1) {
    throw SettingError("model.kind", fmt::format("[model] kind: peer data are tokens of one space, and \"{}\" reads "
                                                 "several\ngive a configuration of another kind",
                                                 config.settings.model.kind));
  }
  check_output(options.output);
  if (!config.settings.batch.grow_to.empty()) {
    throw SettingError("batch.grow_to",
                       "[batch] grow_to: peer data are batches of one size; give --set 'batch.grow_after=[]' --set "
                       "'batch.grow_to=[]', and batch.sequences as it shall be");
  }
  const std::int64_t steps = options.steps > 0 ? options.steps : config.settings.run.steps;
  const Disk disk;
  disk.create_folder(options.output);
  write_batches(options.output / "batches.safetensors", config.settings, steps, disk);
  const std::int64_t parameters = write_weights(options.output / "weights.safetensors", config, disk);
  write_settings(options.output / "settings.json", config, steps, disk);
  put("{}: settings.json, weights.safetensors ({} parameters), batches.safetensors ({} steps)\n",
      options.output.string(), parameters, steps);
}

}  // namespace

void add_peer_data_command(CLI::App& bench, int& exit_code) {
  CLI::App* command =
      bench.add_subcommand("peer-data", "Write settings, batches and initial weights for another system");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<PeerDataOptions>();
  command->add_option("--steps", options->steps, "Steps to write batches of; as many as run.steps if not given")
      ->check(CLI::Range(1, 1000000));
  command->add_option("-o,--output", options->output, "The folder to make")->required()->check(not_empty);
  command->callback([arguments, options, &exit_code] {
    peer_data(*arguments, *options);
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
