/* roofline.h - how fast a chip can compute and how fast it can move bytes, from the vendors' data sheets.
 *
 * A kernel that does I FLOPs for each byte it moves cannot be faster than min(peak, I * bandwidth): the roofline. The two
 * meet at peak / bandwidth FLOPs a byte; below that memory is the limit, above it the tensor cores.
 *
 * Peak: fp16 inputs, fp32 accumulation, dense (data sheets often print twice that, "with sparsity"); and the same for 8-bit
 * floating point, which a chip from before sm_89 multiplies as fp16. A real chip stays below both: it cannot hold its boost
 * clock under a full load.
 */
#ifndef FA_ROOFLINE_H
#define FA_ROOFLINE_H

#include <stddef.h>
#include <string.h>

typedef struct {
    const char *name; /* as in --roofline */
    double tflops[2]; /* 10^12 FLOPs a second, tensor cores, fp16 and 8 bits */
    double gbps;      /* 10^9 bytes a second, device memory */
    int multiprocessors;
    double ghz; /* the boost clock that the peak is quoted at */
    const char *source;
} Chip;

static const Chip CHIPS[] = {
    {"t4", {65, 65}, 320, 40, 1.59, "NVIDIA T4 Tensor Core GPU product page"},
    {"a10", {125, 125}, 600, 72, 1.695, "NVIDIA A10 Tensor Core GPU data sheet"},
    {"a100", {312, 312}, 2039, 108, 1.41, "NVIDIA A100 80GB SXM data sheet"},
    {"rtx3090", {71, 71}, 936, 82, 1.695, "NVIDIA Ampere GA102 GPU architecture white paper, appendix A"},
    {"rtx4090", {165.2, 330.3}, 1008, 128, 2.52, "NVIDIA Ada GPU architecture white paper, appendix A"},
    {"l4", {121, 242.5}, 300, 58, 2.04, "NVIDIA L4 Tensor Core GPU data sheet; half of its 242 and 485 with sparsity"},
    {"l40s", {362, 733}, 864, 142, 2.52, "NVIDIA L40S data sheet"},
    {"h100", {989.5, 1979}, 3350, 132, 1.83, "NVIDIA H100 SXM data sheet; half of its 1979 and 3958 with sparsity"},
    {"h200", {989.5, 1979}, 4800, 132, 1.83, "NVIDIA H200 SXM data sheet; half of its 1979 and 3958 with sparsity"},
};
enum { CHIP_COUNT = sizeof CHIPS / sizeof *CHIPS };
#define CHIP_NAMES "t4|a10|a100|rtx3090|rtx4090|l4|l40s|h100|h200" /* as a Setting has its choices */

/* NULL if there is no such chip. */
static inline const Chip *find_chip(const char *name) {
    for (int i = 0; i < CHIP_COUNT; i++)
        if (strcmp(CHIPS[i].name, name) == 0)
            return &CHIPS[i];
    return NULL;
}

/* The roof over `intensity` FLOPs a byte under `peak`, in TFLOP/s. */
static inline double roof(const Chip *chip, double peak, double intensity) {
    double memory = intensity * chip->gbps / 1000;
    return memory < peak ? memory : peak;
}

#endif
