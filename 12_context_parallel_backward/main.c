/* 12_context_parallel_backward - the gradients of one sequence over several GPUs. */
#include "parts.h"

extern Launcher fa2_tuned, fa3_overlapped, context_backward_alone, context_backward,
    context_backward_scatter, context_backward_collect;
extern Planner fa3_overlapped_plan, fa3_backward_overlapped_plan, context_backward_plan;
extern Predictor fa2_tuned_traffic, fa3_overlapped_traffic, context_backward_alone_traffic, context_backward_traffic;
extern const Variant naive_gradients;

static const Variant forward = {.name = "08_fa3/overlapped", .idea = "the forward pass: O and LSE",
                                .launch = fa3_overlapped, .plan = fa3_overlapped_plan,
                                .predict = fa3_overlapped_traffic, .dtypes = FP16 | BF16,
                                .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA};
static const Variant other_forward = {.name = "04_fa2/tuned", .idea = "the forward pass: O and LSE",
                                      .launch = fa2_tuned, .predict = fa2_tuned_traffic,
                                      .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES};

/* K and V one way, parts of dK and dV in fp32 the other. */
static double both_ways(const Problem *p, const int *key_lengths, int from, int to) {
    const double parts =
        from != to && has_part(p, key_lengths, to, from) ? 2.0 * (double)sum_floats(p) * sizeof(float) : 0;
    return link_bytes(p, key_lengths, from, to) + parts;
}

#define TAKES .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES, .unordered = 1

const Stage stage = {
    .name = "12_context_parallel_backward",
    .idea = "the gradients of one sequence over several GPUs: dQ stays, dK and dV travel",
    .kind = BACKWARD,
    .forward = &forward,
    .forward_otherwise = &other_forward,
    .reference = &naive_gradients,
    .defaults = {{0}, {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 512, .head_dim = 64}},
    .settings = {DEVICE_SETTINGS},
    .variants = {
        {.name = "alone", .idea = "one device has everything; the other is compared with it", TAKES,
         .launch = context_backward_alone, .plan = fa3_backward_overlapped_plan,
         .predict = context_backward_alone_traffic},
        {.name = "rounds", .idea = "a shard of keys per round; its owner adds up dK and dV in fp32", TAKES,
         .launch = context_backward, .plan = context_backward_plan, .predict = context_backward_traffic,
         .devices = devices_of, .scatter = context_backward_scatter, .collect = context_backward_collect,
         .link_bytes = both_ways, .pairs = device_pairs},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
