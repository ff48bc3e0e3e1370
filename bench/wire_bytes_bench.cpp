// The bytes that a training step moves between ranks, for each axis: what the formulas say of the layout, what they say
// of the step's own calls, and what the local communicator moved (parallel/local/traffic.h).
//
//   wire_bytes_bench [--first] CONFIG [a.b=c ...]      the second step, or the first; all ranks together, in bytes
//
// planned: `orthant plan`, which assumes balanced routing. of calls: the same formulas for the calls that were made;
// they differ in all_to_all as far as routing is not balanced. moved: what ranks read of each other's memory; see
// traffic.h for where it differs.
#include <barrier>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/config/config.h"
#include "core/data/source.h"
#include "core/dry_run/planning.h"
#include "core/modules/module.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/traffic.h"

namespace {

using namespace orthant;

struct Bytes {
  std::uint64_t planned = 0, of_calls = 0, moved = 0, calls = 0;
};
// By axes along which the group's members differ, the group's name, and the operation.
using Table = std::map<std::tuple<std::string, std::string, std::string>, Bytes>;

// The operations whose bytes are counted; what recv moves is with send.
constexpr Collective counted[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                  Collective::all_to_all, Collective::broadcast,  Collective::reduce,
                                  Collective::gather,     Collective::scatter,    Collective::send};

// Adds `sign` times what all ranks have counted so far. groups: of any rank, in the order of their making.
void add_counts(const LocalSegment& segment, const std::vector<RankPlan>& plans, int sign, Table& table) {
  for (const RankPlan& plan : plans) {
    for (std::size_t group = 0; group < plan.step.groups.size(); ++group) {
      const auto traffic = traffic_of(segment, static_cast<int>(group), plan.rank);
      for (const Collective kind : counted) {
        const Traffic& t = traffic[static_cast<std::size_t>(kind)];
        if (t.calls + t.moved_bytes > 0) {
          Bytes& row = table[{plan.axis[group], plan.step.groups[group].name, name_of(kind)}];
          row.calls += static_cast<std::uint64_t>(sign) * t.calls;  // unsigned arithmetic wraps back
          row.of_calls += static_cast<std::uint64_t>(sign) * t.ideal_bytes;
          row.moved += static_cast<std::uint64_t>(sign) * t.moved_bytes;
        }
      }
    }
  }
}

// measured: the number of the step, from 0.
Table measure(const Config& config, int measured) {
  const int world = check_layout(config);
  std::vector<RankPlan> plans;
  Table table;
  for (int rank = 0; rank < world; ++rank) {
    plans.push_back(plan_rank(config, rank));
    for (const CollectiveCall& call : plans.back().step.calls) {
      const std::string operation = call.operation;
      if (operation != "barrier" && operation != "recv") {
        table[{plans.back().axis[call.group], plans.back().step.groups[call.group].name, operation}].planned +=
            static_cast<std::uint64_t>(call.times * call.bytes_sent);
      }
    }
  }
  const auto segment = LocalSegment::create(world);
  std::barrier everyone(world);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto communicator = make_local_communicator(segment, rank, config.settings.run.timeout_seconds);
        const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
        const std::unique_ptr<Stream> stream = device->make_main_stream();
        const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
        Session session(config);
        session.plan(rank, communicator.get(), device.get());
        Trainer trainer(session.plan(), *stream, *source);
        for (int step = 0; step <= measured; ++step) {
          stream->synchronize();
          everyone.arrive_and_wait();
          if (rank == 0 && step == measured) {
            add_counts(*segment, plans, -1, table);
          }
          everyone.arrive_and_wait();
          trainer.step(step);
        }
        stream->synchronize();
        everyone.arrive_and_wait();
        if (rank == 0) {
          add_counts(*segment, plans, 1, table);
        }
        everyone.arrive_and_wait();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::_Exit(1);  // the others wait at the barrier
      }
    });
  }
  ranks.clear();
  return table;
}

void print(const Table& table) {
  std::printf("%-24s %-20s %-16s %7s %14s %14s %14s %12s\n", "along", "purpose", "operation", "calls", "planned",
              "of calls", "moved", "moved/ideal");
  Bytes sum;
  const auto line = [](const std::string& along, const std::string& purpose, const std::string& operation,
                       const Bytes& b) {
    std::printf("%-24s %-20s %-16s %7lu %14lu %14lu %14lu %12.3f\n", along.c_str(), purpose.c_str(), operation.c_str(),
                static_cast<unsigned long>(b.calls), static_cast<unsigned long>(b.planned),
                static_cast<unsigned long>(b.of_calls), static_cast<unsigned long>(b.moved),
                b.of_calls > 0 ? static_cast<double>(b.moved) / static_cast<double>(b.of_calls) : 0.0);
  };
  for (const auto& [key, bytes] : table) {
    if (bytes.calls + bytes.planned > 0) {
      line(std::get<0>(key), std::get<1>(key), std::get<2>(key), bytes);
      sum.calls += bytes.calls;
      sum.planned += bytes.planned;
      sum.of_calls += bytes.of_calls;
      sum.moved += bytes.moved;
    }
  }
  line("all", "", "", sum);
}

}  // namespace

int main(int argc, char** argv) {
  const bool first = argc > 1 && std::string(argv[1]) == "--first";
  char** words = argv + (first ? 2 : 1);
  if (words == argv + argc) {
    std::fprintf(stderr, "usage: wire_bytes_bench [--first] CONFIG [a.b=c ...]\n");
    return 2;
  }
  try {
    const orthant::Config config = orthant::load_config(
        words[0], {words + 1, argv + argc},
        [](const orthant::PluginRequest& plugin) { return orthant::plugin_keys(plugin.name, plugin.path); });
    print(measure(config, first ? 0 : 1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
