/* 12_context_parallel - one sequence over several GPUs. */
#include "shards.h"

extern Launcher context_alone, context_gather, context_gather_scatter, context_gather_collect, context_rounds,
    context_rounds_scatter, context_rounds_collect;
extern Predictor context_alone_traffic, context_gather_traffic, context_rounds_traffic;
extern Planner fa3_overlapped_plan, context_gather_plan, context_rounds_plan;

#define TAKES .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES

const Stage stage = {
    .name = "12_context_parallel",
    .idea = "one sequence over several GPUs, merged by LSE",
    .kind = FORWARD,
    .settings = {DEVICE_SETTINGS},
    .variants = {
        {.name = "alone", .idea = "one device has everything; the others are compared with it", TAKES,
         .launch = context_alone, .plan = fa3_overlapped_plan, .predict = context_alone_traffic},
        {.name = "gather", .idea = "each device copies all keys that it needs, then computes", TAKES,
         .launch = context_gather, .plan = context_gather_plan, .predict = context_gather_traffic,
         .devices = devices_of, .scatter = context_gather_scatter, .collect = context_gather_collect,
         .link_bytes = link_bytes, .pairs = device_pairs},
        {.name = "rounds", .idea = "a device computes with one shard of keys while it copies the next", TAKES,
         .launch = context_rounds, .plan = context_rounds_plan, .predict = context_rounds_traffic,
         .devices = devices_of, .scatter = context_rounds_scatter, .collect = context_rounds_collect,
         .link_bytes = link_bytes, .pairs = device_pairs},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
