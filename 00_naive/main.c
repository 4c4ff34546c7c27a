/* 00_naive - the definition of attention. The harness runs naive_variant in every stage, so this table is empty. */
#include "../common/stage.h"

const Stage stage = {
    .name = "00_naive",
    .idea = "attention as its definition says: three plain kernels, S and P in device memory",
    .kind = FORWARD,
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
