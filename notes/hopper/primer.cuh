/* primer.cuh - what the five programs of notes/hopper.md share and none of them is about: arrays on the device, the beginning
 * and the end of a program, and the trace between them. */
#ifndef FA_PRIMER_CUH
#define FA_PRIMER_CUH

#include "../../common/gpu/hopper.cuh"
#include "../../common/host/errors.h"
#include "../../common/numeric.h"
#include "../../common/trace/trace.h"

#include <cstdio>
#include <vector>

/* An array on the device, fresh or with what `host` has. */
template <typename T> struct Array {
    size_t count;
    T *pointer;
    Array(size_t count, const char *name) : count(count), pointer((T *)device_alloc(count * sizeof(T), name)) {}
    Array(const std::vector<T> &host, const char *name) : Array(host.size(), name) {
        device_write(pointer, host.data(), count * sizeof(T));
    }
    std::vector<T> read() const {
        std::vector<T> host(count);
        device_read(host.data(), pointer, count * sizeof(T));
        return host;
    }
};

/* Small integers, which fp16 has and whose sums are exact: the codes, and what they mean. */
struct Integers {
    std::vector<uint16_t> code;
    std::vector<float> value;
    Integers(int count, uint32_t seed) : code(count), value(count) {
        for (int i = 0; i < count; i++)
            code[i] = float_to_fp16(value[i] = (float)((i + 1) * seed >> 24) - 128);
    }
};

/* The part of D, Columns wide, that a thread of a warpgroup holds after a wgmma. */
template <int Columns> __device__ inline void store_d(float *to, const float (&d)[Columns / 8][4]) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    UNROLL for (int i = 0; i < Columns / 2; i++)
        to[(row + 8 * (i / 2 % 2)) * Columns + column + 8 * (i / 4) + i % 2] = d[i / 4][i % 4];
}
/* How many elements of D are not the sum of term(row, column, k) over `terms` k. */
template <typename Term> int wrong_sums(const std::vector<float> &d, int columns, int terms, Term term) {
    int wrong = 0;
    for (int i = 0; i < (int)d.size(); i++) {
        float sum = 0;
        for (int k = 0; k < terms; k++)
            sum += term(i / columns, i % columns, k);
        wrong += !(d[i] == sum);
    }
    return wrong;
}

inline void begin(const char *name) {
    program_is(name);
    const DeviceProperties *device = device_properties();
    if (!device->has_hopper)
        cannot_run("%s has no TMA and no wgmma: build with DEVICE=cpu", device->name);
    printf("---- %s, on %s\n", name, device->is_cpu ? "the CPU device" : device->name);
#ifdef TRACE
    trace_begin("h200");
#endif
}

/* Says what the trace saw, and how many results are wrong. Returns main's exit code. */
inline int end(int wrong) {
    int races = 0;
#ifdef TRACE
    const Trace *trace = trace_end();
    for (const TraceRow *row = trace->rows; row < trace->rows + trace->row_count; row++)
        printf("trace: %s: %llu bytes read, %llu written\n", row->tensor, (unsigned long long)row->bytes[TRACE_READ],
               (unsigned long long)row->bytes[TRACE_WRITE]);
    for (const TraceKernel *kernel = trace->kernels; kernel < trace->kernels + trace->kernel_count; kernel++)
        for (const TraceCollective *each = kernel->collectives; each->what; each++)
            printf("trace: %llu %s\n", (unsigned long long)each->count, each->what);
    races = trace->race_count;
    trace_print_races(trace, stdout);
#endif
    printf("%s\n\n", wrong ? "WRONG" : races ? "right, but with races" : "right");
    flush_output();
    return wrong || races;
}

#endif
