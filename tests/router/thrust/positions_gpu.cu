// The same test, with Thrust on the GPU.
#include "tests/router/thrust/positions_test.cpp"
