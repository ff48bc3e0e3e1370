#include "apps/cost/machine_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/table.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/config/check.h"
#include "core/config/read_files.h"
#include "core/config/suggest.h"

namespace orthant::cost {
namespace {

// A number above 0 that a table may or must have.
struct NumberKey {
  const char* name;
  const char* help;
  double* to;
  double unit = 1;  // of one in the file
  bool required = true;
  double largest = 1e9;  // in the file's unit
};

// One file, read table by table; all that is wrong with it is told at once.
class NumberFile {
 public:
  explicit NumberFile(const std::string& path) : problems_(sources_) {
    const std::vector<SettingsLayer> layers = read_layers(path, {}, *sources_, problems_);
    problems_.throw_if_any();
    for (const SettingsLayer& layer : layers) {
      for (const Member& member : layer.root.members) {
        const auto same =
            std::find_if(members_.begin(), members_.end(), [&](const Member& one) { return one.key == member.key; });
        if (same == members_.end()) {
          members_.push_back(member);
        } else {
          *same = member;
        }
      }
    }
  }

  const std::vector<Member>& members() const { return members_; }
  const Member* find(const std::string& key) const {
    const auto found =
        std::find_if(members_.begin(), members_.end(), [&](const Member& member) { return member.key == key; });
    return found == members_.end() ? nullptr : &*found;
  }
  void problem(const std::string& origin, const std::string& what, const std::string& advice) {
    problems_.add(origin, what, advice);
  }
  void finish() const { problems_.throw_if_any(); }

  bool is_table(const Member& member) {
    if (member.value.kind != Node::Kind::table) {
      problem(member.value.origin, fmt::format("{}: expected a table, found {}", member.key, kind_name(member.value)),
              fmt::format("write [{}] and its keys below it", member.key));
    }
    return member.value.kind == Node::Kind::table;
  }

  void unknown(const Member& member, const std::string& title, const std::vector<std::string>& known) {
    const std::optional<std::string> near = nearest(member.key, known);
    problem(member.origin, fmt::format("{} has no key {}", title, in_quotes(member.key)),
            near ? fmt::format("did you mean '{}'?", *near) : fmt::format("it has {}", fmt::join(known, ", ")));
  }

  // The numbers of one table. `others`: keys that the caller reads itself.
  void read_numbers(const std::vector<Member>& members, const std::string& origin, const std::string& title,
                    const std::vector<NumberKey>& keys, const std::vector<std::string>& others = {}) {
    std::vector<std::string> known = others;
    for (const NumberKey& key : keys) {
      known.emplace_back(key.name);
    }
    for (const Member& member : members) {
      if (std::find(known.begin(), known.end(), member.key) == known.end()) {
        unknown(member, title, known);
      }
    }
    for (const NumberKey& key : keys) {
      const auto member =
          std::find_if(members.begin(), members.end(), [&](const Member& one) { return one.key == key.name; });
      if (member != members.end()) {
        read_number(*member, title, key);
      } else if (key.required) {
        problem(origin, fmt::format("{} needs {}", title, key.name), fmt::format("it is {}", key.help));
      }
    }
  }

  std::string read_text(const std::string& key, const char* help) {
    const Member* member = find(key);
    if (member == nullptr || member->value.kind != Node::Kind::text || member->value.text.empty()) {
      problem(member == nullptr ? "" : member->value.origin, fmt::format("a machine needs {}", key),
              fmt::format("it is {}", help));
      return "";
    }
    return member->value.text;
  }

 private:
  void read_number(const Member& member, const std::string& title, const NumberKey& key) {
    const std::string name = fmt::format("{} {}", title, key.name);
    const KeySpec spec{.name = key.name, .default_value = 0.0, .help = key.help, .maximum = key.largest};
    const std::optional<Value> value = check_value(spec, name, member.value, problems_);
    if (!value) {
      return;
    }
    const double number = std::get<double>(*value);
    if (!(number > 0)) {
      problem(member.value.origin, fmt::format("{} is {:g}", name, number),
              fmt::format("write a number above 0: {}", key.help));
      return;
    }
    *key.to = number * key.unit;
  }

  std::shared_ptr<Sources> sources_ = std::make_shared<Sources>();
  Diagnostics problems_;
  std::vector<Member> members_;
};

std::vector<NumberKey> factor_keys(Factors& factors) {
  return {{"products", "the part of the peak that a large product reaches", &factors.products, 1, true, 1.5},
          {"memory", "the part of the memory's bandwidth that is reached", &factors.memory, 1, true, 1.5},
          {"links", "the part of the bandwidth inside a node that is reached", &factors.links, 1, true, 1.5},
          {"network", "the part of the bandwidth between nodes that is reached", &factors.network, 1, true, 1.5},
          {"launch_us", "microseconds of the host for one launch", &factors.launch, 1e-6, true, 1e4}};
}

std::vector<NumberKey> practice_keys(Practice& practice) {
  return {
      {"attention", "the rate of attention's core over that of products", &practice.attention, 1, true, 2},
      {"overlap", "the part of exchanges of weights and gradients that is hidden", &practice.overlap, 1, true, 1},
      {"step_ms", "milliseconds of the host between steps", &practice.step, 1e-3, true, 1e5},
      {"spread", "half of the 90 % interval of ln(measured / predicted), over 1.645", &practice.spread, 1, true, 2}};
}

void read_link(NumberFile& file, const Node& node, Machine& machine) {
  LinkClass link;
  double ranks = 0;
  file.read_numbers(node.members, node.origin, "[[link]]",
                    {{"ranks", "how many ranks one group of these links joins", &ranks, 1, false, 1e6},
                     {"gb_s", "GB/s of one rank, in one direction", &link.bandwidth, 1e9},
                     {"latency_us", "microseconds of a message", &link.latency, 1e-6, true, 1e6},
                     {"sums", "the part of gb_s that an all-reduce gets", &link.sums, 1, false, 10},
                     {"exchanges", "the part of gb_s that an all-to-all gets", &link.exchanges, 1, false, 10}},
                    {"name", "reduces"});
  link.ranks = static_cast<int>(ranks);
  for (const Member& member : node.members) {
    if (member.key == "name" && member.value.kind == Node::Kind::text) {
      link.name = member.value.text;
    } else if (member.key == "reduces" && member.value.kind == Node::Kind::boolean) {
      link.reduces = member.value.boolean;
    } else if (member.key == "name" || member.key == "reduces") {
      file.problem(member.value.origin, fmt::format("[[link]] {}: found {}", member.key, kind_name(member.value)),
                   member.key == "name" ? "write a text" : "write true or false");
    }
  }
  if (!machine.links.empty()) {
    const LinkClass& before = machine.links.back();
    if (before.ranks == 0 || (link.ranks > 0 && link.ranks <= before.ranks)) {
      file.problem(node.origin, fmt::format("[[link]] {} joins no more ranks than the one before it", link.name),
                   "list links from the nearest on, with ranks in each but the last");
    }
  }
  machine.links.push_back(std::move(link));
}

// What only a machine that was measured has.
void read_own(NumberFile& file, Machine& machine) {
  if (const Member* own = file.find("practice"); own != nullptr && file.is_table(*own)) {
    file.read_numbers(own->value.members, own->value.origin, "[practice]", practice_keys(machine.practice.emplace()));
  }
  if (const Member* cores = file.find("cores"); cores != nullptr && file.is_table(*cores)) {
    double count = 0;
    file.read_numbers(
        cores->value.members, cores->value.origin, "[cores]",
        {{"count", "the cores that ranks share", &count, 1, true, 1e6},
         {"together", "the rate of a rank at work on each core, over that of one alone", &machine.cores.together, 1,
          true, 1.5},
         {"cache_mb", "MB (10^6 bytes) of a core's own cache", &machine.cores.cache, 1e6, false, 1e6},
         {"expert_us", "microseconds that an expert costs a product of several, beside its work", &machine.cores.expert,
          1e-6, false, 1e6},
         {"cached", "the rate of memory in the cache, over that outside of it", &machine.cores.cached, 1, false, 1e3}});
    machine.cores.count = static_cast<int>(count);
  }
}

}  // namespace

double Machine::peak_of(Precision precision) const {
  std::size_t type = static_cast<std::size_t>(precision);
  while (type > 0 && peak[type] <= 0) {
    --type;
  }
  return peak[type];
}

double Machine::element_bytes(Precision precision) const {
  return cores.count > 0 && precision == Precision::fp32 ? 4 : half_bytes;
}

Machine load_machine(const std::string& path, const FactorFile& factors) {
  NumberFile file(path);
  Machine machine;
  machine.name = file.read_text("name", "the machine's name, in quotes");
  machine.generation = file.read_text("generation", "the name of its table in factors.toml, in quotes");
  file.read_numbers(file.members(), "", "a machine",
                    {{"memory_gb", "GB (10^9 bytes) of one rank", &machine.memory, 1e9},
                     {"memory_gb_s", "GB/s of one rank's memory", &machine.memory_bandwidth, 1e9}},
                    {"name", "generation", "peak_tflops", "link", "factors", "practice", "cores", "host"});
  if (const Member* peak = file.find("peak_tflops"); peak == nullptr) {
    file.problem("", "a machine needs [peak_tflops]", "write fp32 and half, and fp8 and fp4 where it has them");
  } else if (file.is_table(*peak)) {
    constexpr double tera = 1e12;
    file.read_numbers(peak->value.members, peak->value.origin, "[peak_tflops]",
                      {{"fp32", "TFLOP/s of dense products in fp32", &machine.peak[0], tera},
                       {"half", "TFLOP/s of dense products in bf16 or fp16", &machine.peak[1], tera, false},
                       {"fp8", "TFLOP/s of dense products of 8 bits", &machine.peak[2], tera, false},
                       {"fp4", "TFLOP/s of dense products of 4 bits", &machine.peak[3], tera, false}});
  }
  const Member* links = file.find("link");
  if (links == nullptr || links->value.kind != Node::Kind::array || links->value.items.empty()) {
    file.problem(links == nullptr ? "" : links->value.origin, "a machine needs a [[link]]",
                 "write [[link]] with gb_s and latency_us, from the nearest on");
  } else {
    for (const Node& node : links->value.items) {
      read_link(file, node, machine);
    }
  }
  if (const Member* own = file.find("factors"); own != nullptr && file.is_table(*own)) {
    file.read_numbers(own->value.members, own->value.origin, "[factors]", factor_keys(machine.factors));
  } else if (const auto found = factors.generations.find(machine.generation); found != factors.generations.end()) {
    machine.factors = found->second;
  } else if (!machine.generation.empty()) {
    file.problem("", fmt::format("there are no factors of the generation {}", in_quotes(machine.generation)),
                 "write a [factors] table, or a generation of factors.toml");
  }
  if (const Member* host = file.find("host"); host != nullptr && file.is_table(*host)) {
    file.read_numbers(host->value.members, host->value.origin, "[host]",
                      {{"gb_s", "GB/s between a rank and its host, in one direction", &machine.host.bandwidth, 1e9},
                       {"memory_gb", "GB (10^9 bytes) of the host's memory, of one rank", &machine.host.memory, 1e9},
                       {"memory_gb_s", "GB/s of the host's memory, of one rank", &machine.host.memory_bandwidth, 1e9}});
  }
  read_own(file, machine);
  file.finish();
  return machine;
}

Machine load_machine(const std::string& path) {
  return load_machine(path, load_factors((std::filesystem::path(path).parent_path() / "factors.toml").string()));
}

FactorFile load_factors(const std::string& path) {
  NumberFile file(path);
  FactorFile factors;
  for (const Member& member : file.members()) {
    if (!file.is_table(member)) {
      continue;
    }
    if (member.key == "spread") {
      std::vector<NumberKey> spreads;
      for (const Member& one : member.value.members) {
        spreads.push_back({one.key.c_str(), "as [practice] spread", &factors.spreads[one.key], 1, true, 5});
      }
      file.read_numbers(member.value.members, member.value.origin, "[spread]", spreads);
      continue;
    }
    const std::vector<NumberKey> keys =
        member.key == "practice" ? practice_keys(factors.practice) : factor_keys(factors.generations[member.key]);
    file.read_numbers(member.value.members, member.value.origin, fmt::format("[{}]", member.key), keys);
  }
  if (file.find("practice") == nullptr) {
    file.problem("", "a file of factors needs [practice]", "it is what all machines share");
  }
  file.finish();
  return factors;
}

std::string factors_toml(const FactorFile& factors, const std::string& heading) {
  std::string text = heading;
  const auto table = [&](const std::string& name, const std::vector<NumberKey>& keys) {
    text += fmt::format("\n[{}]\n", name);
    for (const NumberKey& key : keys) {
      text += fmt::format("{} = {:.4g}\n", key.name, *key.to / key.unit);
    }
  };
  FactorFile copy = factors;
  table("practice", practice_keys(copy.practice));
  std::vector<NumberKey> spreads;
  for (auto& [name, spread] : copy.spreads) {
    spreads.push_back({name.c_str(), "", &spread});
  }
  if (!spreads.empty()) {
    table("spread", spreads);
  }
  for (auto& [name, generation] : copy.generations) {
    table(name, factor_keys(generation));
  }
  return text;
}

}  // namespace orthant::cost
