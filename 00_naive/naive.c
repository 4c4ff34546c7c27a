/* naive.c - stage 00's one variant, as data. Every program links it: it is what the others are validated against. */
#include "../common/stage.h"

extern Launcher naive_forward;
extern Planner naive_plan;
extern Predictor naive_traffic;

const Variant naive_variant = {
    .name = "00_naive",
    .idea = "the definition: one thread per output, S and P in device memory",
    .launch = naive_forward,
    .plan = naive_plan,
    .predict = naive_traffic,
    .dtypes = FP16 | BF16 | FP32,
};
