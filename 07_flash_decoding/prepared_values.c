/* prepared_values.c - what the 8-bit cache stands for, on the host. */
#include "decode.h"
#include "../common/device/device.h"
#include "../common/numeric.h"
#include "../common/host/memory.h"

#include <stdlib.h>

static void *read_buffer(const Buffer *buffer) {
    void *host = host_alloc(buffer->bytes, 1);
    device_read(host, buffer->pointer, buffer->bytes);
    return host;
}

PreparedRounding cache_prepared_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    (void)q; /* stays as it is */
    size_t heads = (size_t)p->batch * p->kv_heads, a_head = key_elements(p) / heads;
    float *scales = read_buffer(&workspace[CACHE_SCALES]);
    for (int tensor = 0; tensor < 2; tensor++) {
        uint8_t *codes = read_buffer(&workspace[tensor ? CACHE_V : CACHE_K]);
        float *to = tensor ? v : k;
        for (size_t i = 0; i < key_elements(p); i++)
            to[i] = e4m3_to_float(codes[i]) * scales[tensor * heads + i / a_head];
        free(codes);
    }
    free(scales);
    return (PreparedRounding){.input_roundoff = 0x1p-4, /* 3 bits after the point */
                              .input_half_step = 0x1p-10,
                              .input_largest = 448,
                              .p_roundoff = p->dtype == DTYPE_FP16 ? 0x1p-11 : 0x1p-8,
                              .p_step = p->dtype == DTYPE_FP16 ? 0x1p-25 : 0x1p-126, /* 2^x gives nothing smaller */
                              .sum_roundoff = 0x1p-24};
}
