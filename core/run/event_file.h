// TensorBoard's event files: records with lengths and checksums (TFRecord) of protocol buffers (tensorflow.Event), of
// which a few fields are needed. Written by hand, so that a run needs neither library. Sources: TensorFlow,
// lib/io/record_writer.h and core/util/event.proto; the checksum is CRC-32C (RFC 3720, appendix B.4).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

std::uint32_t crc32c(std::string_view bytes);

using Scalars = std::vector<std::pair<std::string, double>>;  // tag and value

// Events; wall_time: seconds since 1970.
std::string version_event(double wall_time);  // the first one of a file
// What earlier files of the folder say of `step` and later ones no longer holds.
std::string restart_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars);

// An event as it stands in a file.
std::string as_record(std::string_view event);

}  // namespace orthant
