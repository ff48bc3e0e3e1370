#include "core/run/loaded_teacher.h"

#include <orthant/error.h>

#include "core/base/output.h"
#include "core/checkpoint/checkpoint.h"
#include "core/run/saving.h"
#include "core/run/starting_weights.h"
#include "parallel/host_collectives.h"

namespace orthant {

std::unique_ptr<Teacher> loaded_teacher(const Config& student, Communicator& communicator, Device& device,
                                        Stream& stream) {
  std::unique_ptr<Teacher> teacher = make_teacher(student, communicator.rank(), communicator, device, stream);
  if (teacher != nullptr) {
    const CheckpointReader reader(teacher_checkpoint(student.settings));
    load_weights(reader, teacher->plan(), teacher->parameters(), stream);
  }
  return teacher;
}

std::string load_teacher(Teacher& teacher, const Settings& student, const std::map<std::string, std::string>& resumed,
                         Group& world, Stream& stream) {
  const bool first = world.rank() == 0;
  const ReferenceModel named = teacher_of(student);
  // Rank 0 decides: a teacher that is still training may save another one while the ranks look.
  const std::string newest = first ? teacher_checkpoint(student).string() : "";
  const CheckpointReader reader(gather_texts(newest, world, stream).front());
  const auto run = reader.state().find("run_id");
  const std::string found =
      fmt::format("step {} of run {}", reader.step(), run == reader.state().end() ? "?" : run->second);
  const auto before = resumed.find(teacher_state);
  if (!resumed.empty() && before == resumed.end()) {
    throw ConfigError(
        fmt::format("{}: this run had none until here: begin a new run with [train] from, or leave out "
                    "'{}'",
                    named.key, named.folder));
  }
  if (before != resumed.end() && before->second != found) {
    throw ConfigError(
        fmt::format("{}: '{}' is {}, this run has learned from {}: write {} = the folder of that checkpoint "
                    "(RUN/checkpoints/STEP), or begin a new run with [train] from",
                    named.key, first ? newest : named.folder, found, before->second, named.another));
  }
  load_weights(reader, teacher.plan(), teacher.parameters(), stream);
  if (first) {
    put("{} {} after step {}\n", named.measures ? "is compared with" : "learns from", newest, reader.step());
  }
  return found;
}

void require_no_teacher(const std::map<std::string, std::string>& resumed) {
  const auto before = resumed.find(teacher_state);
  if (before != resumed.end()) {
    throw ConfigError(fmt::format(
        "this run has learned from {}, as [distil] teacher or as the reference of pairs: name it, or begin a "
        "new run with [train] from",
        before->second));
  }
}

}  // namespace orthant
