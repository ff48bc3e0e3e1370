// Axes that lie about what they split, and bind nothing. [plugins.broken_axis] size, lie:
//   none          replicas: it splits nothing, and says so
//   same_data     says that the batch is split, but every rank reads all of it
//   router_split  replicas whose routers are said to see different tokens: balance and z loss count once a rank
//   router_whole  splits the batch, but says that routers see all of it: they count and sum on one rank alone
//   slices        splits every sequence, and no rank ever sees another's keys and values (a ring without its steps)
#include <orthant/plugin.h>

namespace {

using namespace orthant;

class BrokenAxis final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks.", .minimum = 1},
            {.name = "lie", .default_value = std::string("none"), .help = "What it says that is not so."}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    AxisSpec axis{.name = "broken_axis", .size = static_cast<int>(config.integer("size"))};
    const std::string& lie = config.text("lie");
    if (lie == "same_data") {
      axis.splits = {Dim::batch};
      axis.joins_in = {{Region::embedding, Dim::batch}};
    } else if (lie == "router_split") {
      axis.splits_in = {{Region::router, Dim::batch}};
    } else if (lie == "router_whole") {
      axis.splits = {Dim::batch};
      axis.joins_in = {{Region::router, Dim::batch}};
    } else if (lie == "slices") {
      axis.splits = {Dim::position};
    }
    mesh.claim(axis);
  }
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("broken_axis", BrokenAxis)
