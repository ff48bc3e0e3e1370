#include "apps/report/loss_unit.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <cstdint>
#include <optional>

#include "core/run/run_tokenizer.h"

namespace orthant {
namespace {

std::optional<std::uint64_t> kept_tokenizer(const std::filesystem::path& run) {
  try {
    return run.empty() ? std::nullopt : tokenizer_hash_in(run / tokenizer_folder);
  } catch (const Error&) {  // it cannot be read: what is compared are the losses
    return std::nullopt;
  }
}

}  // namespace

LossUnit loss_unit(const LossSettings& of, const std::filesystem::path& run) {
  const std::string& source = of.source;
  const bool implied = of.objective.empty(), of_tokens = of.objective == "cross_entropy" || of.objective == "distil";
  if (!implied && !of_tokens && of.objective != "pairs") {
    return {fmt::format("of objective \"{}\"", of.objective), of.objective};
  }
  if (implied ? source == "pairs" : !of_tokens) {
    return {"nats per pair", "pairs"};
  }
  if (const std::optional<std::uint64_t> hash = kept_tokenizer(run)) {
    return {"nats per token", fmt::format("tokenizer {:016x}", *hash)};
  }
  if (source.empty()) {
    return {};
  }
  if (source == "synthetic") {
    return {"nats per token", "synthetic"};
  }
  const bool bytes = of.tokenizer == "bytes" && (source == "text" || source == "chat");
  return bytes ? LossUnit{"nats per byte", "bytes"} : LossUnit{"nats per token", ""};
}

bool comparable(const LossUnit& a, const LossUnit& b) {
  const bool known = !a.name.empty() && !b.name.empty();
  return !known || (a.tokens.empty() || b.tokens.empty() ? a.name == b.name : a.tokens == b.tokens);
}

std::string long_name(const LossUnit& unit) {
  const bool said = unit.tokens.empty() || unit.name != "nats per token";
  return said ? unit.name : fmt::format("{} ({})", unit.name, unit.tokens);
}

}  // namespace orthant
