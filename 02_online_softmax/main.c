/* 02_online_softmax - a row's maximum and sum are found tile by tile, so S and P are never stored. */
#include "../common/stage.h"

extern Launcher online_fma_forward, online_forward;
extern Predictor online_fma_traffic, online_traffic;

const Stage stage = {
    .name = "02_online_softmax",
    .idea = "row maximum and sum tile by tile: S is never stored, but computed twice",
    .kind = FORWARD,
    .variants = {
        {.name = "fma", .idea = "one pass over the keys for LSE, a second one for O; plain CUDA",
         .launch = online_fma_forward, .predict = online_fma_traffic,
         .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}},
        {.name = "online", .idea = "two passes over the keys on tensor cores, a kernel each", .launch = online_forward,
         .predict = online_traffic, .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
