/* 10_block_sparse - a mask of blocks: tiles that are not there cost nothing. */
#include "../common/stage.h"

extern MaskReader blocks_read;
extern Launcher sparse_masked;
extern Predictor sparse_masked_traffic;

const Stage stage = {
    .name = "10_block_sparse",
    .idea = "tiles that are not there cost nothing: attention under a mask of blocks",
    .kind = FORWARD,
    .read_mask = blocks_read,
    .settings = {{.name = "blocks", .max = TEXT,
                  .help = "window:W, sink:S:W, documents:A+B+C, strided:K, random:PERCENT:SEED, file:PATH; else all is kept"}},
    .variants = {
        {.name = "masked", .idea = "04's tuned visits every tile and masks what is not kept", .launch = sparse_masked,
         .predict = sparse_masked_traffic,
         .dtypes = FP16 | BF16, .head_dims = {64, 128}, .uses = TENSOR_CORES},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
