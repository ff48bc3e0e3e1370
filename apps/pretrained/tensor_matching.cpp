#include "apps/pretrained/tensor_matching.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/arch/trained.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// At most so many of a kind are named in a refusal.
constexpr std::size_t most_named = 8;

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), most_named);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown));
  const std::string more = names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

using Copies = std::vector<std::pair<std::string, std::string>>;

// What of the source is which of ours, each element once.
class Matching {
 public:
  Matching(const fs::path& source, const SourceWeights& weights, const SourceFloats& floats,
           const std::vector<std::string>& left_out)
      : source_(source), weights_(weights), floats_(floats), left_out_(left_out) {}

  Receipt match(const Family& family, const Settings& settings) {
    receipt_.model_type = family.model_type;
    const std::string packed = packed_name(family, settings);
    receipt_.experts = weights_.find(packed) != nullptr                                  ? ExpertForm::packed
                       : !packed.empty() && weights_.find(packed + "_blocks") != nullptr ? ExpertForm::mxfp4
                                                                                         : ExpertForm::each;
    receipt_.places = tensor_places(family, settings, receipt_.experts);
    of_blocks_ = !family.mtp.empty();
    for (const auto& [of, copy] : mtp_copies(family, settings)) {
      copies_[copy] = of;
    }
    for (const auto& [of, copy] : family.copies ? family.copies(settings) : Copies()) {
      copies_[copy] = of;
    }
    for (const TensorPlace& place : receipt_.places) {
      take(place);
    }
    rest(settings);
    refuse();
    return std::move(receipt_);
  }

 private:
  void take(const TensorPlace& place) {
    const FileTensor* tensor = weights_.find(place.theirs);
    if (tensor == nullptr || matches_any(left_out_, place.theirs)) {
      missing_.insert(place.theirs);
    } else if (tensor->sizes != place.sizes) {
      misfits_.insert(fmt::format("{} is [{}], config.json makes it [{}]", place.theirs, fmt::join(tensor->sizes, ", "),
                                  fmt::join(place.sizes, ", ")));
    } else if (const std::string why = floats_.unreadable(*tensor); !why.empty()) {
      misfits_.insert(why);
    } else if (tensor->dtype == DType::f8_e4m3 && !place.in_order()) {
      misfits_.insert(fmt::format("{} is F8_E4M3 and turned, gate and up in turns: which scale is whose is not known",
                                  place.theirs));
    } else {
      receipt_.dtypes.insert_or_assign(place.theirs, tensor->dtype);
      used_[place.theirs] += place.elements();
    }
    if (const std::string scales = tensor != nullptr ? floats_.scales_of(*tensor) : "";
        weights_.find(scales) != nullptr) {
      receipt_.scales[place.theirs] = scales;
      used_[scales] = elements_of(*weights_.find(scales));
    }
    if (const std::string rounding = tensor != nullptr ? floats_.activation_scale_of(*tensor) : "";
        weights_.find(rounding) != nullptr && used_.emplace(rounding, elements_of(*weights_.find(rounding))).second) {
      receipt_.left_out.push_back(rounding);
    }
  }

  // What is left of the source.
  void rest(const Settings& settings) {
    for (const std::string& name : weights_.names()) {
      const auto used = used_.find(name);
      if (used != used_.end()) {
        const std::int64_t elements = elements_of(*weights_.find(name));
        if (used->second != elements) {
          misfits_.insert(fmt::format("{} has {} elements, {} of them have a place", name, elements, used->second));
        }
      } else if (matches_any(left_out_, name)) {
        receipt_.left_out.push_back(name);
      } else if (settings.model.tie_embeddings && name == "lm_head.weight" &&
                 repeats(name, "model.embed_tokens.weight")) {
        receipt_.repeated.push_back(name);
      } else if (const auto copy = copies_.find(name); copy != copies_.end()) {
        if (repeats(name, copy->second)) {
          receipt_.repeated.push_back(name);
        } else {
          misfits_.insert(fmt::format("{} is not {}: {}", name, copy->second,
                                      of_blocks_ ? "the blocks of multi-token prediction have no other here"
                                                 : "this model has one tensor for both"));
        }
      } else if (std::none_of(receipt_.places.begin(), receipt_.places.end(),
                              [&](const TensorPlace& place) { return place.theirs == name; })) {
        unused_.push_back(name);
      }
    }
    for (const std::string& pattern : left_out_) {
      if (std::none_of(receipt_.left_out.begin(), receipt_.left_out.end(),
                       [&](const std::string& name) { return matches(pattern, name); })) {
        misfits_.insert(fmt::format("--leave-out {} matches no tensor that is not needed", pattern));
      }
    }
  }

  // U8: two of 4 bits each.
  static std::int64_t elements_of(const FileTensor& tensor) {
    return std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), std::int64_t{tensor.dtype == DType::u8 ? 2 : 1},
                           std::multiplies<>());
  }

  bool repeats(const std::string& name, const std::string& other) const {
    if (weights_.find(other) == nullptr) {
      return false;
    }
    const std::span<const std::byte> a = weights_.bytes(name), b = weights_.bytes(other);
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  void refuse() const {
    std::vector<std::string> lines(misfits_.begin(), misfits_.end());
    if (lines.size() > most_named) {
      lines.resize(most_named);
      lines.push_back(fmt::format("and {} more", misfits_.size() - most_named));
    }
    if (!missing_.empty()) {
      lines.push_back(fmt::format("not there, and the model needs {}: {}", missing_.size() == 1 ? "it" : "them",
                                  some_of({missing_.begin(), missing_.end()})));
    }
    if (!unused_.empty()) {
      lines.push_back(
          fmt::format("there, and the model of config.json has no place for {}: {} (--leave-out PATTERN, "
                      "where that is meant)",
                      unused_.size() == 1 ? "it" : "them", some_of(unused_)));
    }
    if (!lines.empty()) {
      throw ConfigError(fmt::format("the tensors of '{}' are not those of its config.json:\n  {}", source_.string(),
                                    fmt::join(lines, "\n  ")));
    }
  }

  const fs::path& source_;
  const SourceWeights& weights_;
  const SourceFloats& floats_;
  const std::vector<std::string>& left_out_;
  Receipt receipt_;
  std::map<std::string, std::int64_t> used_;   // elements
  std::map<std::string, std::string> copies_;  // of which tensor of theirs
  bool of_blocks_ = false;                     // that copies are of
  std::set<std::string> misfits_, missing_;
  std::vector<std::string> unused_;
};

}  // namespace

Receipt match_tensors(const fs::path& source, const Family& family, const Settings& settings,
                      const SourceWeights& weights, const SourceFloats& floats,
                      const std::vector<std::string>& left_out) {
  return Matching(source, weights, floats, left_out).match(family, settings);
}

}  // namespace orthant
