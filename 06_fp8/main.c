/* 06_fp8 - 8-bit floating point: a pre-pass that quantises, and attention on what it leaves. */
#include "fp8.h"

extern Launcher fp8_mma, fp8_wgmma, fp8_overlapped;
extern Planner fp8_overlapped_plan;
extern Predictor fp8_quantise_traffic, fp8_mma_traffic, fp8_wgmma_traffic, fp8_overlapped_traffic;

static const Preparation for_mma = {.name = "quantise", .launch = fp8_quantise, .predict = fp8_quantise_traffic,
                                    .values = fp8_mma_prepared_values},
                         for_wgmma = {.name = "quantise", .launch = fp8_quantise, .predict = fp8_quantise_traffic,
                                      .values = fp8_wgmma_prepared_values};

const Stage stage = {
    .name = "06_fp8",
    .idea = "8-bit floating point: half the bytes, twice the products",
    .kind = FORWARD,
    .settings = {
        [FORMAT] = {.name = "format", .choices = "e4m3|e5m2", .help = "of Q, K, V and P"},
        [SCALING] = {.name = "scaling", .choices = "tensor|block",
                     .help = "one scale per head, or one for each tile of 64 queries or 128 keys"},
        [HADAMARD] = {.name = "hadamard", .help = "rotate Q and K, so that no component stands out"},
        [SMOOTH_K] = {.name = "smooth-k", .help = "subtract the mean of the keys from each key"},
    },
    .variants = {
        {.name = "mma", .idea = "04_fa2/tuned with 8-bit operands, on every chip", .launch = fp8_mma, .plan = fp8_plan,
         .predict = fp8_mma_traffic, .dtypes = FP16 | BF16, .head_dims = {64, 128},
         .uses = EIGHT_BITS, .preparation = &for_mma},
        {.name = "wgmma", .idea = "Hopper multiplies straight from shared memory", .launch = fp8_wgmma,
         .plan = fp8_plan, .predict = fp8_wgmma_traffic, .dtypes = FP16 | BF16, .head_dims = {64, 128},
         .uses = EIGHT_BITS | WGMMA, .preparation = &for_wgmma},
        {.name = "overlapped", .idea = "08_fa3/overlapped with 8-bit operands: softmax beside products",
         .launch = fp8_overlapped, .plan = fp8_overlapped_plan, .predict = fp8_overlapped_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = EIGHT_BITS | WGMMA, .preparation = &for_wgmma},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
