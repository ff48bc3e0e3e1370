#include "bench/study/study_file.h"

#include <fmt/format.h>
#include <orthant/table.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/base/text_file.h"
#include "core/config/check.h"
#include "core/config/read_files.h"
#include "core/config/suggest.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

constexpr std::size_t longest_study = 1 << 20;  // bytes

std::vector<KeySpec> study_keys() {
  return {
      {.name = "name", .default_value = std::string(), .help = "of the study's folder", .required = true},
      {.name = "title", .default_value = std::string(), .help = "of the report"},
      {.name = "config", .default_value = std::string(), .help = "the configuration of all points", .required = true},
      {.name = "directory", .default_value = std::string("studies"), .help = "where the study's folder is made"},
      {.name = "set", .default_value = Texts(), .help = "settings of all points, as --set takes them"},
      {.name = "side_by_side",
       .default_value = std::int64_t{0},
       .help = "points that train at a time; 0: what a trial finds to be fastest",
       .minimum = 0,
       .maximum = 1024},
      {.name = "timing_rounds",
       .default_value = std::int64_t{3},
       .help = "how often each shape is timed alone, in turns; 0: never",
       .minimum = 0,
       .maximum = 1000},
      {.name = "timing_steps",
       .default_value = std::int64_t{10},
       .help = "steps that are timed in a round",
       .minimum = 1,
       .maximum = 100000},
      {.name = "most_points",
       .default_value = std::int64_t{1000},
       .help = "more are refused before anything starts",
       .minimum = 1,
       .maximum = 1000000},
      {.name = "resamples",
       .default_value = std::int64_t{1000},
       .help = "of the bootstrap behind the intervals",
       .minimum = 100,
       .maximum = 100000},
      {.name = "counterfactual",
       .default_value = Numbers(),
       .help = "capacity factors at which dropless points say what they would have dropped",
       .minimum = 1e-3},
      {.name = "keep_checkpoints", .default_value = false, .help = "of points that are done"},
  };
}

std::vector<KeySpec> rule_keys() {
  return {
      {.name = "lr", .default_value = 0.0, .help = "at d_model", .minimum = 1e-12, .required = true},
      {.name = "d_model", .default_value = std::int64_t{0}, .help = "where lr holds", .minimum = 1, .required = true},
      {.name = "exponent", .default_value = -0.5, .help = "of model.d_model / d_model", .minimum = -4, .maximum = 4},
  };
}

std::vector<KeySpec> named_keys() {
  return {
      {.name = "name", .default_value = std::string(), .help = "in ids of points", .required = true},
      {.name = "set", .default_value = Texts(), .help = "settings, as --set takes them"},
  };
}

std::vector<KeySpec> grid_keys() {
  const auto list = [](const char* name, std::int64_t value, const char* help) {
    return KeySpec{.name = name, .default_value = Integers{value}, .help = help, .minimum = 1, .maximum = 1 << 20};
  };
  KeySpec experts = list("experts", 1, "1: the dense twin");
  experts.default_value = Integers();
  KeySpec per_rank = list("experts_per_rank", 1, "instead of experts: they grow with the ranks");
  per_rank.default_value = Integers();
  return {
      {.name = "sizes", .default_value = Texts(), .help = "names of [[size]]; none: all"},
      {.name = "layouts", .default_value = Texts(), .help = "names of [[layout]]; none: all"},
      experts,
      per_rank,
      list("top_k", 1, "experts of a token"),
      list("granularity", 1, "experts that one of full width is cut into"),
      {.name = "capacity_factor", .default_value = Numbers{0.0}, .help = "0: dropless", .minimum = 0},
      {.name = "lr_factor",
       .default_value = Numbers{1.0},
       .help = "what the learning rate is multiplied by",
       .minimum = 1e-6,
       .maximum = 1e6},
      list("seeds", 1, "of weights and batches"),
  };
}

bool name_ok(const std::string& name) {
  return !name.empty() && name.size() <= 40 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.'; });
}

class StudyReader {
 public:
  explicit StudyReader(const std::string& path) : diagnostics_(sources_) { study_.path = path; }

  StudyFile read() {
    const std::vector<SettingsLayer> layers = read_layers(study_.path, {}, *sources_, diagnostics_);
    diagnostics_.throw_if_any();
    folder_ = layers.back().directory;
    study_.text = read_text_file(study_.path, longest_study).value_or("");
    for (const SettingsLayer& layer : layers) {
      for (const Member& top : layer.root.members) {
        read_top(top);
      }
    }
    if (!study_seen_) {
      diagnostics_.add("", "[study] is missing", "write [study] with name and config");
    }
    complete();
    diagnostics_.throw_if_any();
    return std::move(study_);
  }

 private:
  void read_top(const Member& top) {
    static const Texts known = {"study", "learning_rate", "size", "layout", "grid"};
    if (top.key == "study" && is_table(top)) {
      read_study_table(top);
    } else if (top.key == "learning_rate" && is_table(top)) {
      const Table table = read_table(top.value, "learning_rate", rule_keys());
      study_.learning_rate = {table.number("lr"), table.integer("d_model"), table.number("exponent")};
    } else if (top.key == "size" || top.key == "layout") {
      for (const Node& item : items(top)) {
        read_named(item, top.key, top.key == "size" ? study_.sizes : study_.layouts);
      }
    } else if (top.key == "grid") {
      for (const Node& item : items(top)) {
        read_grid(item);
      }
    } else if (std::find(known.begin(), known.end(), top.key) == known.end()) {
      const auto near = nearest(top.key, known);
      diagnostics_.add(top.origin, fmt::format("unknown table {}", in_quotes(top.key)),
                       near ? fmt::format("did you mean [{}]?", *near)
                            : "a study has [study], [learning_rate], [[size]], [[layout]] and [[grid]]");
    }
  }

  bool is_table(const Member& member) {
    if (member.value.kind != Node::Kind::table) {
      diagnostics_.add(member.value.origin,
                       fmt::format("{}: expected a table, found {}", member.key, kind_name(member.value)),
                       fmt::format("write [{}]", member.key));
    }
    return member.value.kind == Node::Kind::table;
  }

  std::vector<Node> items(const Member& member) {
    const bool good = member.value.kind == Node::Kind::array &&
                      std::all_of(member.value.items.begin(), member.value.items.end(),
                                  [](const Node& node) { return node.kind == Node::Kind::table; });
    if (!good) {
      diagnostics_.add(member.value.origin,
                       fmt::format("{}: expected tables in a list, found {}", member.key, kind_name(member.value)),
                       fmt::format("write [[{}]]", member.key));
      return {};
    }
    return member.value.items;
  }

  // Every key that `specs` declare, with its default where it is not written.
  Table read_table(const Node& node, const std::string& title, const std::vector<KeySpec>& specs) {
    std::map<std::string, Table::Entry> entries;
    std::set<std::string> written;
    Texts names;
    for (const KeySpec& spec : specs) {
      entries[spec.name] = {spec.default_value, "default"};
      names.push_back(spec.name);
    }
    for (const Member& member : node.members) {
      const auto spec =
          std::find_if(specs.begin(), specs.end(), [&](const KeySpec& s) { return s.name == member.key; });
      if (spec == specs.end()) {
        const auto near = nearest(member.key, names);
        diagnostics_.add(
            member.origin, fmt::format("[{}] has no key {}", title, in_quotes(member.key)),
            near ? fmt::format("did you mean '{}'?", *near) : fmt::format("it has {}", fmt::join(names, ", ")));
        continue;
      }
      written.insert(member.key);
      if (auto value = check_value(*spec, fmt::format("[{}] {}", title, member.key), member.value, diagnostics_)) {
        entries[member.key] = {std::move(*value), member.value.origin};
      }
    }
    for (const KeySpec& spec : specs) {
      if (spec.required && !written.contains(spec.name)) {
        diagnostics_.add(node.origin, fmt::format("[{}] needs {}", title, spec.name),
                         fmt::format("it is {}", spec.help));
      }
    }
    return {title, std::move(entries)};
  }

  template <class T>
  static const T& list(const Table& table, const std::string& key) {
    return std::get<T>(table.entries().at(key).value);
  }

  void read_study_table(const Member& top) {
    const Table table = read_table(top.value, "study", study_keys());
    study_seen_ = true;
    study_.name = named(table);
    study_.title = table.text("title").empty() ? study_.name : table.text("title");
    study_.config = absolute(table, "config", folder_);
    study_.directory = absolute(table, "directory", fs::current_path());
    study_.set = list<Texts>(table, "set");
    study_.side_by_side = table.integer("side_by_side");
    study_.timing_rounds = table.integer("timing_rounds");
    study_.timing_steps = table.integer("timing_steps");
    study_.most_points = table.integer("most_points");
    study_.resamples = table.integer("resamples");
    study_.counterfactual = list<Numbers>(table, "counterfactual");
    study_.keep_checkpoints = table.boolean("keep_checkpoints");
  }

  std::string absolute(const Table& table, const std::string& key, const fs::path& folder) {
    Value value = table.text(key);
    if (!make_absolute(value, folder)) {
      diagnostics_.add(table.origin(key), fmt::format("[study] {}: not a file name", key), "");
    }
    return std::get<std::string>(value);
  }

  std::string named(const Table& table) {
    const std::string& name = table.text("name");
    if (table.origin("name") != "default" && !name_ok(name)) {
      diagnostics_.add(table.origin("name"),
                       fmt::format("[{}] name: {} cannot stand in the name of a folder", table.path(), in_quotes(name)),
                       "write 1 to 40 letters, digits, '-' or '.', and begin with no '.'");
    }
    return name;
  }

  void read_named(const Node& node, const std::string& title, std::vector<NamedSettings>& to) {
    const Table table = read_table(node, title, named_keys());
    NamedSettings one{named(table), list<Texts>(table, "set")};
    if (std::any_of(to.begin(), to.end(), [&](const NamedSettings& other) { return other.name == one.name; })) {
      diagnostics_.add(table.origin("name"), fmt::format("[[{}]] {} is there twice", title, in_quotes(one.name)),
                       "give each a name of its own");
    }
    to.push_back(std::move(one));
  }

  void read_grid(const Node& node) {
    const Table table = read_table(node, "grid", grid_keys());
    grid_tables_.push_back(table);
    StudyGrid grid{.sizes = list<Texts>(table, "sizes"),
                   .layouts = list<Texts>(table, "layouts"),
                   .experts = list<Integers>(table, "experts"),
                   .experts_per_rank = list<Integers>(table, "experts_per_rank"),
                   .top_k = list<Integers>(table, "top_k"),
                   .granularity = list<Integers>(table, "granularity"),
                   .capacity_factor = list<Numbers>(table, "capacity_factor"),
                   .lr_factor = list<Numbers>(table, "lr_factor"),
                   .seeds = list<Integers>(table, "seeds")};
    if (grid.experts.empty() == grid.experts_per_rank.empty()) {
      diagnostics_.add(node.origin, "[[grid]] needs experts or experts_per_rank, one of them",
                       "write experts = [1, 2, 4, 8]");
    }
    for (const auto& [key, is_empty] : {std::pair("top_k", grid.top_k.empty()),
                                        {"granularity", grid.granularity.empty()},
                                        {"capacity_factor", grid.capacity_factor.empty()},
                                        {"lr_factor", grid.lr_factor.empty()},
                                        {"seeds", grid.seeds.empty()}}) {
      if (is_empty) {
        diagnostics_.add(table.origin(key), fmt::format("[[grid]] {} is an empty list: there is no point to run", key),
                         "write one value or more, or leave the key out");
      }
    }
    study_.grids.push_back(std::move(grid));
  }

  // What is left out, and names that nobody gave.
  void complete() {
    if (study_.sizes.empty()) {
      study_.sizes.push_back({"base", {}});
    }
    if (study_.layouts.empty()) {
      study_.layouts.push_back({"one", {}});
    }
    if (study_.grids.empty()) {
      diagnostics_.add("", "a study needs a [[grid]]", "write [[grid]] with experts = [1, 2, 4, 8]");
    }
    for (std::size_t i = 0; i < study_.grids.size(); ++i) {
      complete_names(study_.grids[i].sizes, study_.sizes, "size", grid_tables_[i].origin("sizes"));
      complete_names(study_.grids[i].layouts, study_.layouts, "layout", grid_tables_[i].origin("layouts"));
    }
  }

  void complete_names(Texts& names, const std::vector<NamedSettings>& known, const std::string& title,
                      const std::string& origin) {
    Texts all;
    for (const NamedSettings& one : known) {
      all.push_back(one.name);
    }
    if (names.empty()) {
      names = all;
    }
    for (const std::string& name : names) {
      if (std::find(all.begin(), all.end(), name) == all.end()) {
        diagnostics_.add(origin, fmt::format("there is no [[{}]] {}", title, in_quotes(name)),
                         fmt::format("there is {}", fmt::join(all, ", ")));
      }
    }
  }

  std::shared_ptr<Sources> sources_ = std::make_shared<Sources>();
  Diagnostics diagnostics_;
  StudyFile study_;
  fs::path folder_;
  std::vector<Table> grid_tables_;
  bool study_seen_ = false;
};

}  // namespace

StudyFile read_study(const std::string& path) {
  return StudyReader(path).read();
}

}  // namespace orthant
