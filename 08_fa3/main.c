/* 08_fa3 - FlashAttention-3: Hopper's copies and products run by themselves, and warps have roles. */
#include "../common/stage.h"

extern Launcher fa3_wgmma, fa3_specialised, fa3_overlapped;
extern Planner fa3_overlapped_plan;
extern Predictor fa3_wgmma_traffic, fa3_specialised_traffic, fa3_overlapped_traffic;

const Stage stage = {
    .name = "08_fa3",
    .idea = "asynchrony: copies and products that run in the background, warps with roles",
    .kind = FORWARD,
    .variants = {
        {.name = "wgmma", .idea = "FlashAttention-2 with TMA and wgmma, nothing overlapped", .launch = fa3_wgmma,
         .predict = fa3_wgmma_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA},
        {.name = "specialised", .idea = "a producer warp loads ahead into a ring, two warpgroups compute",
         .launch = fa3_specialised, .predict = fa3_specialised_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA},
        {.name = "overlapped", .idea = "products overlap the softmax, and warpgroups take turns; tuned",
         .launch = fa3_overlapped, .plan = fa3_overlapped_plan, .predict = fa3_overlapped_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
