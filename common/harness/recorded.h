/* recorded.h - what the variants took on a GPU, for the line `recorded` below the table on the CPU device. Measured anew, it is
 * rewritten with the figures of the notes by common/results/tables.pl. */
#ifndef FA_RECORDED_H
#define FA_RECORDED_H

typedef struct {
    const char *variant, *problem;
    double ms;
} Recorded;

/* clang-format off */
/* table: recorded */
static const char RECORDED_ON[] = "NVIDIA H200, 2026-11-26";
static const Recorded RECORDED[] = {
    {"00_naive", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 669},
    {"01_tiled/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 33.7},
    {"01_tiled/mma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 6.6},
    {"02_online_softmax/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 40.8},
    {"02_online_softmax/online", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.82},
    {"03_fa1/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 139},
    {"03_fa1/fa1", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 28.1},
    {"04_fa2/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 26},
    {"04_fa2/epilogue", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 28.2},
    {"04_fa2/loop_swap", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.8},
    {"04_fa2/split_q", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.92},
    {"04_fa2/tall", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.65},
    {"04_fa2/tuned", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.39},
    {"08_fa3/wgmma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.963},
    {"08_fa3/specialised", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.02},
    {"08_fa3/overlapped", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.85},
    {"05_fa2_backward/fma", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 65.5},
    {"05_fa2_backward/two_pass", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 5.27},
    {"05_fa2_backward/atomic", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 4.26},
    {"09_fa3_backward/wgmma", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 3.46},
    {"09_fa3_backward/specialised", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.61},
    {"09_fa3_backward/overlapped", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.51},
    {"09_fa3_backward/ordered", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.73},
    {"06_fp8/mma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.45},
    {"06_fp8/wgmma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.667},
    {"06_fp8/overlapped", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.605},
    {"07_flash_decoding/one_block", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.366},
    {"07_flash_decoding/split_k", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.0682},
    {"07_flash_decoding/equal_shares", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.0677},
};
/* end */
/* clang-format on */
enum { RECORDED_COUNT = sizeof RECORDED / sizeof *RECORDED };

#endif
