/* hopper_cpu.h - the twins of gpu/hopper.cuh on the CPU device: the same names, the same results, the same bits.
 *
 * What is asynchronous on the chip is late here, as late as a program may count on:
 *
 *     TMA      a tile becomes NaN when it is asked for, and arrives when a thread waits for it at the mbarrier. Where a
 *              wait is missing NaN is read, and so it is by a thread that still reads a tile whose place was given away
 *     wgmma    is computed at wgmma_wait, from what shared memory and the registers of A hold by then. Where a wait is
 *              missing D is as it was
 *
 * Descriptors are decoded, tiles are swizzled by address bits, as the hardware does it. Not modelled: proxies
 * (mbarrier_init_fence does nothing), the fewer bits that an 8-bit wgmma keeps when it adds up, warps of a warpgroup that
 * run apart (all four are done with a wgmma at the same time), and a block that ends with copies under way.
 *
 * The trace counts what TMA moves, a row of a tile as one access, and not what wgmma reads from shared memory. For races it
 * looks at both: each of the four warps reads B, and its 16 rows of A, up to its wgmma_wait. To give the tile to TMA without
 * a __syncthreads after that is a race. So is the use of an mbarrier with none after its initialisation. What an mbarrier
 * orders the trace does not know: without a __syncthreads between asking for a tile and reading it, it sees a race.
 */
#ifndef FA_HOPPER_CPU_H
#define FA_HOPPER_CPU_H

#include <type_traits>
#include <vector>

#define HOPPER
#define __grid_constant__

/* ---- shared memory by address, 0 where the block's begins, as PTX does ---- */
inline unsigned char *shared_byte(uint32_t address) {
    return static_cast<unsigned char *>(simt_shared(0, __FILE__, __LINE__)) + address;
}
inline uint32_t shared_address(const void *pointer) {
    return (uint32_t)(static_cast<const unsigned char *>(pointer) - shared_byte(0));
}
inline uint32_t swizzled(uint32_t address, int row_bytes) {
    return address ^ (address >> 3 & (row_bytes == 128 ? 0x70 : 0x30));
}

/* ---- mbarrier. To the trace initialising it is a write, and using it a read: those do not race with each other. ---- */
struct Mbarrier {
    uint16_t count, pending; /* arrivals a phase, and those still to come */
    int32_t bytes : 31;      /* announced and not yet written */
    uint32_t parity : 1;     /* of the phase at hand */
};
static_assert(sizeof(Mbarrier) == 8, "as on the GPU");

NOT_TRACED inline void mbarrier_set(Mbarrier *barrier, int count) {
    *barrier = {(uint16_t)count, (uint16_t)count, 0, 0};
}
inline void mbarrier_init(Mbarrier *barrier, int count, CALLER) {
    simt_need_shared("mbarrier_init", barrier, 8, file, line);
    trace_beside_write(barrier, 8);
    mbarrier_set(barrier, count);
}
inline void mbarrier_init_fence() {}

/* The phase is over if nothing is missing any more: wakes those who wait. */
NOT_TRACED inline void mbarrier_check(Mbarrier *barrier) {
    if (barrier->pending || barrier->bytes)
        return;
    barrier->parity ^= 1;
    barrier->pending = barrier->count;
    simt_wake(barrier);
}
NOT_TRACED inline void mbarrier_arrived(Mbarrier *barrier, int bytes, const char *file, int line) {
    if (barrier->pending == 0 || barrier->pending > barrier->count || barrier->count > SIMT_MAX_BLOCK)
        simt_fail(file, line, "mbarrier_arrive: the mbarrier was not initialised");
    barrier->bytes += bytes;
    barrier->pending--;
    mbarrier_check(barrier);
}
inline void mbarrier_arrive_expect(Mbarrier *barrier, int bytes, CALLER) {
    simt_need_shared("mbarrier_arrive", barrier, 8, file, line);
    trace_beside_read(barrier, 8);
    mbarrier_arrived(barrier, bytes, file, line);
}
inline void mbarrier_arrive(Mbarrier *barrier, CALLER) { mbarrier_arrive_expect(barrier, 0, file, line); }

/* ---- TMA ---- */
struct TensorMap {
    const unsigned char *matrix;
    int columns, rows, matrices; /* columns in bytes */
    int tile_rows, row_bytes, element;
};

template <typename E, int RowBytes>
TensorMap tensor_map(const void *matrix, int columns, int rows, int matrices, int tile_rows) {
    if ((uintptr_t)matrix % 16 || columns * sizeof(E) % 16 || columns < 1 || rows < 1 || matrices < 1 || tile_rows < 1 ||
        tile_rows > 256)
        fprintf(stderr, "tensor_map refuses %d matrices of %d x %d\n", matrices, rows, columns), exit(2);
    return {static_cast<const unsigned char *>(matrix), columns * (int)sizeof(E), rows, matrices, tile_rows,
            Swizzle<RowBytes>::pattern_bytes / 8, (int)sizeof(E)};
}

inline bool elect_one() { return simt_lane() == 0; }

struct TmaCopy {
    TensorMap map;
    uint32_t to; /* shared */
    int column, row, matrix;
    Mbarrier *barrier;
};

/* What this core's block has under way. */
struct Wgmma {
    int batch, n;
    bool add;
    uint64_t a, b; /* descriptors */
    float *d[128];
    const uint32_t *a_registers[128];
    void (*compute)(const Wgmma &operation);
};
struct HopperState {
    unsigned block;
    std::vector<TmaCopy> copies;
    struct {
        std::vector<Wgmma> queue; /* oldest first */
        int batch;                /* of the next wgmma */
        bool fenced;              /* since the last wait */
    } warpgroup[SIMT_MAX_BLOCK / 128];
};
inline HopperState &hopper_state() {
    static thread_local HopperState state;
    if (state.block != simt_block_count()) {
        state = HopperState();
        state.block = simt_block_count();
    }
    return state;
}

/* The 16 bytes of the tensor that go to row r, chunk c of the tile, or NULL outside of it. */
inline const unsigned char *tma_source(const TmaCopy &copy, int r, int c) {
    const TensorMap &map = copy.map;
    int row = copy.row + r, column = copy.column * map.element + 16 * c;
    bool inside =
        row >= 0 && row < map.rows && column >= 0 && column < map.columns && copy.matrix >= 0 && copy.matrix < map.matrices;
    return inside ? map.matrix + ((size_t)copy.matrix * map.rows + row) * map.columns + column : nullptr;
}

/* Lets all copies arrive that this barrier counts. */
NOT_TRACED inline void tma_land(Mbarrier *barrier) {
    std::vector<TmaCopy> &copies = hopper_state().copies;
    for (size_t i = 0; i < copies.size();) {
        const TmaCopy copy = copies[i];
        if (copy.barrier != barrier) {
            i++;
            continue;
        }
        copies.erase(copies.begin() + i);
        for (int r = 0; r < copy.map.tile_rows; r++)
            for (int c = 0; c < copy.map.row_bytes / 16; c++) {
                const unsigned char *from = tma_source(copy, r, c);
                unsigned char *to = shared_byte(swizzled(copy.to + r * copy.map.row_bytes + 16 * c, copy.map.row_bytes));
                if (from)
                    memcpy(to, from, 16);
                else
                    memset(to, 0, 16);
            }
        barrier->bytes -= copy.map.tile_rows * copy.map.row_bytes;
        mbarrier_check(barrier);
    }
}

inline void tma_load(void *shared, const TensorMap &map, int column, int row, int matrix, Mbarrier *barrier, CALLER) {
    const int bytes = map.tile_rows * map.row_bytes;
    simt_need_shared("tma_load", shared, 16, file, line);
    simt_need_shared("tma_load", static_cast<unsigned char *>(shared) + bytes - 16, 16, file, line);
    if (shared_address(shared) % (8 * map.row_bytes))
        simt_fail(file, line, "tma_load: the tile begins at %u, not at a multiple of %d bytes", shared_address(shared),
                  8 * map.row_bytes);
    if (column * map.element % 16)
        simt_fail(file, line, "tma_load: column %d is not at a multiple of 16 bytes", column);
    TmaCopy copy = {map, shared_address(shared), column, row, matrix, barrier};
    for (int r = 0; r < map.tile_rows; r++) { /* for the trace: a row is in the tensor or not, and so is a chunk of it */
        int inside = 0;
        while (inside < map.row_bytes && tma_source(copy, r, inside / 16))
            inside += 16;
        if (inside)
            trace_read(tma_source(copy, r, 0), inside);
        trace_write(static_cast<unsigned char *>(shared) + r * map.row_bytes, map.row_bytes);
    }
    memset(shared, 0xff, bytes);
    hopper_state().copies.push_back(copy);
    simt_wake(barrier); /* one who waits already lets it arrive */
}

NOT_TRACED inline void mbarrier_sleep(Mbarrier *barrier, int parity, const char *file, int line) {
    for (;;) {
        tma_land(barrier);
        if (barrier->parity != (unsigned)parity)
            return;
        simt_sleep("mbarrier_wait", barrier, file, line);
    }
}
inline void mbarrier_wait(Mbarrier *barrier, int parity, CALLER) {
    simt_need_shared("mbarrier_wait", barrier, 8, file, line);
    trace_beside_read(barrier, 8);
    mbarrier_sleep(barrier, parity, file, line);
}

/* ---- wgmma ---- */

template <typename E> NOT_TRACED inline float element_to_float(const unsigned char *code) {
    if constexpr (std::is_same_v<E, __half>)
        return fp16_to_float((uint16_t)(code[0] | code[1] << 8));
    else
        return code8_to_float<E>(*code);
}

/* Where byte `byte`, 0..31, of a row lies that a descriptor names. */
NOT_TRACED inline const unsigned char *described_byte(uint64_t descriptor, int row, int byte) {
    const int row_bytes = descriptor >> 62 == 1 ? 128 : 64;
    const uint32_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    return shared_byte(swizzled(start + row / 8 * stride + row % 8 * row_bytes + byte, row_bytes));
}

/* The rows that it names, as floats. */
template <typename E> NOT_TRACED void wgmma_operand(uint64_t descriptor, int rows, float *value) {
    for (int row = 0; row < rows; row++)
        for (int byte = 0; byte < 32; byte += sizeof(E))
            *value++ = element_to_float<E>(described_byte(descriptor, row, byte));
}

template <typename E, int N> NOT_TRACED void compute_wgmma(const Wgmma &w) {
    constexpr int K = 32 / sizeof(E);
    float a[64][K], b[N][K], b_transposed[K][N];
    if (w.a_registers[0]) {
        for (int thread = 0; thread < 128; thread++) /* register i: 8 rows down if odd, 16 bytes right from the third on */
            for (int i = 0; i < 4; i++)
                for (int byte = 0; byte < 4; byte += sizeof(E)) {
                    unsigned char four[4];
                    memcpy(four, &w.a_registers[thread][i], 4);
                    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i % 2),
                              k_byte = 16 * (i / 2) + 4 * (thread % 4) + byte;
                    a[row][k_byte / sizeof(E)] = element_to_float<E>(four + byte);
                }
    } else {
        wgmma_operand<E>(w.a, 64, a[0]);
    }
    wgmma_operand<E>(w.b, N, b[0]);
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            b_transposed[k][n] = b[n][k];
    for (int row = 0; row < 64; row++) {
        float sum[N] = {};
        for (int k = 0; k < K; k++)
            for (int n = 0; n < N; n++)
                sum[n] += a[row][k] * b_transposed[k][n];
        for (int n = 0; n < N; n++) {
            float *d = w.d[row / 16 * 32 + row % 8 * 4 + n % 8 / 2] + n / 8 * 4 + row % 16 / 8 * 2 + n % 2;
            *d = w.add ? *d + sum[n] : sum[n];
        }
    }
}

struct WgmmaOperands {
    float *d;
    const uint32_t *a_registers; /* or NULL */
    uint64_t a, b;
    bool add;
    const char *file;
    int line;
};
inline auto &this_warpgroup() { return hopper_state().warpgroup[threadIdx.x / 128]; }

inline void check_descriptor(uint64_t descriptor, int rows, const WgmmaOperands &at) {
    const int swizzle = (int)(descriptor >> 62), row_bytes = swizzle == 1 ? 128 : 64;
    const uint32_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    if (swizzle != 1 && swizzle != 2)
        simt_fail(at.file, at.line, "wgmma: a descriptor with swizzle %d; 1 and 2 (128 and 64 bytes) are there", swizzle);
    simt_need_shared("wgmma", shared_byte(start + (rows / 8 - 1) * stride + 7 * row_bytes + 16), 16, at.file, at.line);
}

template <typename E, int N> NOT_TRACED void issue_wgmma(void **operands) {
    const WgmmaOperands &first = *static_cast<WgmmaOperands *>(operands[0]);
    auto &group = this_warpgroup();
    if (!group.fenced)
        simt_fail(first.file, first.line, "wgmma without a wgmma_fence since the last wgmma_wait");
    if (!first.a_registers)
        check_descriptor(first.a, 64, first);
    check_descriptor(first.b, N, first);
    Wgmma w = {group.batch, N, first.add, first.a, first.b, {}, {}, compute_wgmma<E, N>};
    for (int thread = 0; thread < 128; thread++) {
        const WgmmaOperands &o = *static_cast<WgmmaOperands *>(operands[thread]);
        if (o.a != first.a || o.b != first.b || o.add != first.add)
            simt_fail(first.file, first.line, "wgmma: the threads of the warpgroup disagree on a descriptor");
        w.d[thread] = o.d;
        w.a_registers[thread] = o.a_registers;
    }
    group.queue.push_back(w);
}
template <typename E, int Count> void wgmma(const WgmmaOperands &operands) {
    static_assert(Count == 32 || Count == 64, "N is 64 or 128");
    constexpr const char *what = sizeof(E) == 2 ? (Count == 32 ? "wgmma_m64n64k16" : "wgmma_m64n128k16")
                                                : (Count == 32 ? "wgmma_m64n64k32" : "wgmma_m64n128k32");
    WgmmaOperands own = operands;
    simt_warpgroup(what, &own, issue_wgmma<E, 2 * Count>, own.file, own.line);
}
template <typename E, int Count> void wgmma(float (&d)[Count], uint64_t a, uint64_t b, bool add, CALLER) {
    wgmma<E, Count>({d, nullptr, a, b, add, file, line});
}
template <typename E, int Count> void wgmma(float (&d)[Count], const uint32_t (&a)[4], uint64_t b, bool add, CALLER) {
    wgmma<E, Count>({d, a, 0, b, add, file, line});
}

inline void wgmma_fence(CALLER) {
    simt_warpgroup("wgmma_fence", nullptr, [](void **) { this_warpgroup().fenced = true; }, file, line);
}
inline void wgmma_commit(CALLER) {
    simt_warpgroup("wgmma_commit", nullptr, [](void **) { this_warpgroup().batch++; }, file, line);
}
/* How many of the queue are done when at most `pending` batches are not. */
NOT_TRACED inline size_t wgmmas_done(int pending) {
    const auto &group = this_warpgroup();
    size_t done = 0;
    while (done < group.queue.size() && group.queue[done].batch < group.batch - pending)
        done++;
    return done;
}
template <int Pending> NOT_TRACED void finish_wgmmas(void **) {
    auto &group = this_warpgroup();
    const size_t done = wgmmas_done(Pending);
    for (size_t i = 0; i < done; i++)
        group.queue[i].compute(group.queue[i]);
    group.queue.erase(group.queue.begin(), group.queue.begin() + done);
    group.fenced = false;
}
template <int Pending, int Count> void wgmma_wait(float (&)[Count], CALLER) {
#ifdef TRACE
    /* a lane stands for every 32nd row of B, and one of A */
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    for (size_t i = 0; i < wgmmas_done(Pending); i++) {
        const Wgmma w = this_warpgroup().queue[i];
        for (int byte = 0; byte < 32; byte += 16) {
            for (int row = lane; row < w.n; row += 32)
                trace_beside_read(described_byte(w.b, row, byte), 16);
            if (!w.a_registers[0] && lane < 16)
                trace_beside_read(described_byte(w.a, 16 * warp + lane, byte), 16);
        }
    }
#endif
    simt_warpgroup("wgmma_wait", nullptr, finish_wgmmas<Pending>, file, line);
}

#endif
