/* 05_fa2_backward - the gradients, with P computed again from the logsumexp that the forward pass kept. */
#include "../common/stage.h"

extern Launcher fa2_tuned, fa2_fma_forward, backward_fma, backward_two_pass, backward_atomic;
extern Planner backward_fma_plan, backward_two_pass_plan, backward_atomic_plan;
extern Predictor fa2_tuned_traffic, fa2_fma_traffic, backward_fma_traffic, backward_two_pass_traffic,
    backward_atomic_traffic;
extern const Variant naive_gradients;

static const Variant forward = {
    .name = "04_fa2/tuned",
    .idea = "the forward pass: O and LSE",
    .launch = fa2_tuned,
    .predict = fa2_tuned_traffic,
    .dtypes = FP16 | BF16,
    .head_dims = {64, 128},
    .uses = TENSOR_CORES,
};

static const Variant plain_forward = {
    .name = "04_fa2/fma",
    .idea = "the forward pass: O and LSE",
    .launch = fa2_fma_forward,
    .predict = fa2_fma_traffic,
    .dtypes = FP16 | BF16 | FP32,
    .head_dims = {64, 128},
};

const Stage stage = {
    .name = "05_fa2_backward",
    .idea = "gradients: P recomputed from the logsumexp, tile by tile",
    .kind = BACKWARD,
    .forward = &forward,
    .forward_otherwise = &plain_forward,
    .reference = &naive_gradients,
    .defaults = {{0}, /* the second has four key tiles: dQ depends on their order */
                 {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 512, .head_dim = 64}},
    .variants =
        {
            {.name = "fma",
             .idea = "keys outer, queries inner; dQ by atomic additions; plain CUDA",
             .launch = backward_fma,
             .plan = backward_fma_plan,
             .predict = backward_fma_traffic,
             .dtypes = FP16 | BF16 | FP32,
             .head_dims = {64, 128},
             .unordered = 1},
            {.name = "two_pass",
             .idea = "dK and dV by one kernel, dQ by another: 7 products, the same bits every time",
             .launch = backward_two_pass,
             .plan = backward_two_pass_plan,
             .predict = backward_two_pass_traffic,
             .dtypes = FP16 | BF16,
             .head_dims = {64, 128},
             .uses = TENSOR_CORES},
            {.name = "atomic",
             .idea = "all three in one pass, dQ by atomic additions: 5 products; tuned",
             .launch = backward_atomic,
             .plan = backward_atomic_plan,
             .predict = backward_atomic_traffic,
             .dtypes = FP16 | BF16,
             .head_dims = {64, 128},
             .uses = TENSOR_CORES,
             .unordered = 1},
        },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
