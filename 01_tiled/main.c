/* 01_tiled - the two products go through tiles in shared memory; S and P are still stored. */
#include "../common/stage.h"

extern Launcher tiled_fma, tiled_mma;
extern Planner tiled_plan;
extern Predictor tiled_fma_traffic, tiled_mma_traffic;

const Stage stage = {
    .name = "01_tiled",
    .idea = "tiles through shared memory: an input loaded once is used 64 times",
    .kind = FORWARD,
    .variants = {
        {.name = "fma", .idea = "tile products on the CUDA cores", .launch = tiled_fma, .plan = tiled_plan,
         .predict = tiled_fma_traffic, .dtypes = FP16 | BF16 | FP32},
        {.name = "mma", .idea = "tile products on the tensor cores", .launch = tiled_mma, .plan = tiled_plan,
         .predict = tiled_mma_traffic, .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
