/* 02_online_softmax - a row's maximum and sum are found tile by tile, so S and P are never stored. */
#include "../common/stage.h"

extern Launcher online_forward;
extern Predictor online_traffic;

const Stage stage = {
    .name = "02_online_softmax",
    .idea = "row maximum and sum tile by tile: S is never stored, but computed twice",
    .variants = {
        {.name = "online", .idea = "one pass over the keys for LSE, a second one for O", .launch = online_forward,
         .predict = online_traffic, .dtypes = FP16 | BF16, .head_dims = {64, 128}, .min_bf16_capability = 80},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
