#include "core/run/event_file.h"

#include <array>
#include <bit>

namespace orthant {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    }
    table[byte] = crc;
  }
  return table;
}

// A checksum of data that holds checksums is less good: TFRecord turns and shifts them.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

template <class Number>
void append_little_endian(std::string& to, Number value) {
  for (std::size_t byte = 0; byte < sizeof(Number); ++byte) {
    to += static_cast<char>((value >> (8 * byte)) & 0xff);
  }
}

// --- protocol buffers: a field is a key (its number and wire type) and a value
enum class Wire : std::uint64_t { varint = 0, eight_bytes = 1, length = 2, four_bytes = 5 };

void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    to += static_cast<char>((value & 0x7f) | 0x80);
  }
  to += static_cast<char>(value);
}

void append_key(std::string& to, std::uint64_t field, Wire wire) {
  append_varint(to, field << 3 | static_cast<std::uint64_t>(wire));
}

void append_number(std::string& to, std::uint64_t field, std::int64_t value) {
  append_key(to, field, Wire::varint);
  append_varint(to, static_cast<std::uint64_t>(value));
}

void append_double(std::string& to, std::uint64_t field, double value) {
  append_key(to, field, Wire::eight_bytes);
  append_little_endian(to, std::bit_cast<std::uint64_t>(value));
}

void append_float(std::string& to, std::uint64_t field, float value) {
  append_key(to, field, Wire::four_bytes);
  append_little_endian(to, std::bit_cast<std::uint32_t>(value));
}

void append_bytes(std::string& to, std::uint64_t field, std::string_view bytes) {
  append_key(to, field, Wire::length);
  append_varint(to, bytes.size());
  to += bytes;
}

// Fields of tensorflow.Event.
constexpr std::uint64_t event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
                        event_session_log = 7;

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

std::string version_event(double wall_time) {
  std::string event;
  append_double(event, event_wall_time, wall_time);
  append_bytes(event, event_file_version, "brain.Event:2");
  return event;
}

std::string restart_event(double wall_time, std::int64_t step) {
  constexpr std::uint64_t log_status = 1;
  constexpr std::int64_t start = 1;
  std::string log, event;
  append_number(log, log_status, start);
  append_double(event, event_wall_time, wall_time);
  append_number(event, event_step, step);
  append_bytes(event, event_session_log, log);
  return event;
}

std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars) {
  constexpr std::uint64_t summary_value = 1, value_tag = 1, value_simple = 2;
  std::string summary, event;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, value_tag, tag);
    append_float(value, value_simple, static_cast<float>(number));
    append_bytes(summary, summary_value, value);
  }
  append_double(event, event_wall_time, wall_time);
  append_number(event, event_step, step);
  append_bytes(event, event_summary, summary);
  return event;
}

std::string as_record(std::string_view event) {
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(event.size()));
  std::string record = length;
  append_little_endian(record, masked(crc32c(length)));
  record += event;
  append_little_endian(record, masked(crc32c(event)));
  return record;
}

}  // namespace orthant
