#include "apps/orthant/orthant.h"

int main(int argc, char** argv) {
  return orthant::run_orthant(argc, argv);
}
