// The sequence axis: each rank holds a slice of every sequence. Attention, which needs all of it, is done in one of two
// ways: Ulysses trades positions for heads around the attention core, ring attention replaces the core.
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include "ring.h"
#include "ulysses.h"

namespace {

using namespace orthant;

class Sequence final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {
        {.name = "size",
         .default_value = std::int64_t{1},
         .help = "Ranks that split every sequence.",
         .minimum = 1,
         .maximum = 65536},
        {.name = "method",
         .default_value = std::string("ulysses"),
         .help = "How attention sees the whole sequence: all-to-all between positions and heads, or keys and values "
                 "that travel round the ranks.",
         .choices = {"ulysses", "ring"}}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    ring_ = config.text("method") == "ring";
    AxisSpec axis{.name = "sequence", .size = static_cast<int>(config.integer("size")), .splits = {Dim::position}};
    if (ring_) {
      axis.zigzag = axis.size > 1;
    } else {
      axis.joins_in = {{Region::attention_core, Dim::position}};
      axis.splits_in = {{Region::attention_core, Dim::head}};
    }
    axis_ = mesh.claim(axis);
  }

  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh& mesh) override {
    if (mesh.axes()[axis_].size == 1) {
      return;
    }
    const std::vector<AxisId> splitters = plan.axes_of(Dim::position, Region::embedding);
    if (splitters.size() > 1) {
      throw ConfigError("another axis slices the sequences too: only one can");
    }
    if (ring_) {
      bind_ring(plan, mesh);
    } else {
      bind_ulysses(plan, mesh);
    }
  }

 private:
  static void refuse_what_does_not_divide(const Plan& plan) {
    plan.part(Dim::head, plan.settings().model.heads, Region::attention_core);
    // Fewer key heads than ranks are repeated.
    Param keys{
        .spec = {.name = "the key heads", .global = {kv_heads_of(plan.settings())}, .region = Region::attention_core}};
    keys.spec.split[0] = Dim::head;
    keys.spec.repeats = true;
    plan.place(keys);
  }

  void bind_ulysses(Plan& plan, Mesh& mesh) {
    refuse_what_does_not_divide(plan);
    std::vector<std::int64_t> slices;
    for (int space = 0; space < static_cast<int>(plan.spaces().size()); ++space) {
      slices.push_back(plan.held_positions(Region::embedding, mesh.rank(), space));
    }
    Group& group = mesh.group(axis_);
    plan.bind({Region::attention_core, Side::enter}, sequence::make_to_heads(group, slices), Dim::position);
    plan.bind({Region::attention_core, Side::leave}, sequence::make_to_positions(group, slices), Dim::position);
  }

  void bind_ring(Plan& plan, Mesh& mesh) {
    Group& group = mesh.group(axis_);
    std::vector<sequence::Places> positions(plan.spaces().size());
    for (std::size_t space = 0; space < positions.size(); ++space) {
      for (int member : group.members()) {
        std::vector<std::int32_t>& places = positions[space].emplace_back();
        for (const Range& run : plan.positions(Region::attention_core, member, static_cast<int>(space))) {
          for (std::int64_t i = 0; i < run.count; ++i) {
            places.push_back(static_cast<std::int32_t>(run.begin + i));
          }
        }
      }
    }
    plan.bind(sequence::make_ring(group, std::move(positions), plan.dry() ? nullptr : &plan.device()));
  }

  bool ring_ = false;
  AxisId axis_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("sequence", Sequence)
