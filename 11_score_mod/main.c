/* 11_score_mod - the scores that models use: something happens to S between the two products. */
#include "../common/stage.h"

extern ScoreReader score_read;
extern Launcher score_fma_forward, score_fused_forward;
extern Predictor score_fma_traffic, score_fused_traffic;
extern Refusal score_fused_refuses;

const Stage stage = {
    .name = "11_score_mod",
    .idea = "the scores that models use: soft cap, ALiBi, windows and sinks",
    .kind = FORWARD,
    .read_score = score_read,
    .cuts = "a window",
    .settings = {{.name = "score", .max = TEXT,
                  .help = "softcap:C, alibi, window:LEFT,RIGHT, sink; several are combined; default: none"}},
    .variants = {
        {.name = "fma", .idea = "04's fma with a function between the products, chosen at run time; plain CUDA",
         .launch = score_fma_forward, .predict = score_fma_traffic,
         .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}},
        {.name = "fused", .idea = "04's tuned with the function as a template: compiled in",
         .launch = score_fused_forward, .predict = score_fused_traffic, .refuses = score_fused_refuses,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
