/* 03_fa1 - FlashAttention-1 as published: one pass; O lives in device memory and is corrected at every key tile. */
#include "../common/traffic.h"

extern Launcher fa1_fma_forward, fa1_forward;
extern Predictor fa1_fma_traffic, fa1_traffic;

const Stage stage = {
    .name = "03_fa1",
    .idea = "one pass: O, l and m are corrected at every key tile, so S is computed once",
    .kind = FORWARD,
    .variants = {
        {.name = "fma", .idea = "keys outer, queries inner; O, l and m in device memory; plain CUDA",
         .launch = fa1_fma_forward, .plan = keys_outer_workspace, .predict = fa1_fma_traffic,
         .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}},
        {.name = "fa1", .idea = "keys outer, queries inner, on tensor cores; keys split over the warps",
         .launch = fa1_forward, .plan = keys_outer_workspace, .predict = fa1_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
