#include "apps/pretrained/receipt.h"

#include <orthant/error.h>

#include "core/base/json.h"
#include "core/base/mapped_file.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {
namespace {

constexpr const char* receipt_name = "receipt.json";

bool is_converted(const FileType& type) {
  return type == FileType::f16() || type == DType::f8_e4m3 || type == DType::u8;
}

std::string name_of_converted(const FileType& type) {
  return type == DType::u8 ? "MXFP4" : type.name();
}

}  // namespace

std::vector<std::string> travelling_files() {
  std::vector<std::string> files = published_tokenizer_files();
  files.insert(files.begin(), {"config.json", "generation_config.json"});
  return files;
}

std::vector<std::string> Receipt::converted() const {
  std::set<std::string> names;
  for (const auto& [tensor, type] : dtypes) {
    if (is_converted(type)) {
      names.insert(name_of_converted(type));
    }
  }
  return {names.begin(), names.end()};
}

std::string Receipt::to_json() const {
  nlohmann::ordered_json json = {
      {"format", 1}, {"model_type", model_type}, {"experts", experts == ExpertForm::each ? "each" : "packed"}};
  const auto listed = [](const std::vector<SourceWeights::File>& of) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const SourceWeights::File& file : of) {
      list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
    }
    return list;
  };
  json["files"] = listed(files);
  if (!adapter.empty()) {
    json["adapter"] = listed(adapter);
  }
  json["left_out"] = left_out;
  json["repeated"] = repeated;
  if (!passed_over.empty()) {
    json["passed_over"] = passed_over;
  }
  for (const auto& [name, dtype] : dtypes) {
    json["dtypes"][name] = dtype.name();
  }
  if (!converted().empty()) {
    json["converted_to_f32"] = converted();
    json["scales"] = scales;
  }
  if (check.has_value()) {
    json["check"] = {{"by", check->by},
                     {"tokens", check->tokens},
                     {"largest_logit", check->largest},
                     {"difference_over_largest", check->difference}};
  }
  for (const TensorPlace& place : places) {
    json["tensors"][place.ours] = {{"shape", place.shape}, {"from", place.theirs}, {"begin", place.begin}};
    if (!place.in_order()) {
      json["tensors"][place.ours]["steps"] = {place.row_step, place.column_step};
    }
  }
  return json.dump(1) + "\n";
}

std::optional<Origin> origin_of(const std::filesystem::path& run) {
  const std::filesystem::path folder = run / pretrained_folder, file = folder / receipt_name;
  if (!std::filesystem::exists(file)) {
    return {};
  }
  const std::string where = fmt::format("'{}'", file.string());
  const MappedFile text(file);
  const Json json = parse_json(text.bytes(), where);
  Origin origin{.model_type = text_at(json, "model_type", where),
                .experts = text_at(json, "experts", where) == "packed" ? ExpertForm::packed : ExpertForm::each,
                .dtypes = {},
                .converted = {},
                .folder = folder};
  for (const auto& [name, dtype] : member(json, "dtypes", where).items()) {
    const std::optional<FileType> type = dtype.is_string() ? file_type(dtype.get<std::string>()) : std::nullopt;
    const bool converted = type.has_value() && is_converted(*type);
    require(converted || type == DType::f32 || type == DType::bf16,
            "{}: '{}' has the type {}, F32, BF16, F16, F8_E4M3 or U8 was expected", where, name, dtype.dump());
    origin.dtypes[name] = type == DType::bf16 ? DType::bf16 : DType::f32;
    if (converted) {
      origin.converted.insert(name_of_converted(*type));
    }
  }
  if (const auto passed = json.find("passed_over"); passed != json.end() && passed->is_object()) {
    for (const auto& [key, value] : passed->items()) {
      origin.passed_over.push_back(key);
    }
  }
  return origin;
}

}  // namespace orthant
