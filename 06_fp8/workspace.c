/* workspace.c - the workspace of fp8.h as the host sees it: how large it is, and what it stands for. Everything that
 * the pre-pass did is undone here step by step (scale, rotation, mean, transposition); the variants' output is
 * validated against attention of the result (common/judge/prepared.h).
 */
#include "../common/device/device.h"
#include "../common/numeric.h"
#include "../common/host/memory.h"
#include "fp8.h"

#include <stdlib.h>

int fp8_plan(const Problem *p, Buffer *workspace) {
    workspace[Q8] = (Buffer){.purpose = "Q8", .bytes = query_elements(p)};
    workspace[K8] = (Buffer){.purpose = "K8", .bytes = key_elements(p)};
    workspace[VT8] = (Buffer){.purpose = "VT8", .bytes = vt_head_offset(p, p->batch, 0)};
    workspace[Q_SCALES] = (Buffer){.purpose = "Q scales", .bytes = q_scale_offset(p, p->batch, 0) * sizeof(float)};
    workspace[K_SCALES] = (Buffer){.purpose = "K scales", .bytes = k_scale_offset(p, p->batch, 0) * sizeof(float)};
    workspace[V_SCALES] = (Buffer){.purpose = "V scales", .bytes = k_scale_offset(p, p->batch, 0) * sizeof(float)};
    workspace[LSE_SHIFT] = (Buffer){.purpose = "LSE shift", .bytes = row_count(p) * sizeof(float)};
    workspace[K_MEAN] =
        (Buffer){.purpose = "K mean", .bytes = (size_t)p->batch * p->kv_heads * p->head_dim * sizeof(float)};
    size_t tiles =
        (size_t)p->batch * p->heads * ((p->seqlen_q + BLOCK_K - 1) / BLOCK_K) + 2 * k_scale_offset(p, p->batch, 0);
    workspace[PROGRESS] = (Buffer){.purpose = "progress", .bytes = (1 + tiles) * sizeof(int)};
    return FP8_BUFFERS;
}

/* A workspace buffer, copied to the host. */
static void *read_buffer(const Buffer *buffer) {
    void *copy = host_alloc(buffer->bytes, 1);
    device_read(copy, buffer->pointer, buffer->bytes);
    return copy;
}

static float stored(int format, uint8_t code) {
    return format == FORMAT_E4M3 ? e4m3_to_float(code) : e5m2_to_float(code);
}

/* row := row R^T, R as in quantise.cu: H is its own transpose, and the signs come last. */
static void rotate_back(float *row, int columns) {
    for (int step = 1; step < columns; step *= 2)
        for (int i = 0; i < columns; i++)
            if (!(i & step)) {
                float a = row[i], b = row[i + step];
                row[i] = a + b;
                row[i + step] = a - b;
            }
    for (int i = 0; i < columns; i++)
        row[i] *= rotation_sign(i) / sqrtf((float)columns);
}

/* Q or K: rows that are stored as they were given. mean: [matrices, D], or NULL. */
static void dequantise_rows(const Problem *p, const Buffer *codes, const Buffer *scales, int matrices, int seqlen,
                            int block, const float *mean, float *rows) {
    const int columns = p->head_dim, tiles = (seqlen + block - 1) / block;
    uint8_t *code = read_buffer(codes);
    float *scale = read_buffer(scales);
    for (int matrix = 0; matrix < matrices; matrix++)
        for (int i = 0; i < seqlen; i++) {
            size_t first = ((size_t)matrix * seqlen + i) * columns;
            for (int d = 0; d < columns; d++)
                rows[first + d] =
                    scale[(size_t)matrix * tiles + i / block] * stored(p->settings[FORMAT], code[first + d]);
            if (p->settings[HADAMARD])
                rotate_back(rows + first, columns);
            for (int d = 0; mean && d < columns; d++)
                rows[first + d] += mean[(size_t)matrix * columns + d];
        }
    free(code);
    free(scale);
}

static void dequantise_v(const Problem *p, const Buffer *workspace, float *v) {
    const int columns = p->head_dim, pitch = key_pitch(p);
    uint8_t *code = read_buffer(&workspace[VT8]);
    float *scale = read_buffer(&workspace[V_SCALES]);
    for (int matrix = 0; matrix < p->batch * p->kv_heads; matrix++)
        for (int position = 0; position < pitch; position++) {
            int key = key_at_position(position);
            for (int d = 0; key < p->seqlen_k && d < columns; d++)
                v[((size_t)matrix * p->seqlen_k + key) * columns + d] =
                    scale[(size_t)matrix * k_scale_count(p) + key / BLOCK_K] *
                    stored(p->settings[FORMAT], code[((size_t)matrix * columns + d) * pitch + position]);
        }
    free(code);
    free(scale);
}

static void dequantise(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    float *mean = p->settings[SMOOTH_K] ? read_buffer(&workspace[K_MEAN]) : NULL;
    dequantise_rows(p, &workspace[Q8], &workspace[Q_SCALES], p->batch * p->heads, p->seqlen_q, BLOCK_Q, NULL, q);
    dequantise_rows(p, &workspace[K8], &workspace[K_SCALES], p->batch * p->kv_heads, p->seqlen_k, BLOCK_K, mean, k);
    dequantise_v(p, workspace, v);
    free(mean);
}

/* The formats, and what becomes of Q, K and V before they are rounded. P of a score m is 2^(8 - FP8_SLACK) and
 * 2^(15 - FP8_SLACK) when it is rounded. */
static PreparedRounding rounding_of(const Problem *p, double sum_roundoff) {
    int e4m3 = p->settings[FORMAT] == FORMAT_E4M3, by_block = p->settings[SCALING] == SCALING_BLOCK;
    double u = e4m3 ? 0x1p-4 : 0x1p-3, half_step = e4m3 ? 0x1p-10 : 0x1p-17;
    return (PreparedRounding){.input_roundoff = u,
                              .input_half_step = half_step,
                              .input_largest = e4m3 ? 448 : 57344,
                              .least_scale = LEAST_SCALE,
                              .q_block = by_block ? BLOCK_Q : 0,
                              .k_block = by_block ? BLOCK_K : 0,
                              .is_rotated = p->settings[HADAMARD],
                              .has_mean = p->settings[SMOOTH_K],
                              .p_roundoff = u,
                              .p_step = half_step / ((e4m3 ? 0x1p8 : 0x1p15) / (1 << FP8_SLACK)),
                              .sum_roundoff = sum_roundoff};
}

/* Tensor cores that take 8-bit operands themselves keep about 13 bits of mantissa in the sum of a product
 * (SageAttention2, Zhang et al. 2024, found it on sm_89; wgmma on sm_90 does the same). Where mma.sync only unpacks
 * them to fp16, and on the CPU device, sums are fp32. */
PreparedRounding fp8_mma_prepared_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    const DeviceProperties *device = device_properties();
    int unpacks = device->capability < 89 || device->capability == 90 || device->is_cpu;
    dequantise(p, workspace, q, k, v);
    return rounding_of(p, unpacks ? 0x1p-24 : 0x1p-13);
}

PreparedRounding fp8_wgmma_prepared_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    dequantise(p, workspace, q, k, v);
    return rounding_of(p, device_properties()->is_cpu ? 0x1p-24 : 0x1p-13);
}
