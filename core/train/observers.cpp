#include "core/train/observers.h"

#include <orthant/catalogue.h>
#include <orthant/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace orthant {
namespace {

const std::string prefix = "hook/";

double number_of(const std::string& key, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require(error == std::errc() && stop == end, "the checkpoint's '{}' is \"{}\", expected a number", key, text);
  return value;
}

}  // namespace

Observers::Observers(const Settings& settings)
    : has_capacity_(settings.moe.experts > 0 && settings.moe.capacity_factor > 0) {
  for (const std::string& name : settings.catalogue->names<Hook>()) {
    all_.push_back({name, settings.catalogue->get<Hook>(name).make(settings), {}});
    require(all_.back().observer != nullptr, "hook '{}' makes no observer", name);
  }
}

double Observers::lr_factor() const {
  double factor = 1;
  for (const One& one : all_) {
    factor *= one.changes.lr_factor;
  }
  return factor;
}

double Observers::capacity_share() const {
  double share = 1;
  for (const One& one : all_) {
    share *= one.changes.capacity_share;
  }
  return share;
}

void Observers::after_step(StepReport& report) {
  for (One& one : all_) {
    std::map<std::string, double> metrics;
    one.observer->after_step(report, one.changes, metrics);
    require(std::isfinite(one.changes.lr_factor) && one.changes.lr_factor > 0,
            "hook '{}' sets lr_factor to {} after step {}: it must be a number above 0", one.name,
            one.changes.lr_factor, report.step + 1);
    const double share = one.changes.capacity_share;
    require(
        share > 0 && share <= 1,
        "hook '{}' sets capacity_share to {} after step {}: it must be above 0 and at most 1 (memory is planned for "
        "moe.capacity_factor; raise that, and lower the share)",
        one.name, share, report.step + 1);
    require(share == 1 || has_capacity_,
            "hook '{}' sets capacity_share to {} after step {}, but this run has no capacity: set moe.capacity_factor "
            "above 0 (1.25, say), or leave the share at 1",
            one.name, share, report.step + 1);
    for (const auto& [key, value] : metrics) {
      require(!key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; }),
              "hook '{}' gives a metric whose name is not printable ASCII without blanks, after step {}", one.name,
              report.step + 1);
      report.metrics[one.name + "." + key] = value;
    }
  }
}

std::map<std::string, std::string> Observers::state() const {
  std::map<std::string, std::string> state;
  for (const One& one : all_) {
    state[prefix + one.name + "/lr_factor"] = fmt::format("{}", one.changes.lr_factor);
    state[prefix + one.name + "/capacity_share"] = fmt::format("{}", one.changes.capacity_share);
    for (const auto& [key, value] : one.observer->numbers()) {
      state[prefix + one.name + "/number/" + key] = fmt::format("{}", value);
    }
  }
  return state;
}

std::vector<std::string> Observers::restore(const std::map<std::string, std::string>& state) {
  std::set<std::string> unknown;
  for (auto it = state.lower_bound(prefix); it != state.end() && it->first.starts_with(prefix); ++it) {
    const std::string name = it->first.substr(prefix.size(), it->first.find('/', prefix.size()) - prefix.size());
    if (std::none_of(all_.begin(), all_.end(), [&](const One& one) { return one.name == name; })) {
      unknown.insert(name);
    }
  }
  for (One& one : all_) {
    const std::string own = prefix + one.name + "/", numbers = own + "number/";
    const auto factor = state.find(own + "lr_factor");
    if (factor == state.end()) {
      continue;
    }
    one.changes.lr_factor = number_of(factor->first, factor->second);
    if (const auto share = state.find(own + "capacity_share"); share != state.end()) {
      const double value = number_of(share->first, share->second);
      require(value > 0 && value <= 1, "the checkpoint's '{}' is {}: it must be above 0 and at most 1", share->first,
              value);
      one.changes.capacity_share = has_capacity_ ? value : 1;
    }
    std::map<std::string, double> remembered;
    for (auto it = state.lower_bound(numbers); it != state.end() && it->first.starts_with(numbers); ++it) {
      remembered[it->first.substr(numbers.size())] = number_of(it->first, it->second);
    }
    one.observer->restore(remembered);
  }
  return {unknown.begin(), unknown.end()};
}

}  // namespace orthant
