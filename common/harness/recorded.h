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
static const char RECORDED_ON[] = "NVIDIA H200, 2026-11-27";
static const Recorded RECORDED[] = {
    {"00_naive", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 672},
    {"01_tiled/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 32.2},
    {"01_tiled/mma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 6.62},
    {"02_online_softmax/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 41},
    {"02_online_softmax/online", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.83},
    {"03_fa1/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 144},
    {"03_fa1/fa1", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 27.9},
    {"04_fa2/fma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 25.2},
    {"04_fa2/epilogue", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 28.4},
    {"04_fa2/parallel", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 4.79},
    {"04_fa2/loop_swap", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.33},
    {"04_fa2/split_q", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.89},
    {"04_fa2/tall", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.65},
    {"04_fa2/tuned", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 1.4},
    {"08_fa3/wgmma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.998},
    {"08_fa3/specialised", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.977},
    {"08_fa3/overlapped", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.836},
    {"05_fa2_backward/fma", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 65.2},
    {"05_fa2_backward/two_pass", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 5.26},
    {"05_fa2_backward/atomic", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 4.28},
    {"09_fa3_backward/wgmma", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 3.38},
    {"09_fa3_backward/specialised", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.68},
    {"09_fa3_backward/overlapped", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.58},
    {"09_fa3_backward/ordered", "backward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.68},
    {"06_fp8/mma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 2.47},
    {"06_fp8/wgmma", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.659},
    {"06_fp8/overlapped", "forward, batch 4, 16 heads, 4096, head dim 128, fp16, full", 0.602},
    {"07_flash_decoding/one_block", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.376},
    {"07_flash_decoding/split_k", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.0686},
    {"07_flash_decoding/equal_shares", "forward, batch 1, 32/8 heads, 1x65536, head dim 128, fp16, full", 0.0682},
};
/* end */
/* clang-format on */
enum { RECORDED_COUNT = sizeof RECORDED / sizeof *RECORDED };

#endif
