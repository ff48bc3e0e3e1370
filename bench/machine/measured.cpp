#include "bench/machine/measured.h"

#include <orthant/error.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace orthant::machine {
namespace {

void must_be_possible(const std::string& what, double value, double least, double most) {
  require(std::isfinite(value) && value > 0, "the measurement of {} is {:g}: no machine file is written", what, value);
  require(value >= least && value <= most,
          "the measurement of {} is {:g}, which no machine reaches ({:g} to {:g}): no machine file is written", what,
          value, least, most);
}

}  // namespace

void check(const Measured& measured) {
  constexpr double least_seconds = 1e-10, most_seconds = 1e3;
  require(measured.ranks > 0 && measured.cores > 0, "{} ranks on {} cores: both must be above 0", measured.ranks,
          measured.cores);
  must_be_possible("memory, bytes", measured.memory_bytes, 1e6, 1e16);
  require(!measured.products.empty(), "no product was measured: no machine file is written");
  for (const ProductTime& product : measured.products) {
    const std::string what =
        fmt::format("the {} product of {} rows, {} inner", product.half ? "bf16" : "f32", product.rows, product.inner);
    must_be_possible(what + ", s", product.seconds, least_seconds, most_seconds);
    must_be_possible(what + ", FLOP/s",
                     2.0 * static_cast<double>(product.rows) * static_cast<double>(product.inner) *
                         static_cast<double>(product.columns) / product.seconds,
                     1e5, 1e17);
  }
  require(!measured.memory.empty(), "no copy was measured: no machine file is written");
  for (const MemoryTime& one : measured.memory) {
    must_be_possible(one.name + ", s", one.seconds, least_seconds, most_seconds);
    must_be_possible(one.name + ", bytes/s", one.bytes / one.seconds, 1e5, 1e14);
  }
  must_be_possible("attention, FLOP/s", measured.attention_flops / measured.attention_seconds, 1e5, 1e17);
  require(measured.together.size() == static_cast<std::size_t>(measured.ranks),
          "{} ranks, and {} measurements of how they share cores", measured.ranks, measured.together.size());
  for (std::size_t k = 0; k < measured.together.size(); ++k) {
    must_be_possible(fmt::format("products of {} ranks at once, over one's", k + 1), measured.together[k], 0.01, 1e5);
  }
  require(measured.ranks == 1 || !measured.links.empty(), "{} ranks, and no link was measured", measured.ranks);
  for (const LinkTime& link : measured.links) {
    must_be_possible(fmt::format("{} of {:g} bytes, s", link.call, link.bytes), link.seconds, least_seconds,
                     most_seconds);
  }
  must_be_possible("an expert more in a product, s", measured.expert_seconds, least_seconds, 1);
  must_be_possible("an operation on a few numbers, s", measured.launch_seconds, least_seconds, 1);
  must_be_possible("a step of nearly no work, s", measured.step_seconds, 1e-7, most_seconds);
}

std::string to_json(const Measured& measured) {
  nlohmann::ordered_json json;
  json["device"] = measured.device;
  json["communicator"] = measured.communicator;
  json["processor"] = measured.processor;
  json["ranks"] = measured.ranks;
  json["cores"] = measured.cores;
  json["memory_bytes"] = measured.memory_bytes;
  json["products"] = nlohmann::ordered_json::array();
  for (const ProductTime& one : measured.products) {
    json["products"].push_back({{"half", one.half},
                                {"rows", one.rows},
                                {"inner", one.inner},
                                {"columns", one.columns},
                                {"seconds", one.seconds}});
  }
  json["memory"] = nlohmann::ordered_json::array();
  for (const MemoryTime& one : measured.memory) {
    json["memory"].push_back({{"name", one.name}, {"bytes", one.bytes}, {"seconds", one.seconds}});
  }
  json["attention_flops"] = measured.attention_flops;
  json["attention_seconds"] = measured.attention_seconds;
  json["together"] = measured.together;
  json["links"] = nlohmann::ordered_json::array();
  for (const LinkTime& one : measured.links) {
    json["links"].push_back({{"call", one.call}, {"bytes", one.bytes}, {"seconds", one.seconds}});
  }
  json["expert_seconds"] = measured.expert_seconds;
  json["launch_seconds"] = measured.launch_seconds;
  json["step_seconds"] = measured.step_seconds;
  return json.dump() + "\n";
}

Measured from_json(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    // A number that is not finite has become null.
    const auto number = [](const nlohmann::json& value) { return value.is_null() ? NAN : value.get<double>(); };
    Measured measured;
    measured.device = json.at("device");
    measured.communicator = json.at("communicator");
    measured.processor = json.at("processor");
    measured.ranks = json.at("ranks");
    measured.cores = json.at("cores");
    measured.memory_bytes = number(json.at("memory_bytes"));
    for (const auto& one : json.at("products")) {
      measured.products.push_back(
          {one.at("half"), one.at("rows"), one.at("inner"), one.at("columns"), number(one.at("seconds"))});
    }
    for (const auto& one : json.at("memory")) {
      measured.memory.push_back({one.at("name"), number(one.at("bytes")), number(one.at("seconds"))});
    }
    measured.attention_flops = number(json.at("attention_flops"));
    measured.attention_seconds = number(json.at("attention_seconds"));
    for (const auto& one : json.at("together")) {
      measured.together.push_back(number(one));
    }
    for (const auto& one : json.at("links")) {
      measured.links.push_back({one.at("call"), number(one.at("bytes")), number(one.at("seconds"))});
    }
    measured.expert_seconds = number(json.at("expert_seconds"));
    measured.launch_seconds = number(json.at("launch_seconds"));
    measured.step_seconds = number(json.at("step_seconds"));
    return measured;
  } catch (const nlohmann::json::exception& failure) {
    throw Error(fmt::format("what was measured cannot be read: {}", failure.what()));
  }
}

}  // namespace orthant::machine
