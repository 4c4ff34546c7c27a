/* 11_score_mod_backward - the gradients of 11_score_mod: the chain rule through the score, and the sinks' gradient. */
#include "../common/stage.h"

extern ScoreReader score_read;
extern Launcher score_fused_forward, score_fma_forward, score_backward;
extern Planner score_backward_plan;
extern Predictor score_fused_traffic, score_fma_traffic, score_backward_traffic;
extern Refusal score_fused_refuses;
extern const Variant naive_gradients;

static const Variant forward = {
    .name = "11_score_mod/fused",
    .idea = "the forward pass: O and LSE",
    .launch = score_fused_forward,
    .predict = score_fused_traffic,
    .refuses = score_fused_refuses,
    .dtypes = FP16 | BF16,
    .head_dims = {64, 128},
    .uses = TENSOR_CORES,
};

static const Variant plain_forward = {
    .name = "11_score_mod/fma",
    .idea = "the forward pass: O and LSE",
    .launch = score_fma_forward,
    .predict = score_fma_traffic,
    .dtypes = FP16 | BF16 | FP32,
    .head_dims = {64, 128},
};

const Stage stage = {
    .name = "11_score_mod_backward",
    .idea = "the gradients of 11_score_mod: the chain rule through the score",
    .kind = BACKWARD,
    .forward = &forward,
    .forward_otherwise = &plain_forward,
    .reference = &naive_gradients,
    .defaults = {{0}, {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 512, .head_dim = 64}},
    .read_score = score_read,
    .cuts = "a window",
    .settings = {{.name = "score", .max = TEXT,
                  .help = "softcap:C, alibi, window:LEFT,RIGHT, sink; several are combined; default: none"}},
    .variants = {
        {.name = "fma", .idea = "05's fma with f' in dS, and the gradient of the sinks; plain CUDA",
         .launch = score_backward, .plan = score_backward_plan, .predict = score_backward_traffic,
         .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}, .unordered = 1},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
