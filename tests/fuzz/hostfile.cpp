// A hostfile, read for its hosts and for the command that starts ranks on them.
#include "parallel/launch/hostfile.h"

#include <orthant/error.h>

#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int run(const std::uint8_t* data, std::size_t size) {
  const ScratchFile file(data, size);
  try {
    mpirun_command(file.path(), 4, {"A=b"}, {"orthant"});
  } catch (const ConfigError&) {
  }
  return 0;
}

std::vector<std::string> seeds() {
  return {"# ours\nnode1 slots=4\n\n  node2  # one slot\n", "a slots=1594791000\nb slots=582810426\n", "a\na\n",
          "a slots=2 b"};
}

}  // namespace

const Target hostfile = {"hostfile", run, seeds};

}  // namespace orthant::fuzz
