/* 09_fa3_backward - the gradients at Hopper's speed: FlashAttention-3's backward pass. */
#include "../common/stage.h"

extern Launcher fa3_overlapped, fa3_backward_wgmma, fa3_backward_specialised, fa3_backward_overlapped,
    fa3_backward_ordered;
extern Planner fa3_overlapped_plan, fa3_backward_wgmma_plan, fa3_backward_specialised_plan,
    fa3_backward_overlapped_plan, fa3_backward_ordered_plan;
extern Predictor fa3_overlapped_traffic, fa3_backward_wgmma_traffic, fa3_backward_specialised_traffic,
    fa3_backward_overlapped_traffic, fa3_backward_ordered_traffic;
extern const Variant naive_gradients;

static const Variant forward = {
    .name = "08_fa3/overlapped",
    .idea = "the forward pass: O and LSE",
    .launch = fa3_overlapped,
    .plan = fa3_overlapped_plan,
    .predict = fa3_overlapped_traffic,
    .dtypes = FP16 | BF16,
    .head_dims = {64, 128},
    .uses = TENSOR_CORES | WGMMA,
};

const Stage stage = {
    .name = "09_fa3_backward",
    .idea = "asynchrony in the backward: five products by wgmma, warps with roles, and persistent blocks",
    .kind = BACKWARD,
    .forward = &forward,
    .reference = &naive_gradients,
    .defaults = {{0}, {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 512, .head_dim = 64}}, /* several key tiles */
    .variants = {
        {.name = "wgmma", .idea = "05's atomic with TMA and wgmma, nothing overlapped", .launch = fa3_backward_wgmma,
         .plan = fa3_backward_wgmma_plan, .predict = fa3_backward_wgmma_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA, .unordered = 1},
        {.name = "specialised", .idea = "a producer and two consumers; dQ a step late, added by bulk copies",
         .launch = fa3_backward_specialised, .plan = fa3_backward_specialised_plan,
         .predict = fa3_backward_specialised_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA, .unordered = 1},
        {.name = "overlapped", .idea = "persistent blocks, dQ added from registers, dK runs into the next step; tuned",
         .launch = fa3_backward_overlapped, .plan = fa3_backward_overlapped_plan,
         .predict = fa3_backward_overlapped_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA, .unordered = 1},
        {.name = "ordered", .idea = "overlapped, dQ added in a fixed order: equal bits in every run",
         .launch = fa3_backward_ordered, .plan = fa3_backward_ordered_plan, .predict = fa3_backward_ordered_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
