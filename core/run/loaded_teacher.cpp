#include "core/run/loaded_teacher.h"

#include "core/checkpoint/checkpoint.h"
#include "core/run/saving.h"
#include "core/run/starting_weights.h"

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

}  // namespace orthant
