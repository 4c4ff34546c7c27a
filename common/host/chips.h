/* chips.h - how fast chips compute and move bytes: one table by name, one by compute capability.
 *
 * A peak goes with a clock. CHIPS has what data sheets print, at the boost clock that they are quoted at: 989.5 TFLOP/s of
 * an H200 at 1.83 GHz. The trace draws its roofline with that. A real chip stays below it: it cannot hold its boost clock
 * under a full load. MULTIPROCESSORS has FLOPs per clock. Times the multiprocessors and the highest clock that the GPU here
 * reports, 1071 TFLOP/s of an H200 at 1.98 GHz, that is what the table's `of peak` is of. tests/measuring.c holds one
 * against the other.
 */
#ifndef FA_CHIPS_H
#define FA_CHIPS_H

#include <stddef.h>
#include <string.h>

/* fp16 inputs, fp32 accumulation, dense (data sheets often print twice that, "with sparsity"); and the same for 8-bit
 * floating point, which a chip from before sm_89 multiplies as fp16. */
typedef struct {
    const char *name; /* as in --roofline */
    double tflops[2]; /* 10^12 FLOPs per second, tensor cores, fp16 and 8 bits */
    double gbps;      /* 10^9 bytes per second, device memory */
    int multiprocessors;
    double ghz; /* the boost clock that the peak is quoted at */
    int fp32;   /* FLOPs per clock of a multiprocessor's CUDA cores */
} Chip;

static const Chip CHIPS[] = {
    {"t4", {65, 65}, 320, 40, 1.59, 128}, /* NVIDIA T4 Tensor Core GPU product page */
    {"a10", {125, 125}, 600, 72, 1.695, 256}, /* NVIDIA A10 Tensor Core GPU data sheet */
    {"a100", {312, 312}, 2039, 108, 1.41, 128}, /* NVIDIA A100 80GB SXM data sheet */
    {"rtx3090", {71, 71}, 936, 82, 1.695, 256}, /* NVIDIA Ampere GA102 GPU architecture white paper, appendix A */
    {"rtx4090", {165.2, 330.3}, 1008, 128, 2.52, 256}, /* NVIDIA Ada GPU architecture white paper, appendix A */
    {"l4", {121, 242.5}, 300, 58, 2.04, 256}, /* NVIDIA L4 Tensor Core GPU data sheet; half of its 242 and 485 with sparsity */
    {"l40s", {362, 733}, 864, 142, 2.52, 256}, /* NVIDIA L40S data sheet */
    {"h100", {989.5, 1979}, 3350, 132, 1.83, 256}, /* NVIDIA H100 SXM data sheet; half of its 1979 and 3958 with sparsity */
    {"h200", {989.5, 1979}, 4800, 132, 1.83, 256}, /* NVIDIA H200 SXM data sheet; half of its 1979 and 3958 with sparsity */
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

/* FLOPs per clock of a multiprocessor: CUDA C++ Programming Guide and the architectures' white papers. GeForce cards sum
 * products of tensor cores in fp32 at half the rate. */
static const struct {
    int chip, tensor, fp32; /* compute capability x 10; 16-bit factors on tensor cores; fp32 on CUDA cores */
} MULTIPROCESSORS[] = {{75, 1024, 128}, {80, 2048, 128},  {86, 1024, 256},  {89, 1024, 256},
                       {90, 4096, 256}, {100, 8192, 256}, {103, 8192, 256}, {120, 1024, 256}};

#endif
