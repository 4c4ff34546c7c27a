/* 04_fa2 - FlashAttention-2 in plain CUDA; then its changes against FlashAttention-1, one per variant; then what makes
 * it fast. */
#include "../common/traffic.h"

extern Launcher fa2_fma_forward, fa2_epilogue, fa2_parallel, fa2_loop_swap, fa2_split_q, fa2_tall, fa2_tuned;
extern Predictor fa2_fma_traffic, fa2_epilogue_traffic, fa2_parallel_traffic, fa2_loop_swap_traffic,
    fa2_split_q_traffic, fa2_tall_traffic, fa2_tuned_traffic;

const Stage stage = {
    .name = "04_fa2",
    .idea = "FlashAttention-2: divide once, queries outer, warps own rows",
    .kind = FORWARD,
    .variants = {
        {.name = "fma", .idea = "queries outer, keys inner; O in registers, divided once; plain CUDA",
         .launch = fa2_fma_forward, .predict = fa2_fma_traffic, .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}},
        {.name = "epilogue", .idea = "O is divided by l once, in the last step", .launch = fa2_epilogue,
         .plan = keys_outer_workspace, .predict = fa2_epilogue_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "parallel", .idea = "a block for each query tile, so that a head has many", .launch = fa2_parallel,
         .plan = keys_outer_workspace, .predict = fa2_parallel_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "loop_swap", .idea = "queries outer, keys inner: O stays in registers", .launch = fa2_loop_swap,
         .predict = fa2_loop_swap_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "split_q", .idea = "warps own query rows and exchange nothing", .launch = fa2_split_q,
         .predict = fa2_split_q_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "tall", .idea = "a warp owns 32 rows: each piece of K and V that it reads is used twice",
         .launch = fa2_tall, .predict = fa2_tall_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "tuned", .idea = "tall made fast: double buffering, lazy rescaling, blocks in a better order",
         .launch = fa2_tuned, .predict = fa2_tuned_traffic,
         .dtypes = FP16 | BF16, .head_dims = {32, 64, 96, 128, 256}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
