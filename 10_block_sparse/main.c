/* 10_block_sparse - a mask of blocks: skipped tiles cost nothing. */
#include "../common/stage.h"

extern MaskReader blocks_read;
extern Launcher sparse_masked, sparse_lists, sparse_skipping, sparse_overlapped;
extern Planner sparse_skipping_plan, sparse_overlapped_plan;
extern Predictor sparse_masked_traffic, sparse_lists_traffic, sparse_skipping_traffic, sparse_overlapped_traffic;

static const Preparation lists = {.name = "lists", .launch = sparse_lists, .predict = sparse_lists_traffic};

const Stage stage = {
    .name = "10_block_sparse",
    .idea = "skipped tiles cost nothing: attention under a mask of blocks",
    .kind = FORWARD,
    .read_mask = blocks_read,
    .default_mask = "window:256",
    .cuts = "--blocks",
    .settings = {{.name = "blocks", .max = TEXT,
                  .help = "all, window:W, sink:S:W, documents:A+B+C, strided:K, random:PERCENT:SEED or file:PATH; "
                          "default: window:256"}},
    .variants = {
        {.name = "masked", .idea = "04's tuned visits every tile and masks what is not kept", .launch = sparse_masked,
         .predict = sparse_masked_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
        {.name = "skipping", .idea = "04's tuned visits only the tiles on a list, those in which something is kept",
         .launch = sparse_skipping, .plan = sparse_skipping_plan, .predict = sparse_skipping_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES, .preparation = &lists},
        {.name = "overlapped", .idea = "08's overlapped on the same lists, the longest first",
         .launch = sparse_overlapped, .plan = sparse_overlapped_plan, .predict = sparse_overlapped_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES | WGMMA, .preparation = &lists},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
