/* 12_context_parallel - one sequence over several GPUs. */
#include "../common/host/text.h"
#include "../common/traffic.h"
#include "shards.h"

#include <stdio.h>

extern Launcher context_alone, context_gather, context_gather_scatter, context_gather_collect, context_rounds,
    context_rounds_scatter, context_rounds_collect;
extern Predictor context_alone_traffic, context_gather_traffic, context_rounds_traffic;
extern Planner fa3_overlapped_plan, context_gather_plan, context_rounds_plan;

static const char *refuses(const Problem *p) {
    static char reason[96];
    snprintf(reason, sizeof reason, "cannot have --devices %d: there %s %d", devices_of(p), device_peers() == 1 ? "is" : "are", device_peers());
    return devices_of(p) > device_peers() ? reason : NULL;
}

/* Pairs of a chunk's queries and the keys that they see. */
static double chunk_pairs(const Problem *p, const int *key_lengths, int chunk) {
    Problem one = *p;
    double pairs = 0;
    one.batch = 1, one.seqlen_q = queries_of(p, chunk).count;
    for (int b = 0; b < p->batch; b++)
        pairs += visible_pairs(&one, (int[]){shard_keys_seen(p, key_length(p, key_lengths, b), WHOLE, chunk)});
    return pairs;
}

/* Below the table: what each device pulled in the last run, by formula and as the copies were counted, how long it computed, and
 * the efficiency T1 / (G TG). The CPU device's devices take turns: there the busiest one's time stands for TG. */
static void explain(const Problem *p, const int *key_lengths, const Variant *v, double ms) {
    static double alone_ms; /* T1 */
    const int devices = devices_of(p);
    double busiest = 0;
    if (!v->devices) {
        alone_ms = ms;
        return;
    }
    for (int r = 0; r < devices; r++) {
        double predicted = 0, counted = 0, busy = 0, pairs = 0;
        Cell bytes;
        print_text("device %d   %s: pulls", r, v->name);
        for (int from = 0; from < devices; from++) {
            predicted += link_bytes(p, key_lengths, from, r);
            counted += from == r ? 0 : device_link_bytes(from, r);
            print_bytes(bytes, link_bytes(p, key_lengths, from, r));
            if (from != r)
                print_text(" %s from %d,", bytes, from);
        }
        for (int half = 0; half < HALVES; half++)
            pairs += chunk_pairs(p, key_lengths, chunk_of(p, r, half));
        for (int round = 0; round < (v->plan == context_rounds_plan ? devices : 1); round++)
            busy += device_between_ms(r, BEGIN + round, END + round);
        busiest = busy > busiest ? busy : busiest;
        print_bytes(bytes, counted);
        print_text(" %s counted%s; computes %.1f%% of all pairs in %.3g ms\n", bytes,
                   counted == predicted ? "" : ", WHICH IS NOT WHAT THE FORMULA SAYS", 100 * pairs / visible_pairs(p, key_lengths), busy);
    }
    const double together = device_properties()->is_cpu ? busiest : ms;
    if (alone_ms > 0)
        print_text("efficiency %s: %.0f%% of %d times one device, whose %.3g ms became %.3g\n", v->name,
                   100 * alone_ms / (devices * together), devices, alone_ms, together);
}

#define TAKES .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES, .refuses = refuses

const Stage stage = {
    .name = "12_context_parallel",
    .idea = "one sequence over several GPUs, merged by LSE",
    .kind = FORWARD,
    .explain = explain,
    .settings = {
        [DEVICES] = {.name = "devices", .choices = "all", .max = MAX_DEVICES,
                     .help = "GPUs that share the sequence; all: those of this computer, 4 on the CPU device"},
        [CHUNKS] = {.name = "chunks", .choices = "zigzag|contiguous",
                    .help = "which two of 2G chunks device r of G has: r and 2G-1-r; or 2r and 2r+1"},
    },
    .variants = {
        {.name = "alone", .idea = "one device has it all: what the others are compared with", TAKES, .launch = context_alone,
         .plan = fa3_overlapped_plan, .predict = context_alone_traffic},
        {.name = "gather", .idea = "each device copies all keys that it needs, then computes", TAKES, .launch = context_gather,
         .plan = context_gather_plan, .predict = context_gather_traffic, .devices = devices_of, .scatter = context_gather_scatter, .collect = context_gather_collect},
        {.name = "rounds", .idea = "a device computes with one shard of keys while it copies the next", TAKES,
         .launch = context_rounds, .plan = context_rounds_plan, .predict = context_rounds_traffic, .devices = devices_of, .scatter = context_rounds_scatter,
         .collect = context_rounds_collect},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
