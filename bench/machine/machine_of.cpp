#include "bench/machine/machine_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cost/collectives.h"
#include "apps/cost/operations.h"
#include "apps/cost/shared_cores.h"

namespace orthant::machine {
namespace {

constexpr double most_factor = 1.5;      // that a machine file may have
constexpr double nothing_hides = 0.001;  // a machine file has no zeros

double flops_of(const ProductTime& product) {
  return 2.0 * static_cast<double>(product.rows) * static_cast<double>(product.inner) *
         static_cast<double>(product.columns);
}

// Of the largest of that name.
double rate_of(const Measured& measured, const std::string& name) {
  const MemoryTime* largest = nullptr;
  for (const MemoryTime& one : measured.memory) {
    largest = one.name == name && (largest == nullptr || one.bytes > largest->bytes) ? &one : largest;
  }
  require(largest != nullptr, "{} was not measured: no machine file is written", name);
  return largest->bytes / largest->seconds;
}

// With the price of a product beside its work.
double product_model(const cost::Machine& machine, const ProductTime& product) {
  return (machine.cores.count > 0 ? machine.factors.launch : 0) +
         cost::product_seconds(machine, product.half ? cost::Precision::half : cost::Precision::fp32,
                               static_cast<double>(product.rows), static_cast<double>(product.columns),
                               static_cast<double>(product.inner));
}

// A number between least and most, by the smallest sum of squares of ln(model / measured): looked for on a grid that is
// made finer around the best.
template <class Error>
double best_between(double least, double most, const Error& error) {
  double best = least;
  for (int round = 0; round < 4; ++round) {
    constexpr int points = 40;
    double smallest = HUGE_VAL;
    const double step = std::log(most / least) / points, from = least;
    for (int i = 0; i <= points; ++i) {
      const double value = from * std::exp(step * i), sum = error(value);
      if (sum < smallest) {
        smallest = sum;
        best = value;
      }
    }
    least = std::max(least, best * std::exp(-step));
    most = std::min(most, best * std::exp(step));
  }
  return best;
}

// What all ranks together would take with a core for each.
double alone(const Measured& measured, const cost::Machine& machine, double seconds) {
  return seconds / cost::slowdown(machine.cores, measured.ranks);
}

double link_model(const cost::Machine& machine, int ranks, const LinkTime& link) {
  const cost::Group group = cost::group_of(machine, ranks, 1);
  if (link.call == "all_reduce") {
    return cost::all_reduce(group, link.bytes);
  }
  if (link.call == "all_gather" || link.call == "reduce_scatter") {
    return cost::all_gather(group, link.bytes);
  }
  return link.call == "all_to_all" ? cost::all_to_all(group, link.bytes) : cost::send(group, link.bytes);
}

double copy_seconds(const cost::Machine& machine, double bytes) {
  const double inside = machine.cores.count > 0 ? std::min(1.0, machine.cores.cache / bytes) : 0;
  return bytes / machine.memory_bandwidth * (inside / machine.cores.cached + 1 - inside);
}

// How much of what a copy touches stays in a core's cache, and how much faster it is there.
void fit_cache(const Measured& measured, cost::Machine& machine) {
  const auto sum_of_squares = [&] {
    double sum = 0;
    for (const MemoryTime& one : measured.memory) {
      if (one.name == "copy") {
        sum += std::pow(std::log(copy_seconds(machine, one.bytes) / one.seconds), 2);
      }
    }
    return sum;
  };
  machine.cores.cache = best_between(1e4, 1e9, [&](double bytes) {
    machine.cores.cache = bytes;
    machine.cores.cached = best_between(1, 50, [&](double rate) {
      machine.cores.cached = rate;
      return sum_of_squares();
    });
    return sum_of_squares();
  });
  machine.cores.cached = best_between(1, 50, [&](double rate) {
    machine.cores.cached = rate;
    return sum_of_squares();
  });
}

// Latency and bandwidth of gathers and messages, then the parts of it that sums and exchanges get.
void fit_links(const Measured& measured, cost::Machine& machine) {
  cost::LinkClass& link = machine.links.front();
  const auto sum_of_squares = [&](const std::vector<std::string>& calls) {
    double sum = 0;
    for (const LinkTime& one : measured.links) {
      if (std::find(calls.begin(), calls.end(), one.call) != calls.end()) {
        sum += std::pow(std::log(link_model(machine, measured.ranks, one) / alone(measured, machine, one.seconds)), 2);
      }
    }
    return sum;
  };
  const std::vector<std::string> gathers = {"all_gather", "reduce_scatter", "send"};
  const auto with_bandwidth = [&](double bandwidth) {
    link.bandwidth = bandwidth;
    link.latency = best_between(1e-8, 1e-1, [&](double latency) {
      link.latency = latency;
      return sum_of_squares(gathers);
    });
    return sum_of_squares(gathers);
  };
  machine.factors.links = 1;
  link.bandwidth = best_between(1e6, 1e13, with_bandwidth);
  with_bandwidth(link.bandwidth);
  link.sums = best_between(0.01, 10, [&](double part) {
    link.sums = part;
    return sum_of_squares({"all_reduce"});
  });
  link.exchanges = best_between(0.01, 10, [&](double part) {
    link.exchanges = part;
    return sum_of_squares({"all_to_all"});
  });
}

}  // namespace

cost::Machine machine_of(const Measured& measured) {
  check(measured);
  cost::Machine machine;
  machine.name = "own";
  machine.generation = "own";
  machine.memory = measured.memory_bytes / (measured.device == "cpu" ? measured.ranks : 1);  // ranks share it
  for (const ProductTime& product : measured.products) {
    double& peak = machine.peak[product.half ? 1 : 0];
    peak = std::max(peak, flops_of(product) / product.seconds);
  }
  machine.memory_bandwidth = rate_of(measured, "copy");
  const bool on_cores = measured.device == "cpu";
  if (on_cores) {
    const int used = std::min(measured.ranks, measured.cores);
    machine.cores.count = measured.cores;
    machine.cores.together = std::min(most_factor, measured.together[static_cast<std::size_t>(used) - 1] / used);
    machine.cores.expert = measured.expert_seconds;
    fit_cache(measured, machine);
  }
  double ln = 0;
  for (const MemoryTime& one : measured.memory) {
    if (one.name != "copy" && one.name != "adamw") {
      ln += std::log(copy_seconds(machine, one.bytes) / one.seconds) / 3;  // three of them
    }
  }
  machine.factors.memory = std::min(most_factor, std::exp(ln));
  machine.factors.launch = measured.launch_seconds;
  const auto products = [&] {
    double sum = 0;
    for (const ProductTime& product : measured.products) {
      sum += std::pow(std::log(product_model(machine, product) / product.seconds), 2);
    }
    return sum;
  };
  const auto with_price = [&](double price) {
    machine.factors.launch = price;
    machine.factors.products = best_between(0.02, most_factor, [&](double part) {
      machine.factors.products = part;
      return products();
    });
    return products();
  };
  with_price(on_cores ? best_between(1e-8, 1e-3, with_price) : measured.launch_seconds);
  cost::Practice practice;
  const double rate =
      machine.peak_of(on_cores ? cost::Precision::fp32 : cost::Precision::half) * machine.factors.products;
  practice.attention = std::min(2.0, measured.attention_flops / measured.attention_seconds / rate);
  practice.step = alone(measured, machine, measured.step_seconds);
  if (on_cores) {
    practice.overlap = nothing_hides;
  }
  machine.practice = practice;
  machine.links.push_back({measured.communicator, 0, machine.memory_bandwidth / 2, 1e-6});
  if (measured.ranks > 1) {
    fit_links(measured, machine);
  }
  machine.factors.network = machine.factors.links;
  return machine;
}

std::string machine_toml(const cost::Machine& machine, const std::string& heading) {
  constexpr double giga = 1e9, tera = 1e12, micro = 1e-6, milli = 1e-3;
  std::string text = heading;
  text += fmt::format("name = \"{}\"\ngeneration = \"{}\"\nmemory_gb = {:.4g}\nmemory_gb_s = {:.5g}\n", machine.name,
                      machine.generation, machine.memory / giga, machine.memory_bandwidth / giga);
  text += fmt::format("\n[peak_tflops]\nfp32 = {:.5g}\n", machine.peak[0] / tera);
  if (machine.peak[1] > 0) {
    text += fmt::format("half = {:.5g}\n", machine.peak[1] / tera);
  }
  for (const cost::LinkClass& link : machine.links) {
    text += fmt::format("\n[[link]]\nname = \"{}\"\n", link.name);
    if (link.ranks > 0) {
      text += fmt::format("ranks = {}\n", link.ranks);
    }
    text += fmt::format("gb_s = {:.5g}\nlatency_us = {:.5g}\nsums = {:.5g}\nexchanges = {:.5g}\n",
                        link.bandwidth / giga, link.latency / micro, link.sums, link.exchanges);
  }
  text += fmt::format("\n[factors]\nproducts = {:.5g}\nmemory = {:.5g}\nlinks = {:.5g}\nnetwork = {:.5g}\n",
                      machine.factors.products, machine.factors.memory, machine.factors.links, machine.factors.network);
  text += fmt::format("launch_us = {:.5g}\n", machine.factors.launch / micro);
  if (machine.practice) {
    text += fmt::format("\n[practice]\nattention = {:.5g}\noverlap = {:.5g}\nstep_ms = {:.5g}\nspread = {:.5g}\n",
                        machine.practice->attention, machine.practice->overlap, machine.practice->step / milli,
                        machine.practice->spread);
  }
  if (machine.cores.count > 0) {
    text += fmt::format("\n[cores]\ncount = {}\ntogether = {:.5g}\nexpert_us = {:.5g}\n", machine.cores.count,
                        machine.cores.together, machine.cores.expert / micro);
    if (machine.cores.cache > 0) {
      text += fmt::format("cache_mb = {:.5g}\ncached = {:.5g}\n", machine.cores.cache / 1e6, machine.cores.cached);
    }
  }
  return text;
}

std::string text_of(const Measured& measured, const cost::Machine& machine) {
  std::string text =
      fmt::format("{} rank{} of {} on {}, {} core{}{}{}\n", measured.ranks, measured.ranks == 1 ? "" : "s",
                  measured.communicator, measured.device, measured.cores, measured.cores == 1 ? "" : "s",
                  measured.processor.empty() ? "" : ", ", measured.processor);
  text += fmt::format("\n{:<8} {:>6} {:>6} {:>8} {:>12} {:>12} {:>8}\n", "product", "rows", "inner", "columns",
                      "GFLOP/s", "in the model", "ratio");
  for (const ProductTime& product : measured.products) {
    const double model = product_model(machine, product);
    text += fmt::format("{:<8} {:>6} {:>6} {:>8} {:>12.1f} {:>12.1f} {:>8.2f}\n", product.half ? "bf16" : "f32",
                        product.rows, product.inner, product.columns, 1e-9 * flops_of(product) / product.seconds,
                        1e-9 * flops_of(product) / model, model / product.seconds);
  }
  text += fmt::format("\n{:<12} {:>10} {:>8}\n", "memory", "MB", "GB/s");
  for (const MemoryTime& one : measured.memory) {
    text += fmt::format("{:<12} {:>10.2f} {:>8.2f}\n", one.name, 1e-6 * one.bytes, 1e-9 * one.bytes / one.seconds);
  }
  text += fmt::format(
      "\nattention {:.1f} GFLOP/s; an expert more in a product {:.2f} us; an operation on a few numbers {:.2f} us; a "
      "step "
      "of nearly no work {:.3f} ms\n",
      1e-9 * measured.attention_flops / measured.attention_seconds, 1e6 * measured.expert_seconds,
      1e6 * measured.launch_seconds, 1e3 * measured.step_seconds);
  text += "\nranks at work and their products, in those of one alone:";
  for (std::size_t k = 0; k < measured.together.size(); ++k) {
    text += fmt::format(" {}: {:.2f}", k + 1, measured.together[k]);
  }
  text += "\n";
  if (!measured.links.empty()) {
    text += fmt::format("\n{:<16} {:>10} {:>12} {:>14} {:>8}\n", "call", "bytes", "us", "us in the model", "ratio");
  }
  for (const LinkTime& link : measured.links) {
    const double model = link_model(machine, measured.ranks, link) * cost::slowdown(machine.cores, measured.ranks);
    text += fmt::format("{:<16} {:>10.0f} {:>12.1f} {:>14.1f} {:>8.2f}\n", link.call, link.bytes, 1e6 * link.seconds,
                        1e6 * model, model / link.seconds);
  }
  return text;
}

}  // namespace orthant::machine
