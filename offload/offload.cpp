// Offload: a model that is larger than its device. It is no axis: each rank offloads what it holds.
#include <orthant/plugin.h>

#include <algorithm>

#include "keeper.h"
#include "stash.h"

namespace {

using namespace orthant;
using namespace orthant::offload;

Place place_of(const std::string& name) {
  return name == "host" ? Place::host : name == "nvme" ? Place::nvme : Place::device;
}

class Offload final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    const auto place = [](const char* name, const char* help) {
      return KeySpec{
          .name = name, .default_value = std::string("device"), .help = help, .choices = {"device", "host", "nvme"}};
    };
    return {
        place("states",
              "Where the optimizer's states and, in bf16, the master weights stay; elsewhere than on the "
              "device the update runs in the host's memory."),
        place("gradients", "Where gradients stay from a layer's backward pass to the update."),
        place("weights", "Where weights stay while other layers run."),
        place("activations", "Where activations wait for their backward pass."),
        {.name = "expert_states",
         .default_value = std::string("eager"),
         .help = "lazy: an expert that no token chose moves nothing in that step; its update is made up for, to the "
                 "bit, when it is next chosen or saved. states then are on the device or the host.",
         .choices = {"eager", "lazy"}},
        {.name = "expert_weights",
         .default_value = std::string("ahead"),
         .help = "after_gate: the weights of routed experts come to the device when the gate has chosen, those of "
                 "experts with rows alone. weights then are in the host's memory.",
         .choices = {"ahead", "after_gate"}},
        {.name = "pinned_experts",
         .default_value = std::int64_t{0},
         .help = "With after_gate: so many experts of each routed layer and rank, those with the most rows of late, "
                 "keep their weights on the device.",
         .minimum = 0},
        {.name = "host_rows",
         .default_value = std::int64_t{0},
         .help = "With after_gate: an expert with at most so many rows in a micro-batch, unless it is pinned, is "
                 "computed in the host's memory, where its weights are.",
         .minimum = 0},
        {.name = "clip",
         .default_value = std::string("exact"),
         .help =
             "speculative: the update of a layer starts in the backward pass, on copies of its states, before the "
             "norm of all gradients is known; where that clips, or is not finite, it is dropped and made again. The "
             "same bits; states = \"host\", which then has them twice.",
         .choices = {"exact", "speculative"}},
        {.name = "directory",
         .default_value = std::string(),
         .help = "A folder on the disk for nvme; files there have no name and are gone with the run. Empty: "
                 "run.directory."},
        {.name = "device_fraction",
         .default_value = 0.0,
         .help = "The share of the parameters whose weights, gradients and states stay on the device.",
         .minimum = 0,
         .maximum = 1}};
  }

  void claim(Mesh&, const Table& config) override {
    places_ = {.states = place_of(config.text("states")),
               .gradients = place_of(config.text("gradients")),
               .weights = place_of(config.text("weights")),
               .device_fraction = config.number("device_fraction"),
               .lazy_experts = config.text("expert_states") == "lazy",
               .after_gate = config.text("expert_weights") == "after_gate",
               .pinned = config.integer("pinned_experts"),
               .host_rows = config.integer("host_rows"),
               .speculative = config.text("clip") == "speculative"};
    if (places_.lazy_experts && (places_.states == Place::nvme || places_.weights != Place::device)) {
      throw SettingError("plugins.offload.expert_states",
                         "expert_states = \"lazy\" moves single experts, but states on disk and weights that are away "
                         "move a layer at a time\nwrite states = \"host\" and weights = \"device\", or expert_states "
                         "= \"eager\"");
    }
    if (places_.after_gate && places_.weights != Place::host) {
      throw SettingError("plugins.offload.expert_weights",
                         "expert_weights = \"after_gate\" brings single experts from the host's memory, but weights "
                         "are elsewhere\nwrite weights = \"host\", or expert_weights = \"ahead\"");
    }
    if (places_.pinned > 0 && !places_.after_gate) {
      throw SettingError("plugins.offload.pinned_experts",
                         "pinned_experts keeps experts on the device whose others come after the gate\nwrite "
                         "expert_weights = \"after_gate\" and weights = \"host\", or pinned_experts = 0");
    }
    if (places_.host_rows > 0 && !places_.after_gate) {
      throw SettingError(
          "plugins.offload.host_rows",
          "host_rows computes rows where the weights of their expert are, once the gate has chosen\nwrite "
          "expert_weights = \"after_gate\" and weights = \"host\", or host_rows = 0");
    }
    if (places_.speculative && (places_.states != Place::host || places_.lazy_experts)) {
      throw SettingError(
          "plugins.offload.clip",
          "clip = \"speculative\" keeps states in the host's memory twice, and updates all of a layer at "
          "once\nwrite states = \"host\" and expert_states = \"eager\", or clip = \"exact\"");
    }
    activations_ = place_of(config.text("activations"));
    directory_ = config.text("directory");
  }

  // The states first: they are most, and cost least.
  std::vector<KeyChange> smaller() const override {
    std::vector<KeyChange> changes;
    const auto add = [&](const char* key, Place place) {
      if (place == Place::device) {
        changes.push_back({key, std::string("host")});
      }
    };
    add("states", places_.states);
    add("gradients", places_.gradients);
    add("activations", activations_);
    if (!places_.lazy_experts) {
      add("weights", places_.weights);
    }
    return changes;
  }
  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh& mesh) override {
    if (plan.settings().optimizer.in_backward && places_.speculative) {
      throw SettingError("plugins.offload.clip",
                         "clip = \"speculative\" takes updates back, and optimizer.in_backward makes them for good\n"
                         "write clip = \"exact\", or optimizer.in_backward = false");
    }
    if (plan.settings().optimizer.in_backward && places_.lazy_experts) {
      throw SettingError("plugins.offload.expert_states",
                         "expert_states = \"lazy\" knows at the end of a step which experts were chosen, and "
                         "optimizer.in_backward updates before\nwrite expert_states = \"eager\", or "
                         "optimizer.in_backward = false");
    }
    if (plan.settings().run.skip_not_finite > 0 && places_.lazy_experts) {
      throw SettingError("plugins.offload.expert_states",
                         "expert_states = \"lazy\" makes up for updates of every step, also of those that "
                         "run.skip_not_finite passes over\nwrite expert_states = \"eager\", or skip_not_finite = 0");
    }
    std::shared_ptr<Lanes> lanes;
    if (!plan.dry()) {
      lanes = std::make_shared<Lanes>(plan.device(), directory_.empty() ? plan.settings().run.directory : directory_,
                                      mesh.rank());
    }
    if (places_.any() || activations_ != Place::device) {  // it tells the traffic of both
      plan.chain(std::make_unique<OffloadKeeper>(plan.settings(), places_, lanes));
    }
    if (activations_ != Place::device && lanes != nullptr) {
      plan.chain(std::make_unique<OffloadStash>(activations_, lanes));
    }
  }

 private:
  KeeperPlaces places_;
  Place activations_ = Place::device;
  std::string directory_;
};

}  // namespace

ORTHANT_PLUGIN("offload", Offload)
